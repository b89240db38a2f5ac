"""New sessions that wait for a machine while all are full: fair between principals, and each knows its position.

Each gateway has a queue of its own, in memory: whoever waits does so in a call, which ends with the gateway anyway. A
machine that was chosen counts one session more until its own reports do, so that what comes at once is not all sent to
the one machine that reports a free slot.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ..errors import LimitReached
from .dispatch import ReportPosition
from .leases import RENEWAL_SECONDS
from .machines import Machine
from .routing import FairQueue, NoMachine, PlacementRequest, choose, demand_of

_RESERVED_SECONDS = 2 * RENEWAL_SECONDS + 0.5
"""By then a machine has reported the session that was sent to it."""
_LOOK_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class _Waiting:
    position: int = 0
    machine: Machine | None = None
    """The one that was chosen, once there is one."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class PlacementQueue:
    """Chooses the machine of each new session of one gateway."""

    def __init__(
        self,
        machines: Callable[[], Sequence[Machine]],
        changed: Callable[[], Awaitable[None]],
        longest_wait: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machines` are those that are there now; `changed` returns when one of them reports something new."""
        self._machines = machines
        self._changed = changed
        self._longest_wait = longest_wait
        self._now = now
        self._queue = FairQueue()
        self._waiting: dict[str, _Waiting] = {}
        self._reserved: list[tuple[str, float]] = []
        """Machine, and until when one more session counts there."""
        self._serving: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    async def place(self, request: PlacementRequest, report: ReportPosition) -> Machine:
        """The machine for a new session, at once or when it is its turn; `report` hears of every position on the way.

        Raises NoMachine where waiting does not help, and LimitReached if the queue is full or no machine has become
        free in time.
        """
        demand = demand_of(request)
        try:
            machine = choose(self._counted(), demand)
            if not self._waiting:
                return self._reserve(machine)
        except NoMachine as full:
            if not full.waiting_helps or self._longest_wait <= 0:
                raise
        ticket, waiting = uuid.uuid4().hex, _Waiting()
        self._queue.add(ticket, request.principal, demand)
        self._waiting[ticket] = waiting
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve_changes())
        self._serve()
        taken = False
        try:
            async with asyncio.timeout(self._longest_wait):
                machine = await self._served(waiting, report)
            taken = True
            return machine
        except TimeoutError:
            raise LimitReached(
                f"No machine has become free within {self._longest_wait:g} s: the session was number "
                f"{waiting.position} of {len(self._queue)} that wait. Try again later.",
                position=waiting.position,
            ) from None
        finally:
            self._leave(ticket, waiting, taken)

    async def _served(self, waiting: _Waiting, report: ReportPosition) -> Machine:
        reported = 0
        while True:
            waiting.moved.clear()  # before the look: what happens during a report is seen in the next round
            if waiting.machine is not None:
                return waiting.machine
            if waiting.position != reported:
                reported = waiting.position
                await report(reported, len(self._queue))
            await waiting.moved.wait()

    def _leave(self, ticket: str, waiting: _Waiting, taken: bool) -> None:
        self._queue.remove(ticket)
        del self._waiting[ticket]
        if waiting.machine is not None and not taken:  # cancelled just when it was its turn
            with suppress(StopIteration):
                self._reserved.remove(next(each for each in self._reserved if each[0] == waiting.machine.id))
        self._serve()
        if not self._waiting and self._serving is not None:
            self._serving.cancel()
            self._serving = None

    async def _serve_changes(self) -> None:
        while True:
            with suppress(TimeoutError):
                # A reservation ends without a report: it is looked for from time to time.
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed()
            self._serve()

    def _serve(self) -> None:
        """Gives every machine that is free to the next whom it fits, and everybody their position. Awaits nothing."""
        while (found := self._queue.next(self._counted())) is not None:
            ticket, machine = found
            self._waiting[ticket].machine = self._reserve(machine)
            self._waiting[ticket].moved.set()
        for position, ticket in enumerate(self._queue.order(), 1):
            waiting = self._waiting[ticket]
            if waiting.position != position:
                waiting.position = position
                waiting.moved.set()

    def _reserve(self, machine: Machine) -> Machine:
        self._reserved.append((machine.id, self._now() + _RESERVED_SECONDS))
        return machine

    def _counted(self) -> list[Machine]:
        """The machines, with the sessions that are on their way to them."""
        now = self._now()
        self._reserved = [each for each in self._reserved if each[1] > now]
        coming = [machine_id for machine_id, _ in self._reserved]
        return [replace(each, sessions=each.sessions + coming.count(each.id)) for each in self._machines()]
