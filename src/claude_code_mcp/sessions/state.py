"""Where a session stands: its state, every change of it in the log, and those who wait for one."""

import asyncio
import contextlib
import time
from collections.abc import Callable

from ..model.events import StateChanged
from ..model.states import BUSY, State, move
from ..store.event_log import EventLog


class StateTracker:
    """Only legal moves are made; a move to the same state is none."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._pulse = asyncio.Event()
        self.state = State.IDLE

    def move(self, state: State, detail: str = "") -> None:
        """Goes to another state, writes it down and wakes everybody who waits."""
        if state is self.state:
            return
        self.state = move(self.state, state)
        self._log.append(StateChanged(state, detail))
        pulse, self._pulse = self._pulse, asyncio.Event()
        pulse.set()

    async def at_rest(self, timeout: float | None, *, or_waiting: bool) -> bool:
        """Waits until nothing is running, or for a question too; tells whether that came in time."""
        wanted = BUSY - {State.WAITING} if or_waiting else BUSY
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.state in wanted:
                    await self._pulse.wait()
        return self.state not in wanted


class StallTimer:
    """Calls `report` with the seconds once per silence of at least `limit`, while `may_be_heard` says so."""

    def __init__(self, limit: float, may_be_heard: Callable[[], bool], report: Callable[[float], None]) -> None:
        self._limit = limit
        self._may_be_heard = may_be_heard
        self._report = report
        self._heard = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self.long = False
        """Whether it has been silent for too long, as of now."""

    def broken(self) -> None:
        """Something was heard. Called for every frame, so it does no more than take the time."""
        self._heard = time.monotonic()
        self.long = False

    def watch(self) -> None:
        """Silence counts from now on."""
        self.broken()
        if self._timer is None:
            self._look_later(self._limit)

    def stop(self) -> None:
        """Silence is as it should be."""
        self.long = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        silent = time.monotonic() - self._heard
        if silent >= self._limit and not self.long and self._may_be_heard():
            self.long = True
            self._report(silent)
        self._look_later(max(self._limit - silent, self._limit / 10))
