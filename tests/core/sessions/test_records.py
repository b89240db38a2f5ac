"""What a session was created with holds after its process, its time in memory and its server are gone."""

import asyncio
from typing import Any

import pytest

from claude_code_mcp.core.errors import (
    Cancelled,
    ClaudeCodeError,
    LimitReached,
    PermissionDenied,
    SessionBusy,
    SessionNotFound,
    StateUnavailable,
)
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer, Scope
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import ENDLESS, PATIENCE, end_of, options, parked, question, run, say, until, uses_tool

LIMITED: dict[str, Any] = {
    "tools": ("Read",),
    "disallowed_tools": ("WebFetch",),
    "permission_mode": "plan",
    "max_turns": 7,
    "max_budget_usd": 5.0,
    "append_system_prompt": "Speak like a heron.",
    "model": "claude-haiku-4-5",
    "env": {"SOME_TOKEN": "a-secret-of-the-caller"},
}


def rows(sandbox: Sandbox) -> list[tuple[str, str]]:
    """The ids and contents of all records."""
    query = "SELECT session_id, body FROM sessions"
    return database_in(sandbox.root / "state").read(lambda db: db.execute(query).fetchall())


async def forgotten(session: Session) -> None:
    """Waits until a session has had its time in memory: that closes its log."""
    async with asyncio.timeout(PATIENCE):
        with session.log.subscribe() as events:
            async for _ in events:
                pass


async def restarted(start: StartService, first: Service) -> Service:
    await first.__aexit__()
    second = await start()
    assert isinstance(second, Service)
    return second


def offered(model: ScriptedModelThread, session_id: str) -> set[str]:
    last = [one for one in model.requests if one.session_id == session_id and one.body][-1]
    assert last.body is not None
    return {one["name"] for one in last.body["tools"]}


@pytest.mark.soak  # tests/server/test_restart.py
async def test_after_a_restart_a_session_is_as_it_was_created(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    first = await start_service()
    long = script("one", text("0123456789", repeat=40_000))
    session, outcome = await run(first, long, options(sandbox, **LIMITED))
    assert [len(body) < 300_000 for _, body in rows(sandbox)] == [True]
    second = await restarted(start_service, first)
    found = await second.find(session.id)
    assert found.options == session.options
    assert (found.created_at, found.first_prompt) == (session.created_at, session.first_prompt)
    assert (found.outcome, found.state) == (outcome, State.IDLE)
    assert found.outcome is not None
    assert len(found.outcome.result) == 400_000, "whole, though it is not all in the record"
    assert (found.model_turns, found.usage, found.costs.spent_usd) == (1, session.usage, session.costs.spent_usd)
    assert (await say(second, session.id, script("two", tool("Bash", command="touch let-in"), "done"))).ok
    assert offered(model, session.id) == {"Read"}
    assert "Speak like a heron." in str(model.requests[-1].body)
    assert not (sandbox.project / "let-in").exists()
    resumed = second.session(session.id)
    assert resumed.model_turns == 3
    assert resumed.costs.spent_usd > session.costs.spent_usd


@pytest.mark.soak
async def test_call_options_override_recorded_ones_and_forks_inherit_no_grants(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    session, _ = await run(first, script("one", "first"), options(sandbox, **LIMITED))
    rules = {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow"}
    session.grant([{"type": "setMode", "mode": "acceptEdits"}, rules])
    await say(first, session, script("two", "second"))
    second = await restarted(start_service, first)
    assert (await second.find(session.id)).grants == session.grants
    changed = SessionOptions(max_turns=3, permission_mode="plan")
    await say(second, session.id, script("three", "third"), options=changed)
    assert second.session(session.id).grants == (rules,), "the mode that a call sets takes back one that was allowed"
    third = await restarted(start_service, second)
    found = await third.find(session.id)
    assert found.options == session.options.model_copy(update={"max_turns": 3})
    assert found.grants == (rules,)
    turn = await third.fork(session.id, script("four", "fourth"))
    await end_of(turn)
    fourth = await restarted(start_service, third)
    forked = await fourth.find(turn.session.id)
    assert (forked.options, forked.grants) == (found.options, ())


@pytest.mark.soak
async def test_after_its_time_in_memory_a_session_is_as_it_was_created(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start_service(session_ttl_ms=200, cleanup_interval_ms=50)
    session, _ = await run(service, script("one", "first"), options(sandbox, **LIMITED))
    await forgotten(session)
    with pytest.raises(SessionNotFound):
        service.session(session.id)
    assert (await service.find(session.id)).options == session.options
    await session.closed()
    assert (await say(service, session.id, script("two", "second"))).result == "second"
    assert offered(model, session.id) == {"Read"}


async def test_resumed_session_ignores_foreign_options_and_damaged_records(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    given = options(sandbox, tools=("Read",), permission_mode="acceptEdits")
    turn = await first.create(script("one", "first"), given, caller=Caller("alice"))
    session = turn.session
    await end_of(turn)
    second = await restarted(start_service, first)
    with pytest.raises(PermissionDenied, match=r"tools: .*alice"):
        await second.send(session.id, "hello", options=SessionOptions(tools=("Bash",)))
    with pytest.raises(PermissionDenied, match=r"tools: .*alice"):
        await second.fork(session.id, "hello", options=SessionOptions(tools=("Bash",)))
    with pytest.raises(SessionNotFound):
        await second.send(session.id, "hello", caller=Caller("mallory"))
    strict = await start_service(policy=Policy(default=Profile(mode_ceiling="default")))
    assert (await strict.find(session.id)).outcome is not None
    with pytest.raises(PermissionDenied, match="permission_mode"):
        await strict.send(session.id, "hello")
    assert (await say(second, session.id, script("two", "second"))).ok
    third = await restarted(start_service, second)
    assert (await third.find(session.id, caller=Caller("alice"))).options.tools == ("Read",)
    await third.__aexit__()
    [(_, body)] = rows(sandbox)
    update = "UPDATE sessions SET body = ?"
    database_in(sandbox.root / "state").write(lambda db: db.execute(update, (body.replace("Read", "Bash"),)))
    fourth = await start_service()
    for act in (fourth.send, fourth.fork):
        with pytest.raises(PermissionDenied, match="record"):
            await act(session.id, "hello")
        with pytest.raises(SessionNotFound):
            await act(session.id, "hello", caller=Caller("alice"))
    assert fourth.sessions() == []


@pytest.mark.soak  # nor does clearing give a new one: test_clear.py
async def test_a_spent_budget_stays_spent(start_service: StartService, sandbox: Sandbox) -> None:
    first = await start_service()
    dear = script("spend", text("x", usage={"input_tokens": 10**6, "output_tokens": 10**5}))
    session, _ = await run(first, dear, options(sandbox, max_budget_usd=0.5))
    second = await restarted(start_service, first)
    for more in (second.send, second.fork):
        with pytest.raises(LimitReached, match="budget"):
            await more(session.id, "more")
        assert second.sessions() == []


async def stays_cancelled(start_service: StartService, service: Service, session_id: str) -> None:
    again = await restarted(start_service, service)
    assert (await again.find(session_id)).state is State.CANCELLED
    with pytest.raises(Cancelled):
        await again.send(session_id, "hello")
    assert (await again.stored.last_states([session_id])) == {session_id: State.CANCELLED}


async def test_a_session_that_another_server_cancelled_takes_no_more_messages_and_stays_cancelled(
    start_service: StartService, sandbox: Sandbox
) -> None:
    here, there = await start_service(), await start_service()
    session, _ = await run(here, script("one", "first"), options(sandbox))
    await parked(session)
    await there.cancel(session.id)
    with pytest.raises(Cancelled):
        await here.send(session.id, "hello")
    await stays_cancelled(start_service, there, session.id)


@pytest.mark.soak  # and elsewhere: the test above
async def test_a_session_that_another_server_has_at_hand_is_cancelled_there_and_stays_cancelled(
    start_service: StartService, sandbox: Sandbox
) -> None:
    here, there = await start_service(), await start_service()
    work = script("work", tool("Bash", command=ENDLESS))
    session = (await here.create(work, options(sandbox, allowed_tools=("Bash",)))).session
    await until(session, lambda: uses_tool(session))
    assert (await there.find(session.id)).state is State.RUNNING
    assert await there.stored.last_states([session.id]) == {session.id: State.RUNNING}
    with pytest.raises(SessionBusy):
        await there.cancel(session.id)
    await here.cancel(session.id)
    await session.closed()
    with pytest.raises(Cancelled):
        await there.send(session.id, "hello")
    await stays_cancelled(start_service, here, session.id)


@pytest.mark.soak  # so it is told: test_single_writer.py
async def test_spending_of_another_server_counts(start_service: StartService, sandbox: Sandbox) -> None:
    here, there = await start_service(), await start_service()
    session, _ = await run(here, script("one", "first"), options(sandbox, max_budget_usd=5.0))
    await parked(session)
    await say(there, session.id, script("two", "second"))
    await parked(there.session(session.id))
    before = there.session(session.id).spent_usd
    outcome = await say(here, session, script("three", "third"))
    assert here.session(session.id).spent_usd == pytest.approx(before + outcome.usage.cost_usd)


async def test_a_session_that_was_refused_leaves_no_record(service: Service, sandbox: Sandbox) -> None:
    with pytest.raises(ClaudeCodeError, match="delegate"):
        await service.create("hello", options(sandbox, permission_mode="delegate"))
    assert rows(sandbox) == []


async def test_no_session_runs_that_cannot_be_recorded(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service()
    service.state.write(lambda db: db.execute("DROP TABLE sessions"))
    with pytest.raises(ClaudeCodeError, match="written"):
        await service.create("hello", options(sandbox))
    assert service.sessions() == []


async def test_no_service_starts_on_a_state_that_cannot_be_used(start_service: StartService, sandbox: Sandbox) -> None:
    (sandbox.root / "state").mkdir()
    (sandbox.root / "state" / "state.sqlite3").write_text("This is no database, whatever its name may say. " * 50)
    with pytest.raises(StateUnavailable, match="damaged"):
        await start_service()


# -- allowed for the session ----------------------------------------------------------------------------------------

ODD = "touch odd 'a (b), c'"


async def runs_unasked(service: Service, session_id: str, prompt: str, sandbox: Sandbox) -> None:
    made = [sandbox.project / name for name in ("plain", "odd")]
    for path in made:
        path.unlink()
    outcome = await say(service, session_id, prompt)
    assert (outcome.result, outcome.permission_denials) == ("done", ())
    assert all(path.exists() for path in made)


@pytest.mark.parametrize("goes_on_in", [pytest.param("memory", marks=pytest.mark.soak), "another server"])
async def test_earlier_session_allowance_prevents_further_questions(
    start_service: StartService, sandbox: Sandbox, goes_on_in: str
) -> None:
    service = await start_service()
    prompt = script("ask", tool("Bash", command="touch plain"), tool("Bash", command=ODD), "done")
    turn = await service.create(prompt, options(sandbox))
    session = turn.session
    for _ in range(2):
        service.respond(session.id, await question(session), Answer(allow=True, scope=Scope.SESSION))
    assert (await end_of(turn)).ok
    await parked(session)
    if goes_on_in == "another server":
        service = await restarted(start_service, service)
    await runs_unasked(service, session.id, prompt, sandbox)
    assert not (sandbox.project / ".claude").exists()


# -- what is told of a session on disk --------------------------------------------------------------------------------


@pytest.mark.soak
async def test_a_session_on_disk_has_its_output_and_a_cursor_that_stays(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    prompt = script("work", tool("Bash", command="echo heron"), text("one\ntwo"))
    session, _ = await run(first, prompt, options(sandbox, allowed_tools=("Bash",)))
    notice_lines = [one.line for one in session.log.after(0) if hasattr(one, "line")]
    second = await restarted(start_service, first)
    one, two = await second.find(session.id), await second.find(session.id)
    assert [event.line for event in one.log.after(0) if hasattr(event, "line")] == notice_lines
    assert one.readable_lines.tools == session.readable_lines.tools
    cursor = one.log.cursor(one.log.last_seq)
    assert two.log.position(cursor) == one.log.last_seq
    assert one.log.position(session.log.cursor(session.log.last_seq)) is None
    await say(second, session.id, script("more", "three"))
    resumed = second.session(session.id)
    assert resumed.log.position(cursor) == one.log.last_seq
    assert [event.line for event in resumed.log.after(one.log.last_seq) if hasattr(event, "line")] == ["three"]
    third = await restarted(start_service, second)
    found = await third.find(session.id)
    assert found.log.position(cursor) is None
    assert found.log.position(resumed.log.cursor(resumed.log.last_seq)) is None
