"""The state machine of a session, with waiting for states, and the timer that detects a stalled turn."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ..model.events import StateChanged
from ..model.states import BUSY, MOVES, IllegalMove, State
from ..transcripts.event_log import EventLog


class StateTracker:
    """The current state. Every change is checked against the state machine, logged, and wakes all waiting tasks."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._changed = asyncio.Event()
        self.state = State.IDLE

    def move(self, state: State, detail: str = "") -> None:
        """Change the state; IllegalMove if the state machine has no such move. Moving to the current state does
        nothing."""
        if state is self.state:
            return
        if state not in MOVES[self.state]:
            raise IllegalMove(f"{self.state} -> {state}")
        self.state = state
        self._log.append(StateChanged(state, detail))
        # A new event per change: waiting tasks check the state again when they run, and nothing needs to be cleared.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_until_at_rest(self, timeout: float | None, *, or_waiting: bool) -> bool:
        """Wait until no turn is running or, with `or_waiting`, a question is open; return whether that happened in
        time."""
        awaited = BUSY - {State.WAITING} if or_waiting else BUSY
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.state in awaited:
                    await self._changed.wait()
        return self.state not in awaited


class StallTimer:
    """Calls `report` with the seconds, once per silence of at least `limit`, while `expects_output` returns true.

    `touch` runs for every frame, so it only stores the time; the timer looks at that time when it fires and sets
    itself again.
    """

    def __init__(self, limit: float, expects_output: Callable[[], bool], report: Callable[[float], None]) -> None:
        self._limit = limit
        self._expects_output = expects_output
        self._report = report
        self._last_output = 0.0
        self._clock: Callable[[], float] = time.monotonic
        """The event loop's clock, once the timer has been started."""
        self._timer: asyncio.TimerHandle | None = None
        self.stalled = False
        """Whether the limit has passed since the last output."""

    def touch(self) -> None:
        """Note that there was output: the silence restarts."""
        self._last_output = self._clock()
        self.stalled = False

    def start(self) -> None:
        """Restart measuring the silence, even if already running."""
        self._clock = asyncio.get_running_loop().time
        self.touch()
        if self._timer is None:
            self._schedule(self._limit)

    def stop(self) -> None:
        self.stalled = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        silence = self._clock() - self._last_output
        if silence >= self._limit and not self.stalled and self._expects_output():
            self.stalled = True
            self._report(silence)
        # Not again at once: a continuing silence is reported once and then only observed.
        self._schedule(max(self._limit - silence, self._limit / 10))
