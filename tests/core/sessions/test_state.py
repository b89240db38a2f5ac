"""The state and the stall timer, without a process."""

import asyncio

import pytest

from claude_code_mcp.core.model.states import IllegalMove, State
from claude_code_mcp.core.sessions.session_state import StallTimer, StateTracker
from claude_code_mcp.core.transcripts.event_log import EventLog
from tests.support.clock import stopped_clock
from tests.support.waiting import HANG_SECONDS


def tracker() -> StateTracker:
    return StateTracker(EventLog(100, 1 << 20))


async def test_a_question_ends_the_wait_only_for_those_who_want_it() -> None:
    state = tracker()
    state.move(State.RUNNING)
    state.move(State.WAITING)
    assert await state.wait_until_at_rest(HANG_SECONDS, or_waiting=True)
    assert not await state.wait_until_at_rest(0.01, or_waiting=False)


async def test_a_change_wakes_those_who_wait() -> None:
    state = tracker()
    state.move(State.RUNNING)
    waiting = asyncio.create_task(state.wait_until_at_rest(HANG_SECONDS, or_waiting=False))
    await asyncio.sleep(0)
    state.move(State.IDLE)
    assert await waiting


async def test_nothing_follows_a_cancellation() -> None:
    state = tracker()
    state.move(State.CANCELLED)
    with pytest.raises(IllegalMove):
        state.move(State.RUNNING)
    assert state.state is State.CANCELLED


async def test_stall_is_reported_once_and_ends_with_output() -> None:
    reported: list[float] = []
    with stopped_clock() as clock:
        timer = StallTimer(10, lambda: True, reported.append)
        timer.start()
        await clock.advance(9)
        assert (timer.stalled, reported) == (False, [])
        await clock.advance(1)
        assert (timer.stalled, reported) == (True, [10])
        for _ in range(30):
            await clock.advance(1)
        assert reported == [10]
        timer.touch()
        assert (timer.stalled, reported) == (False, [10])
        for _ in range(11):
            await clock.advance(1)
        assert (timer.stalled, reported) == (True, [10, pytest.approx(10, abs=1)])
        timer.stop()
        assert (timer.stalled, len(reported)) == (False, 2)


async def test_output_in_between_is_no_silence() -> None:
    reported: list[float] = []
    with stopped_clock() as clock:
        timer = StallTimer(10, lambda: True, reported.append)
        timer.start()
        for _ in range(10):
            await clock.advance(9)
            timer.touch()
        timer.stop()
    assert reported == []


async def test_silence_is_no_stall_while_no_output_is_expected() -> None:
    reported: list[float] = []
    with stopped_clock() as clock:
        timer = StallTimer(10, lambda: False, reported.append)
        timer.start()
        for _ in range(30):
            await clock.advance(1)
        timer.stop()
    assert reported == []
