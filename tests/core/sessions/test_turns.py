"""Messages and the turns they start or join."""

import asyncio
import uuid

import pytest

from claude_code_mcp.core.errors import InvalidArgument, SessionBusy, SessionNotFound
from claude_code_mcp.core.model.events import TurnStarted
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.core.state.state_directory import database_in
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool

from .support import (
    PATIENCE,
    SharedSessions,
    end_of,
    events,
    on_shared_loop,
    options,
    say,
    streams,
    until,
    uses_tool,
)

FIRST = script("first", tool("Bash", command="while [ ! -e go ]; do sleep 0.02; done"), "first done")
"""A turn that ends when the file `go` appears."""


@pytest.mark.soak  # tests/server/test_sessions.py
async def test_the_id_is_final_before_anything_has_started(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("say", "hello"), options(sandbox))
    session = turn.session
    assert session.state is State.STARTING
    assert uuid.UUID(session.id)
    assert service.session(session.id) is session
    outcome = await end_of(turn)
    assert (outcome.ok, outcome.result, session.live) == (True, "hello", True)
    assert [path.stem for path in sandbox.home.glob(".claude/projects/*/*.jsonl")] == [session.id]


async def test_messages_sent_while_the_process_starts_are_not_lost(service: Service, sandbox: Sandbox) -> None:
    """In a session that is not persisted, which lives as long as its process."""
    first = await service.create("Hello.", options(sandbox, persist=False))
    session = first.session
    second = await service.send(session.id, script("say", "both heard"))
    assert session.state is State.STARTING
    outcomes = [await end_of(first), await end_of(second)]
    assert all(outcome.ok for outcome in outcomes)
    assert outcomes[-1].result == "both heard"
    assert not session.can_park
    assert (await say(service, session, script("say", "two"))).result == "two"
    assert list(sandbox.home.glob(".claude/projects/*/*.jsonl")) == []
    query = "SELECT session_id FROM sessions"
    records = database_in(sandbox.root / "state").read(lambda db: db.execute(query).fetchall())
    assert records == [], "nor has it a record"
    session.park()
    with pytest.raises(SessionNotFound, match="not persisted"):
        await service.send(session.id, "three")


@on_shared_loop
async def test_a_second_turn_runs_in_the_same_process(shared: SharedSessions) -> None:
    session = await shared.session()
    pid, turns = session.pid, session.turns
    outcome = await say(shared.service, session, script("two", "second"))
    assert (outcome.result, session.pid, session.turns) == ("second", pid, turns + 1)


async def working(shared: SharedSessions) -> tuple[Session, PendingTurn]:
    """A shared session in a turn that ends when the file `go` appears."""
    session = await shared.session(allowed_tools=("Bash",))
    turn = await shared.service.send(session.id, FIRST)
    await until(session, lambda: uses_tool(session))
    return session, turn


@pytest.mark.soak  # tests/server/test_sessions.py
@on_shared_loop
async def test_a_message_in_mid_turn_joins_the_turn(shared: SharedSessions, model: ScriptedModelThread) -> None:
    session, first = await working(shared)
    turns = session.turns
    second = await shared.service.send(session.id, "Mind the gap.")
    (shared.project / "go").touch()
    assert await end_of(first) is await end_of(second)
    assert (await end_of(first)).result == "first done"
    assert session.turns == turns
    assert "Mind the gap." in str(model.requests[-1].body)


@pytest.mark.soak  # behind a turn that was lost: test_unread_messages.py
@on_shared_loop
async def test_a_later_message_becomes_a_turn_of_its_own(shared: SharedSessions) -> None:
    session, first = await working(shared)
    second = await shared.service.send(session.id, script("later", "second done"), busy_mode=BusyMode.QUEUE)
    (shared.project / "go").touch()
    assert [(await end_of(one)).result for one in (first, second)] == ["first done", "second done"]
    *_, one, two = events(session, TurnStarted)
    assert [one.message_id, two.message_id] == [first.message_id, second.message_id]


@on_shared_loop
async def test_a_message_that_comes_too_late_becomes_a_turn_of_its_own(shared: SharedSessions) -> None:
    """The model gives its last answer while the message is on its way: nothing is left that it could join."""
    session = await shared.session()
    turns = session.turns
    slow = script("slow", text("first done", chunks=5, until=str(shared.project / "go")))
    first = await shared.service.send(session.id, slow)
    await until(session, lambda: streams(session))
    second = await shared.service.send(session.id, script("late", "second done"))
    (shared.project / "go").touch()
    assert [(await end_of(one)).result for one in (first, second)] == ["first done", "second done"]
    assert session.turns == turns + 2


@on_shared_loop
async def test_a_queued_turn_can_be_interrupted_as_soon_as_it_has_begun(shared: SharedSessions) -> None:
    service = shared.service
    session, first = await working(shared)
    number = session.turns
    second = await service.send(session.id, script("later", text("slow", delay=30)), busy_mode=BusyMode.QUEUE)
    (shared.project / "go").touch()
    await until(session, lambda: any(one.number > number for one in events(session, TurnStarted)))
    await service.interrupt(session.id)
    assert (await end_of(first)).code is OutcomeCode.COMPLETED
    assert (await end_of(second)).code is OutcomeCode.INTERRUPTED
    assert (await say(service, session, script("go on", "third"))).result == "third"


@on_shared_loop
async def test_a_message_that_wants_a_turn_of_its_own_is_refused_by_a_busy_session(shared: SharedSessions) -> None:
    session, turn = await working(shared)
    with pytest.raises(SessionBusy):
        await shared.service.send(session.id, "hello", busy_mode=BusyMode.REFUSE)
    (shared.project / "go").touch()
    assert (await end_of(turn)).result == "first done"


@pytest.mark.parametrize("words", ["", "  \n"])
async def test_empty_messages_are_refused(service: Service, sandbox: Sandbox, words: str) -> None:
    with pytest.raises(InvalidArgument):
        await service.create(words, options(sandbox))
    assert service.sessions() == []


@on_shared_loop
async def test_wait_returns_at_the_end_of_the_turn_or_at_its_timeout(shared: SharedSessions) -> None:
    session, turn = await working(shared)
    assert (await shared.service.wait(session.id, 0.01)).busy
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(turn.outcome(), 0.01)
    assert not turn.done(), "who gives up waiting does not end the turn"
    (shared.project / "go").touch()
    assert (await shared.service.wait(session.id, PATIENCE)).state is State.IDLE
    assert session.outcome is not None
    assert session.outcome.result == "first done"
    assert turn.done()
    assert (await turn.outcome()).result == "first done", "an outcome can be asked for again"
    assert turn.message_id == events(session, TurnStarted)[-1].message_id


async def test_bypassing_permissions_as_root_is_explained_before_anything_starts(
    service: Service, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(InvalidArgument, match="IS_SANDBOX"):
        await service.create("go", options(sandbox, permission_mode="bypassPermissions"))
    with pytest.raises(InvalidArgument, match="IS_SANDBOX"):
        await service.create("go", options(sandbox, dangerously_skip_permissions=True))
