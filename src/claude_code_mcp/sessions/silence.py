"""Watches for silence: a turn in which nothing is heard for long is reported, never ended."""

import asyncio
import time
from collections.abc import Callable


class Silence:
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
