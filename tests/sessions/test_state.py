"""The state and the stall timer, without a process."""

import asyncio

import pytest

from claude_code_mcp.model.states import IllegalMove, State
from claude_code_mcp.sessions.state import StallTimer, StateTracker
from claude_code_mcp.store.event_log import EventLog

SOON = 10.0


def tracker() -> StateTracker:
    return StateTracker(EventLog(100, 1 << 20))


async def test_a_question_ends_the_wait_only_for_those_who_want_it() -> None:
    state = tracker()
    state.move(State.RUNNING)
    state.move(State.WAITING)
    assert await state.wait_until_at_rest(SOON, or_waiting=True)
    assert not await state.wait_until_at_rest(0.01, or_waiting=False)


async def test_a_change_wakes_those_who_wait() -> None:
    state = tracker()
    state.move(State.RUNNING)
    waiting = asyncio.create_task(state.wait_until_at_rest(SOON, or_waiting=False))
    await asyncio.sleep(0)
    state.move(State.IDLE)
    assert await waiting


async def test_nothing_follows_a_cancellation() -> None:
    state = tracker()
    state.move(State.CANCELLED)
    with pytest.raises(IllegalMove):
        state.move(State.RUNNING)
    assert state.state is State.CANCELLED


async def test_a_silence_is_reported_once_and_ends_with_output() -> None:
    reported: asyncio.Queue[float] = asyncio.Queue()
    timer = StallTimer(0.02, lambda: True, reported.put_nowait)
    timer.start()
    assert await asyncio.wait_for(reported.get(), SOON) >= 0.02
    seen = [timer.stalled]
    await asyncio.sleep(0.05)
    assert reported.empty()
    timer.touch()
    seen.append(timer.stalled)
    await asyncio.wait_for(reported.get(), SOON)
    timer.stop()
    seen.append(timer.stalled)
    assert seen == [True, False, False]


async def test_silence_is_no_stall_while_no_output_is_expected() -> None:
    reported: list[float] = []
    timer = StallTimer(0.01, lambda: False, reported.append)
    timer.start()
    await asyncio.sleep(0.05)
    timer.stop()
    assert reported == []
