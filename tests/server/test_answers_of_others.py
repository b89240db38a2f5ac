"""Whoever a session is shared with allows what it asks, once: more is its owner's, in every way to answer."""

from typing import Any, cast

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.events import AuditKind
from claude_code_mcp.core.model.question import Answer, Question, QuestionKind, Scope
from claude_code_mcp.core.questions import kinds
from claude_code_mcp.core.sessions.callers.session_access import Access
from claude_code_mcp.plugins.team.plugin import TeamPlugin
from claude_code_mcp.server.dialogs import Dialogs
from claude_code_mcp.server.rounds import RoundState
from claude_code_mcp.server.tools.session_report import report
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, options, question, until
from tests.core.sessions.test_policy_enforcer import Acts

FOR_SESSION = Answer(allow=True, scope=Scope.SESSION)


def test_answers_that_exceed_one_call() -> None:
    beyond = (FOR_SESSION, Answer(allow=True, mode="acceptEdits"))
    once = (Answer(allow=True), Answer(allow=True, mode="default"), Answer(allow=False, scope=Scope.SESSION))
    assert [answer.exceeds_one_call for answer in (*beyond, *once)] == [True] * 2 + [False] * 3


def test_a_plan_is_approved_by_others_for_a_mode_that_asks_each_time() -> None:
    asked = Question("q", "s", QuestionKind.PLAN_REVIEW, "ExitPlanMode", {}, "", modes=("default", "acceptEdits"))
    assert asked.for_once().modes == ("default",)


async def test_shared_user_allows_once_and_owner_for_the_session(start_service: StartService, sandbox: Sandbox) -> None:
    acts = Acts()
    service = await start_service(principals=["alice", "bob"], observers=[acts], access=TeamPlugin().access)
    write = (tool("Write", file_path=str(sandbox.project / name), content="x") for name in ("one.txt", "two.txt"))
    turn = await service.create(script("Write.", *write, "Done."), options(sandbox), caller=Caller("alice"))
    session = turn.session
    await question(session)
    (asked,) = session.questions
    assert asked.suggestions, "Claude Code offers to allow it for the session"
    await service.access.share(session.id, "alice", "bob", Access.ANSWER)

    shown = {name: service.access.sharing(session.id, name) for name in ("alice", "bob")}
    can = {name: report(session, service.redaction, sharing=sharing) for name, sharing in shown.items()}
    offered = {name: (each.pending_inputs or [])[0].can_allow_for_session for name, each in can.items()}
    assert offered == {"alice": True, "bob": None}
    with pytest.raises(PermissionDenied, match="Only the owner of this session, alice") as refused:
        service.respond(session.id, asked.id, FOR_SESSION, principal="bob", person=True)
    assert refused.value.data["field"] == "scope"
    assert acts.kinds()[-1] is AuditKind.REFUSED

    nowhere = cast("Any", None)  # nothing is pushed to this client
    bob = Dialogs(service, nowhere, pushes=False, can_push=lambda: False, principal="bob")
    (form,) = (bob.as_result(session.id, [asked], RoundState()).input_requests or {}).values()
    assert kinds._SESSION not in str(form)
    forged = {"decision": kinds._SESSION}
    bob.accept_form(session.id, asked.id, "accept", forged, {})
    assert session.questions == [asked], "it is still open"
    bob.accept_form(session.id, asked.id, "accept", {"decision": kinds._ONCE}, {})

    await until(session, lambda: any(each.id != asked.id for each in session.questions))  # it was allowed once
    (again,) = session.questions
    service.respond(session.id, again.id, FOR_SESSION, principal="alice", person=True)
    assert (await end_of(turn)).result == "Done."
    assert session.grants
