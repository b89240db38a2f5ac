"""The limit on memory: what a session uses is known, idle ones make room, others wait in line or are refused."""

import pytest

from claude_code_mcp.errors import LimitReached
from claude_code_mcp.model.events import ProcessChanged
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import ENDLESS, end_of, events, options, run, say, until

TOO_LITTLE = "1MiB"
"""Enough for one process, which is always allowed, and for no second one."""
HUNGRY = "python3 -c 'x = bytearray(200 << 20); import time; print(len(x), flush=True); time.sleep(600)'"


async def busy(service: Service, sandbox: Sandbox, command: str = ENDLESS) -> Session:
    given = options(sandbox, allowed_tools=("Bash",))
    session = (await service.create(script("work", tool("Bash", command=command)), given)).session
    await until(session, lambda: bool(session.readable_lines.tools))
    return session


async def test_a_session_tells_what_its_process_and_all_that_it_started_use(service: Service, sandbox: Sandbox) -> None:
    idle, _ = await run(service, script("one", "done"), options(sandbox))
    hungry = await busy(service, sandbox, HUNGRY)
    while (hungry.memory_bytes or 0) < 200 << 20:  # the command is not there at once
        await service._slots.measure()
    assert 20 << 20 < (idle.memory_bytes or 0) < 200 << 20
    idle.evict()
    assert idle.memory_bytes is None


async def test_idle_processes_are_parked_the_least_recently_used_first(service: Service, sandbox: Sandbox) -> None:
    first, second, third = [(await run(service, script("one", "done"), options(sandbox)))[0] for _ in range(3)]
    await say(service, first, script("again", "used"))
    slots = service._slots
    await slots.measure()
    assert [one.live for one in (first, second, third)] == [True, True, True]
    smallest = min(one.memory_bytes or 0 for one in (first, second, third))
    slots.memory_limit = slots.memory_used - smallest // 2  # what an idle process uses varies from one look to the next
    await slots.measure()
    assert [one.live for one in (first, second, third)] == [True, False, True]
    assert [one.change for one in events(second, ProcessChanged)] == ["started", "parked"]
    assert (await say(service, second, script("back", "resumed"))).result == "resumed"
    assert (second.live, third.live) == (True, False)


async def test_a_newcomer_waits_in_line_and_is_told_why(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(memory_limit=TOO_LITTLE)
    working = await busy(service, sandbox)
    turns = [await service.create(script("late", f"{number}"), options(sandbox)) for number in (1, 2)]
    await until(turns[1].session, lambda: turns[1].session.queued is not None)
    for place, turn in enumerate(turns, 1):
        assert turn.session.state is State.STARTING
        assert f"number {place} of 2" in (turn.session.queued or "")
        assert "CLAUDE_CODE_MCP_MEMORY_LIMIT" in (turn.session.queued or "")
    assert working.busy
    await service.cancel(working.id)
    assert [(await end_of(turn)).result for turn in turns] == ["1", "2"]
    assert [turn.session.queued for turn in turns] == [None, None]


async def test_one_that_waits_can_be_cancelled(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(memory_limit=TOO_LITTLE)
    await busy(service, sandbox)
    turn = await service.create("hello", options(sandbox))
    await until(turn.session, lambda: turn.session.queued is not None)
    await service.cancel(turn.session.id)
    await turn.session.closed()
    assert (turn.session.queued, service._slots.waiting) == (None, 0)


async def test_who_has_waited_too_long_is_refused_with_the_reason(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(memory_limit=TOO_LITTLE, memory_wait_ms=1)
    await busy(service, sandbox)
    outcome = await end_of(await service.create("hello", options(sandbox)))
    assert (outcome.code, outcome.error_code) == (OutcomeCode.START_FAILED, LimitReached.code)
    assert "CLAUDE_CODE_MCP_MEMORY_LIMIT" in outcome.detail


async def test_without_patience_a_newcomer_is_refused_at_once_and_leaves_nothing(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(memory_limit=TOO_LITTLE, memory_wait_ms=0)
    idle, _ = await run(service, script("one", "done"), options(sandbox))
    working = await busy(service, sandbox)  # the idle one makes room
    assert not idle.live
    with pytest.raises(LimitReached, match="MEMORY_LIMIT"):
        await service.create("hello", options(sandbox))
    assert {one.id for one in service.sessions()} == {idle.id, working.id}
