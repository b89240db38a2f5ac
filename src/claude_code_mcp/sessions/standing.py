"""Where a session stands: its state, every change of it in the log, and those who wait for one."""

import asyncio
import contextlib

from ..model.events import StateChanged
from ..model.states import BUSY, State, move
from ..store.log import EventLog


class Standing:
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
