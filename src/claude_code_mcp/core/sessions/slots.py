"""Limits on live processes: how many at once, how much memory, how many starting at once; who makes room, who waits.

A slot is had at once or not at all. A process with a slot then waits for its start in one queue, first come, first
served: for others that are starting, for one that is still being closed, and for memory. Whoever waits can be told its
place and what for.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ..config import Settings
from ..errors import LimitReached
from ..model.text import size_of
from ..processes import limits
from ..processes.limits import MachineMemory

EXPECTED = 160 << 20
"""Bytes that a process counts for until it has been measured."""
_LOW = 0.05
"""The share of the machine's memory below which idle processes are parked even where ours are not what uses it."""
_INTERVAL = 2.0
"""Seconds between two measurements."""


class SlotHolder(Protocol):
    """A session that holds a slot, or wants one."""

    @property
    def used_at(self) -> float:
        """When it was last in use."""

    @property
    def pid(self) -> int | None:
        """Its process, if that runs."""

    @property
    def can_park(self) -> bool:
        """Whether its process can be closed without losing work."""

    def park(self) -> None:
        """Gives up the process. It must call `leave`, with the task that closes the process, before it returns."""


@dataclass(slots=True, eq=False)
class StartPlace:
    """A place in the line of those that wait for their start."""

    holder: SlotHolder
    admitted: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Slots:
    """At most `limit` processes live, within `memory_limit` bytes; at most `spawns` of them are starting up."""

    def __init__(
        self, limit: int, spawns: int, memory_limit: int | None = None, memory_wait: float | None = None
    ) -> None:
        """Without a memory limit none is kept. A start that waits for memory longer than `memory_wait` seconds is
        refused; 0 refuses it at once."""
        self.memory_limit = memory_limit
        self._limit = limit
        self._spawns = spawns
        self._memory_wait = memory_wait
        self._holders: set[SlotHolder] = set()
        self._starting: set[StartPlace] = set()
        self._closing: dict[asyncio.Task[None], int] = {}
        """The tasks that end processes, with the bytes that each of those was using."""
        self._queue: list[StartPlace] = []
        self._measured: dict[int, int] = {}
        self._occupied = asyncio.Event()
        self._admitting = False

    @classmethod
    def of(cls, settings: Settings) -> "Slots":
        """As the settings say, on a machine with as much memory as this one."""
        found = limits.machine()
        limit = settings.memory_limit_bytes(found.total if found is not None else None)
        return cls(settings.max_sessions, settings.spawn_limit, limit, settings.memory_wait_ms / 1000)

    @property
    def live(self) -> int:
        """How many slots are taken."""
        return len(self._holders)

    @property
    def waiting(self) -> int:
        """How many wait for their start."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether one more process can be had without anybody making room for it, or waiting behind it."""
        occupied = len(self._holders) + len(self._closing)
        return occupied < self._limit and not self._queue and not self._memory_missing()

    # -- slots ------------------------------------------------------------------------------------------------

    def take(self, holder: SlotHolder, instead_of: SlotHolder | None = None) -> None:
        """Takes a slot: that of another holder whose process it takes over, or a free one, or that of the least
        recently used idle holder; else LimitReached."""
        # Unless it was parked meanwhile: then its slot is gone too, and another one is needed.
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
        """Gives the slot back at once; `closing` is the task that still ends the old process."""
        if closing is not None and not closing.done():
            # What the old process uses is not free before it is gone.
            # Not if its slot, and with it its process, went to another.
            self._closing[closing] = (self.memory_of(holder.pid) or 0) if holder in self._holders else 0
            closing.add_done_callback(self._closed)
        self._holders.discard(holder)
        self._admit()

    def _closed(self, closing: asyncio.Task[None]) -> None:
        self._closing.pop(closing, None)
        self._admit()

    def _evict_one(self) -> bool:
        """Has the least recently used idle holder give up its process; returns whether there was one."""
        can_park = (other for other in self._holders if other.can_park)
        idle = min(can_park, key=lambda other: other.used_at, default=None)
        if idle is not None:
            idle.park()
        return idle is not None

    # -- starts -----------------------------------------------------------------------------------------------

    def line_up(self, holder: SlotHolder) -> StartPlace:
        """Takes a place in the line; `wait_reason` knows it at once. `spawning` or `leave_line` must follow."""
        entry = StartPlace(holder)
        self._queue.append(entry)
        self._admit()
        return entry

    def leave_line(self, entry: StartPlace) -> None:
        """The start is over, or never came: its place is free. A second call does nothing."""
        if entry in self._queue:
            self._queue.remove(entry)
        self._starting.discard(entry)
        self._admit()

    @asynccontextmanager
    async def spawning(self, entry: StartPlace) -> AsyncIterator[None]:
        """A context around a start: before it is entered, waits in line until the start fits into all limits.
        LimitReached, with the reason, after too long a wait for memory."""
        try:
            await self._admission(entry)
            yield
        finally:
            # It was cancelled while it waited, or it has started.
            self.leave_line(entry)

    async def _admission(self, entry: StartPlace) -> None:
        # Not less than the time of one measurement: before it nobody knows how much is used.
        timeout = None if self._memory_wait is None else max(self._memory_wait, _INTERVAL)
        while True:
            try:
                # Shielded: a wait that runs out must not cancel the admission itself.
                return await asyncio.wait_for(asyncio.shield(entry.admitted), timeout)
            except TimeoutError:
                # If no memory is missing it waits for something else, which has no limit of time.
                if missing := self._memory_missing():
                    raise LimitReached(missing, limit=self.memory_limit) from None

    def _admit(self) -> None:
        """Lets those at the head of the queue start that fit. Called whenever something has become free; who makes room
        calls it again, which changes nothing."""
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
        """The place of a holder in the queue, and what the first in it waits for; None if it does not wait."""
        for place, entry in enumerate(self._queue, 1):
            if entry.holder is holder:
                return f"number {place} of {len(self._queue)} waiting to start: {self._obstacle() or 'about to start'}"
        return None

    # -- memory -----------------------------------------------------------------------------------------------

    def memory_of(self, pid: int | None) -> int | None:
        """The bytes that the process of a holder uses with all that it started, as last measured."""
        return None if pid is None else self._measured.get(pid)

    @property
    def memory_used(self) -> int:
        """The bytes of all processes; those that have not been measured yet count with what is to be expected."""
        # Those that wait have a slot, and no process yet.
        waiting = {entry.holder for entry in self._queue}
        measured = (self.memory_of(holder.pid) for holder in self._holders if holder not in waiting)
        return sum(EXPECTED if size is None else size for size in measured)

    def _memory_missing(self, *, park: bool = False) -> str | None:
        """Why one more process does not fit into the memory; None if it does. A single process always fits."""
        limit = self.memory_limit
        if limit is None:
            return None
        while (used := self.memory_used) and used + EXPECTED > limit:
            if not (park and self._evict_one()):
                return (
                    f"Claude Code processes use {size_of(used)} of the {size_of(limit)} that they may use together "
                    "(CLAUDE_CODE_MCP_MEMORY_LIMIT), and none is idle; wait for one to finish or cancel one."
                )
        being_freed = sum(self._closing.values())
        if being_freed and used + being_freed + EXPECTED > limit:
            return "waiting for the memory of another session's process, which is being closed"
        return None

    async def watch_memory(self) -> None:
        """Measures all processes again and again, and parks idle ones while memory is short. Never returns."""
        while True:
            await self._occupied.wait()
            # First: the slot that has just been taken is that of a process which does not run yet.
            await asyncio.sleep(_INTERVAL)
            await self.measure()
            # Nothing is awaited between the look and `clear`: a slot that is taken later sets the event again.
            if not self._holders:
                self._occupied.clear()

    async def measure(self) -> None:
        """Measures all processes, and the machine, and acts on it."""
        pids = [holder.pid for holder in self._holders if holder.pid is not None]
        measured = await asyncio.to_thread(limits.trees, pids)
        self.take_measurement(measured, await asyncio.to_thread(limits.machine))

    def take_measurement(self, measured: Mapping[int, int | None], machine: MachineMemory | None) -> None:
        """The bytes of each process and of the machine, as they are now. Idle processes are parked, the least recently
        used first, until ours are within the limit; one, if the machine itself is short of memory."""
        self._measured = {pid: size for pid, size in measured.items() if size is not None}
        while self.memory_limit is not None and self.memory_used > self.memory_limit and self._evict_one():
            pass
        if self.memory_limit is not None and machine is not None and machine.available < machine.total * _LOW:
            self._evict_one()
        self._admit()
