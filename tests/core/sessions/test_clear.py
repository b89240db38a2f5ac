"""`/clear` begins another conversation in the same process: the session follows it and keeps everything else."""

import pytest

from claude_code_mcp.core.errors import LimitReached, SessionBusy, SessionNotFound
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import end_of, options, parked, question, run, say

SECRET = "the word is plum"


async def cleared(service: Service, sandbox: Sandbox, **more: object) -> tuple[str, str]:
    """A session that was cleared: its id before and after."""
    session, _ = await run(service, script(SECRET, "first"), options(sandbox, **more))
    old = session.id
    outcome = await say(service, session, "/clear")
    assert outcome.code is OutcomeCode.COMPLETED, outcome.detail
    assert session.id != old
    assert session.id in outcome.result
    return old, session.id


def model_input(model: ScriptedModelThread, session_id: str) -> str:
    """Everything that the model was told in this session."""
    return str([one.body for one in model.requests if one.session_id == session_id])


async def test_the_session_continues_under_the_new_id_and_the_old_one_leads_there(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    old, new = await cleared(service, sandbox, allowed_tools=("Read",), model="claude-opus-5-5")
    session = service.session(new)
    assert service.session(old) is session
    assert (session.options.allowed_tools, session.options.model) == (("Read",), "claude-opus-5-5")
    assert [one.id for one in service.sessions()] == [new]
    assert (await say(service, old, script("persimmon", "second"))).result == "second"
    assert SECRET in model_input(model, old)
    assert "persimmon" in model_input(model, new)
    turn = await service.send(old, script("ask", tool("Bash", command="touch made"), "done"))
    asked = await question(turn.session)
    assert [one.id for one in service.questions(old)] == [asked]
    service.respond(old, asked, Answer(allow=True))
    assert (await end_of(turn)).result == "done"
    assert (sandbox.project / "made").exists()
    await parked(session)
    assert (await say(service, old, script("again", "resumed"))).result == "resumed"
    assert session.id == new
    last = str([one.body for one in model.requests if one.session_id == new][-1])
    assert "persimmon" in last, "the conversation after the clearing is resumed"
    assert SECRET not in model_input(model, new)


@pytest.mark.soak  # over restarts: tests/core/state/test_session_records.py
async def test_a_session_that_is_parked_right_after_the_clearing_resumes_what_came_after_it(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    first = await start_service()
    old, new = await cleared(first, sandbox)
    await parked(first.session(new))
    assert (await say(first, old, script("again", "resumed"))).result == "resumed"
    assert first.session(old).id == new
    again = await say(first, old, "/clear")
    newest = first.session(old).id
    assert again.ok
    assert len({old, new, newest}) == 3
    await first.__aexit__()
    second = await start_service()
    for number, name in enumerate((old, new, newest)):
        turn = await second.send(name, script(f"{number}", "here"))
        session = turn.session
        assert (await end_of(turn)).result == "here"
        assert session.id == newest, "after a restart too, each id leads to the new conversation"
    assert SECRET not in model_input(model, new) + model_input(model, newest)


@pytest.mark.soak
async def test_the_new_id_is_leased_and_owned_like_the_old_one(start_service: StartService, sandbox: Sandbox) -> None:
    first, second = await start_service(), await start_service()
    turn = await first.create(script("one", "first"), options(sandbox), caller=Caller("alice"))
    session = turn.session
    await end_of(turn)
    old = session.id
    turn = await first.send(old, "/clear", caller=Caller("alice"))
    await end_of(turn)
    for name in (old, session.id):
        with pytest.raises(SessionNotFound):
            await second.send(name, "mine", caller=Caller("bob"))
        assert second.state.read(lambda db: db.execute("SELECT count(*) FROM holders").fetchone()) == (2,)
        with pytest.raises(SessionBusy):
            session.deps.stores.leases.take(name)
    assert (await say(second, old, script("two", "second"), caller=Caller("alice"))).result == "second"
    assert second.session(session.id, principal="alice").live


@pytest.mark.soak  # a budget that is spent stays so: test_told_and_spent.py
async def test_clearing_gives_no_new_budget(service: Service, sandbox: Sandbox) -> None:
    """The CLI counts from nothing again; the session does not, and replaces the process."""
    old, new = await cleared(service, sandbox, max_budget_usd=0.0012)
    session = service.session(new)
    assert not session.live
    assert (await say(service, old, script("two", "second"))).ok
    spent = await say(service, old, script("three", "third"))
    assert spent.code is OutcomeCode.MAX_BUDGET
    with pytest.raises(LimitReached):
        await service.send(old, "more")
