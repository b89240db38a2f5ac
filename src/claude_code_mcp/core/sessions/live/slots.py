"""Limits the live processes: their number, their memory, and how many start at once. Decides which idle process makes
room and which start waits.

A slot is granted at once or not at all. A process with a slot then waits for its start in one FIFO queue: for other
starts, for a process that is being closed, and for memory. Its position and the reason can be reported.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ...config import Settings
from ...errors import LimitReached
from ...model.text import size_of
from ...processes import memory
from ...processes.memory import MachineMemory

EXPECTED_BYTES = 160 << 20
"""Assumed bytes of a process that has not been measured yet."""
_MIN_FREE_SHARE = 0.05
"""The share of free machine memory below which idle processes are parked even if other programs use the memory."""
_MEASURE_INTERVAL = 2.0
"""Seconds between two measurements."""


class SlotHolder(Protocol):
    """A session that holds or requests a slot."""

    @property
    def used_at(self) -> float:
        """When it was last in use."""

    @property
    def pid(self) -> int | None:
        """The id of its process; None if it has none."""

    @property
    def can_park(self) -> bool:
        """Whether its process can be closed without losing work."""

    def park(self) -> None:
        """Release the process. Must call `leave`, with the task that closes the process, before it returns."""


@dataclass(slots=True, eq=False)
class StartPlace:
    """A place in the start queue."""

    holder: SlotHolder
    admitted: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """At most `limit` processes live, within `memory_limit` bytes; at most `spawns` of them are starting up."""

    def __init__(
        self, limit: int, spawns: int, memory_limit: int | None = None, memory_wait: float | None = None
    ) -> None:
        """None as the memory limit means no limit. A start that waits for memory longer than `memory_wait` seconds is
        refused; 0 refuses it at once."""
        self.memory_limit = memory_limit
        self._limit = limit
        self._spawns = spawns
        self._memory_wait = memory_wait
        self._holders: set[SlotHolder] = set()
        self._starting: set[StartPlace] = set()
        self._closing: dict[asyncio.Task[None], int] = {}
        """The tasks that end processes, with the bytes of each process."""
        self._queue: list[StartPlace] = []
        self._measured: dict[int, int] = {}
        self._occupied = asyncio.Event()
        self._admitting = False

    @classmethod
    def of(cls, settings: Settings) -> "Slots":
        """The slots for these settings and this machine's memory."""
        found = memory.machine()
        limit = settings.memory_limit_bytes(found.total if found is not None else None)
        return cls(settings.max_sessions, settings.spawn_limit, limit, settings.memory_wait_ms / 1000)

    @property
    def live(self) -> int:
        """How many slots are taken."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """How many processes are in the start queue."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether one more process fits without evicting or delaying another."""
        occupied = len(self._holders) + len(self._closing)
        return occupied < self._limit and not self._queue and not self._memory_missing()

    # -- slots ------------------------------------------------------------------------------------------------

    def take(self, holder: SlotHolder, instead_of: SlotHolder | None = None) -> None:
        """Take a slot: that of another holder whose process it takes over, a free one, or that of the least recently
        used idle holder; else LimitReached."""
        # Unless it was parked in the meantime: then its slot is gone too, and another one is needed.
        if instead_of is not None and instead_of in self._holders:
            self._holders.discard(instead_of)
            self._holders.add(holder)
            return
        if holder not in self._holders and len(self._holders) >= self._limit and not self._evict_one():
            raise LimitReached(
                f"All {self._limit} sessions are busy (MAX_SESSIONS); wait for one to finish or cancel one.",
                limit=self._limit,
            )
        if self._memory_wait == 0 and (missing := self._memory_missing(park=True)):
            raise LimitReached(missing, limit=self.memory_limit)
        self._holders.add(holder)
        self._occupied.set()

    def leave(self, holder: SlotHolder, closing: asyncio.Task[None] | None = None) -> None:
        """Release the slot at once; `closing` is the task that is still ending the old process."""
        if closing is not None and not closing.done():
            # The old process uses memory until it has ended. 0 if its slot, and with it the process, went to another
            # holder.
            self._closing[closing] = (self.memory_of(holder.pid) or 0) if holder in self._holders else 0
            closing.add_done_callback(self._closed)
        self._holders.discard(holder)
        self._admit()

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.pop(closing, None)
        self._admit()

    def _evict_one(self) -> bool:
        """Evict the least recently used idle holder; return whether there was one."""
        can_park = (other for other in self._holders if other.can_park)
        idle = min(can_park, key=lambda other: other.used_at, default=None)
        if idle is not None:
            idle.park()
        return idle is not None

    # -- starts -----------------------------------------------------------------------------------------------

    def enqueue(self, holder: SlotHolder) -> StartPlace:
        """Enter the start queue; `wait_reason` reports it at once. `spawning` or `dequeue` must follow."""
        entry = StartPlace(holder)
        self._queue.append(entry)
        self._admit()
        return entry

    def dequeue(self, entry: StartPlace) -> None:
        """Leave the queue, because the start is over or was abandoned. A second call does nothing."""
        if entry in self._queue:
            self._queue.remove(entry)
        self._starting.discard(entry)
        self._admit()

    @asynccontextmanager
    async def spawning(self, entry: StartPlace) -> AsyncIterator[None]:
        """Context for a start: waits in the queue until the start fits into all limits. LimitReached, with the reason,
        after too long a wait for memory."""
        try:
            await self._admission(entry)
            yield
        finally:
            # It was cancelled while it waited, or it has started.
            self.dequeue(entry)

    async def _admission(self, entry: StartPlace) -> None:
        # At least one measurement interval: before that the usage is unknown.
        timeout = None if self._memory_wait is None else max(self._memory_wait, _MEASURE_INTERVAL)
        while True:
            try:
                # Shielded: a timeout must not cancel the admission itself.
                return await asyncio.wait_for(asyncio.shield(entry.admitted), timeout)
            except TimeoutError:
                # If memory is not the reason, it waits for something else, without a time limit.
                if missing := self._memory_missing():
                    raise LimitReached(missing, limit=self.memory_limit) from None

    def _admit(self) -> None:
        """Start the processes at the head of the queue that fit. Called whenever resources become free; repeated calls
        are harmless."""
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._queue and self._obstacle(park=True) is None:
                entry = self._queue.pop(0)
                if not entry.admitted.done():
                    self._starting.add(entry)
                    entry.admitted.set_result(None)
        finally:
            self._admitting = False

    def _obstacle(self, *, park: bool = False) -> str | None:
        """Why the next start must wait; with `park`, idle processes make room first."""
        if len(self._starting) >= self._spawns:
            return f"{len(self._starting)} other processes are starting"
        if self._closing and len(self._holders) + len(self._closing) > self._limit:
            return "the process of another session is being closed"
        return self._memory_missing(park=park)

    def wait_reason(self, holder: object) -> str | None:
        """The position of a holder in the queue, and what the first one waits for; None if it does not wait."""
        for place, entry in enumerate(self._queue, 1):
            if entry.holder is holder:
                return f"number {place} of {len(self._queue)} waiting to start: {self._obstacle() or 'about to start'}"
        return None

    # -- memory -----------------------------------------------------------------------------------------------

    def memory_of(self, pid: int | None) -> int | None:
        """The bytes of a holder's process tree, as last measured."""
        return None if pid is None else self._measured.get(pid)

    @property
    def memory_used(self) -> int:
        """The bytes of all processes; unmeasured ones count with their expected size."""
        # Queued holders have a slot, but no process yet.
        waiting = {entry.holder for entry in self._queue}
        measured = (self.memory_of(holder.pid) for holder in self._holders if holder not in waiting)
        return sum(EXPECTED_BYTES if size is None else size for size in measured)

    def _memory_missing(self, *, park: bool = False) -> str | None:
        """Why one more process does not fit into the memory; None if it does. A single process always fits."""
        limit = self.memory_limit
        if limit is None:
            return None
        while (used := self.memory_used) and used + EXPECTED_BYTES > limit:
            if not (park and self._evict_one()):
                return (
                    f"Claude Code processes use {size_of(used)} of the {size_of(limit)} that they may use together "
                    "(CLAUDE_CODE_MCP_MEMORY_LIMIT), and none is idle; wait for one to finish or cancel one."
                )
        being_freed = sum(self._closing.values())
        if being_freed and used + being_freed + EXPECTED_BYTES > limit:
            return "waiting for the memory of another session's process, which is being closed"
        return None

    async def watch_memory(self) -> None:
        """Measure all processes repeatedly, and park idle ones while memory is short. Never returns."""
        while True:
            await self._occupied.wait()
            # Sleep first: a slot that was just taken belongs to a process that does not run yet.
            await asyncio.sleep(_MEASURE_INTERVAL)
            await self.measure()
            # No await between the check and `clear`: a slot taken later sets the event again.
            if not self._holders:
                self._occupied.clear()

    async def measure(self) -> None:
        """Measure all processes and the machine, and act on the result."""
        pids = [holder.pid for holder in self._holders if holder.pid is not None]
        measured = await asyncio.to_thread(memory.trees, pids)
        self.take_measurement(measured, await asyncio.to_thread(memory.machine))

    def take_measurement(self, measured: Mapping[int, int | None], machine: MachineMemory | None) -> None:
        """Apply a measurement of all processes and the machine. Parks idle processes, least recently used first, until
        ours are within the limit; one if the machine itself is short of memory."""
        self._measured = {pid: size for pid, size in measured.items() if size is not None}
        while self.memory_limit is not None and self.memory_used > self.memory_limit and self._evict_one():
            pass
        if (
            self.memory_limit is not None
            and machine is not None
            and machine.available < machine.total * _MIN_FREE_SHARE
        ):
            self._evict_one()
        self._admit()
