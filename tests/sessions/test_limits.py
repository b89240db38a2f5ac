"""How many processes live and start at once, who makes way, and what ends by itself."""

import asyncio

import pytest

from claude_code_mcp.errors import InvalidArgument, LimitReached, SessionNotFound
from claude_code_mcp.model.events import ProcessChanged
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing import Sandbox, install_misbehaving_cli
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import ENDLESS, PATIENCE, end_of, event, events, options, run, say, until


async def idle(service: Service, sandbox: Sandbox, count: int) -> list[Session]:
    return [(await run(service, script("one", f"{number}"), options(sandbox)))[0] for number in range(count)]


async def busy(service: Service, sandbox: Sandbox) -> Session:
    given = options(sandbox, allowed_tools=("Bash",))
    session = (await service.create(script("work", tool("Bash", command=ENDLESS)), given)).session
    await until(session, lambda: bool(session.readable_lines.tools))
    return session


async def test_the_least_recently_used_idle_session_makes_room(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(max_sessions=2)
    first, second = await idle(service, sandbox, 2)
    await say(service, first, script("again", "used"))
    [third] = await idle(service, sandbox, 1)
    assert [one.live for one in (first, second, third)] == [True, False, True]
    assert [one.change for one in events(second, ProcessChanged)] == ["started", "parked"]
    assert (await say(service, second, script("back", "resumed"))).result == "resumed"
    assert [one.live for one in (first, second, third)] == [False, True, True]


async def test_busy_sessions_are_never_parked(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(max_sessions=2)
    working = await busy(service, sandbox)
    [first] = await idle(service, sandbox, 1)
    [second] = await idle(service, sandbox, 1)
    assert [one.live for one in (working, first, second)] == [True, False, True]


async def test_when_all_are_busy_the_newcomer_is_refused_and_leaves_nothing(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(max_sessions=1)
    [parked] = await idle(service, sandbox, 1)
    working = await busy(service, sandbox)
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


async def test_a_session_that_cannot_start_gives_its_slot_back(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(max_sessions=1)
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            await service.create("hello", options(sandbox, permission_mode="delegate"))
        turn = await service.create("hello", options(sandbox, executable="/bin/false"))
        session = turn.session
        assert (await end_of(turn)).code is OutcomeCode.START_FAILED
        await session.closed()
    assert len(await idle(service, sandbox, 1)) == 1


async def test_idle_processes_are_parked_after_a_while(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(idle_park_ms=100, cleanup_interval_ms=100)
    session, _ = await run(service, script("one", "first"), options(sandbox))
    await until(session, lambda: not session.live)
    assert session.state is State.IDLE
    assert service.session(session.id) is session
    assert (await say(service, session, script("two", "second"))).result == "second"


async def test_sessions_leave_memory_after_a_while_but_not_the_disk(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(session_ttl_ms=100, cleanup_interval_ms=50)
    session, _ = await run(service, script("one", "first"), options(sandbox))
    with service.watch(session.id) as watching:
        async with asyncio.timeout(PATIENCE):
            async for _ in watching:  # the log is closed with the session
                pass
    with pytest.raises(SessionNotFound):
        service.session(session.id)
    await session.closed()
    outcome = await say(service, session.id, script("two", "second"))
    assert outcome.result == "second"


async def test_a_turn_that_runs_for_too_long_is_ended(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(running_session_max_ms=1500, cleanup_interval_ms=50)
    given = options(sandbox, allowed_tools=("Bash",))
    turn = await service.create(script("work", tool("Bash", command=ENDLESS)), given)
    session = turn.session
    assert (await end_of(turn)).code is OutcomeCode.TIMEOUT
    assert (session.state, session.busy) == (State.ERROR, False)


async def test_only_so_many_processes_start_at_once(start_service: StartService, sandbox: Sandbox) -> None:
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
