"""The mode after a plan's approval: chosen by whoever approves it, within the ceiling of the policy."""

from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument, PermissionDenied
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.questions.question_forms import answer_of, form_of
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import plan, script, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, options, parked, question, until

from .conftest import ToolCaller

WRITE = tool("Write", file_path="swept", content="clean")
PLAN = script("plan", plan("# Tidy up\n1. sweep"), WRITE, "swept")


async def planned(service: Service, sandbox: Sandbox) -> tuple[Session, Any, str]:
    turn = await service.create(PLAN, options(sandbox, permission_mode="plan"))
    session = turn.session
    return session, turn, await question(session)


async def test_edits_are_accepted_after_an_approval_in_that_mode_which_the_form_offers(
    service: Service, sandbox: Sandbox
) -> None:
    session, turn, asked = await planned(service, sandbox)
    _, schema = form_of(session.questions[0])
    assert schema["properties"]["decision"]["enum"] == [
        "Approve the plan",
        "Approve the plan and accept edits",
        "Send feedback",
    ]
    answer = answer_of(session.questions[0], "accept", {"decision": "Approve the plan and accept edits"})
    assert answer == Answer(allow=True, mode="acceptEdits")
    service.broker.answer(session.id, asked, answer, "elicitation")
    assert (await end_of(turn)).result == "swept", "nobody was asked about the edit"
    assert (sandbox.project / "swept").read_text() == "clean"
    await parked(session)
    (sandbox.project / "swept").unlink()
    turn = await service.send(session.id, script("again", WRITE, "swept again"))
    assert (await end_of(turn)).result == "swept again", "a resumed process goes on in that mode"


@pytest.mark.soak  # the usual way: tests/server/test_answering.py
async def test_without_a_choice_edits_are_asked_about(service: Service, sandbox: Sandbox) -> None:
    session, turn, asked = await planned(service, sandbox)
    service.respond(session.id, asked, Answer(allow=True))
    await until(session, lambda: bool(session.questions) and session.questions[0].id != asked)
    assert session.questions[0].tool_name == "Write"
    service.respond(session.id, session.questions[0].id, Answer(allow=False))
    await end_of(turn)


async def test_the_ceiling_holds_for_the_choice(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(policy=Policy(default=Profile(mode_ceiling="default")))
    session, _, asked = await planned(service, sandbox)
    with pytest.raises(PermissionDenied, match="acceptEdits"):
        service.respond(session.id, asked, Answer(allow=True, mode="acceptEdits"))
    (review,) = session.questions
    _, schema = form_of(review)
    assert schema["properties"]["decision"]["enum"] == ["Approve the plan", "Send feedback"]
    forged = answer_of(review, "accept", {"decision": "Approve the plan and accept edits"})
    assert forged is not None
    with pytest.raises(InvalidArgument):
        service.broker.answer(session.id, asked, forged, "elicitation")


async def test_an_approval_does_not_lead_above_a_ceiling_below_the_default(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(policy=Policy(default=Profile(mode_ceiling="dontAsk")))
    session, turn, asked = await planned(service, sandbox)
    service.respond(session.id, asked, Answer(allow=True))
    outcome = await end_of(turn)
    assert [denial["tool_name"] for denial in outcome.permission_denials] == ["Write"]
    assert not (sandbox.project / "swept").exists()


@pytest.mark.soak  # the mode that the form offers is taken: the first test
@pytest.mark.parametrize("family", [pytest.param("sessions", marks=pytest.mark.soak), "code"])
async def test_both_families_take_the_mode(caller: ToolCaller, family: str) -> None:
    if family == "sessions":
        asked = await caller.ok(
            "claude_create_session",
            prompt=PLAN,
            permissionMode="plan",
            waitSeconds=40,
            workingDirectory=str(caller.sandbox.project),
        )
    else:
        asked = await caller.ok("claude_code", prompt=PLAN, permissionMode="plan")
    answer = {"sessionId": asked["sessionId"], "inputId": asked["pendingInputs"][0]["inputId"]}
    name = "claude_respond" if family == "sessions" else "claude_code_session"
    action = {} if family == "sessions" else {"action": "respond"}
    code, message = await caller.refused(name, **action, **answer, decision="deny", permissionMode="acceptEdits")
    assert (code, message.partition(":")[0]) == ("INVALID_ARGUMENT", "permissionMode")
    report = await caller.ok(name, **action, **answer, decision="allow", permissionMode="acceptEdits", waitSeconds=40)
    ended = report if family == "sessions" else report["sessions"][0]
    assert ended["result"] == "swept"
