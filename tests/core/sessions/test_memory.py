"""The limit on memory: what a session uses is known, idle ones make room, others wait in line or are refused.

Which ones, and in what order, is tested with the slots.
"""

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.events import ProcessChanged
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import busy, end_of, events, options, run, until, uses_tool

TOO_LITTLE = "1MiB"
"""Enough for one process, which is always allowed, and for no second one."""
HUNGRY = "python3 -c 'x = bytearray(200 << 20); import time; print(len(x), flush=True); time.sleep(600)'"


async def test_a_session_reports_what_its_process_and_all_that_it_started_use_and_is_parked_where_that_is_too_much(
    service: Service, sandbox: Sandbox
) -> None:
    session, _ = await run(service, script("one", "done"), options(sandbox, allowed_tools=("Bash",)))
    slots = service._slots
    await slots.measure()
    assert 20 << 20 < (session.memory_bytes or 0) < 200 << 20
    await service.send(session.id, script("work", tool("Bash", command=HUNGRY)))
    await until(session, lambda: uses_tool(session))
    while (session.memory_bytes or 0) < 200 << 20:  # the command is not there at once
        await slots.measure()
    slots.memory_limit = slots.memory_used // 2
    await slots.measure()
    assert session.live, "it is busy"
    await service.interrupt(session.id)
    slots.memory_limit = 1
    await slots.measure()
    assert (session.live, session.memory_bytes) == (False, None)
    assert [one.change for one in events(session, ProcessChanged)] == ["started", "parked"]


@pytest.mark.soak  # who waits: test_slots.py
async def test_queued_session_reports_the_reason_and_can_be_cancelled(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(memory_limit=TOO_LITTLE)
    working = await busy(service, sandbox)
    turns = [await service.create(script("late", f"{number}"), options(sandbox)) for number in (1, 2)]
    first, second = (turn.session for turn in turns)
    await until(second, lambda: second.queued is not None)
    for place, session in enumerate((first, second), 1):
        assert session.state is State.STARTING
        assert f"number {place} of 2" in (session.queued or "")
        assert "CLAUDE_CODE_MCP_MEMORY_LIMIT" in (session.queued or "")
    assert working.busy
    await service.cancel(second.id)
    await second.closed()
    assert (second.queued, service._slots.waiting) == (None, 1)
    await service.cancel(working.id)
    assert (await end_of(turns[0])).result == "1"
    assert first.queued is None


@pytest.mark.soak
async def test_who_has_waited_too_long_is_refused_with_the_reason(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service(memory_limit=TOO_LITTLE, memory_wait_ms=1)
    await busy(service, sandbox)
    outcome = await end_of(await service.create("hello", options(sandbox)))
    assert (outcome.code, outcome.error_code) == (OutcomeCode.START_FAILED, LimitReached.code)
    assert "CLAUDE_CODE_MCP_MEMORY_LIMIT" in outcome.detail
