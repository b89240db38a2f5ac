"""How many processes live and start at once, who makes way, and what ends by itself."""

import pytest

from claude_code_mcp.core.errors import InvalidArgument, LimitReached
from claude_code_mcp.core.model.events import ProcessChanged
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli

from .support import busy, end_of, event, events, options, run, say, until


async def test_an_idle_session_makes_room_and_when_all_are_busy_the_newcomer_is_refused_and_leaves_nothing(
    start_service: StartService, sandbox: Sandbox
) -> None:
    """Which of several makes room is tested with the slots."""
    service = await start_service(max_sessions=1)
    parked, _ = await run(service, script("one", "first"), options(sandbox))
    working = await busy(service, sandbox)
    assert (parked.live, [one.change for one in events(parked, ProcessChanged)]) == (False, ["started", "parked"])
    with pytest.raises(LimitReached, match="MAX_SESSIONS"):
        await service.create("hello", options(sandbox))
    with pytest.raises(LimitReached, match="MAX_SESSIONS"):
        await service.send(parked.id, "hello")
    with pytest.raises(LimitReached, match="MAX_SESSIONS"):
        await service.fork(parked.id, "hello")
    assert {one.id for one in service.sessions()} == {parked.id, working.id}
    assert (parked.state, parked.turns, working.busy) == (State.IDLE, 1, True)
    await service.interrupt(working.id)
    assert (await say(service, parked, script("now", "there is room"))).result == "there is room"


async def test_a_session_that_cannot_start_gives_its_slot_back_and_an_idle_process_is_parked_after_a_while(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(max_sessions=1, idle_park_ms=100, cleanup_interval_ms=100)
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            await service.create("hello", options(sandbox, permission_mode="delegate"))
        turn = await service.create("hello", options(sandbox, executable="/bin/false"))
        session = turn.session
        assert (await end_of(turn)).code is OutcomeCode.START_FAILED
        await session.closed()
    session, outcome = await run(service, script("one", "first"), options(sandbox))
    assert outcome.ok
    await until(session, lambda: not session.live)
    assert session.state is State.IDLE
    assert service.session(session.id) is session


async def test_concurrent_process_starts_are_limited(start_service: StartService, sandbox: Sandbox) -> None:
    cli = install_misbehaving_cli(sandbox.root / "bin")
    service = await start_service({"MISBEHAVE": "no_init"}, claude_path=str(cli), spawn_limit=1)
    first = (await service.create("one", options(sandbox))).session
    await event(first, ProcessChanged)
    turn = await service.create("two", options(sandbox))
    second = turn.session
    third = (await service.create("three", options(sandbox))).session
    assert [one.live for one in (first, second, third)] == [True, False, False]
    await service.interrupt(second.id)  # one that still waits for its turn costs nobody anything
    assert (await end_of(turn)).code is OutcomeCode.INTERRUPTED
    assert events(second, ProcessChanged) == []
    await service.interrupt(first.id)
    await event(third, ProcessChanged)
    assert third.live
