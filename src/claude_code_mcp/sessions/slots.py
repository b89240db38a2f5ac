"""Limits on live processes: how many at once, how many starting at once, and which idle one makes room."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from ..errors import LimitReached


class SlotHolder(Protocol):
    """A session that holds a slot, or wants one."""

    @property
    def used_at(self) -> float:
        """When it was last in use."""

    @property
    def evictable(self) -> bool:
        """Whether its process can be closed without losing work."""

    def evict(self) -> None:
        """Gives up the process. It must call `leave`, with the task that closes the process, before it returns."""


class Slots:
    """At most `limit` processes live; at most `spawns` of them are starting up."""

    def __init__(self, limit: int, spawns: int) -> None:
        self._limit = limit
        self._spawns = asyncio.Semaphore(spawns)
        self._holders: set[SlotHolder] = set()
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> int:
        """Slots taken."""
        return len(self._holders)

    def take(self, holder: SlotHolder) -> None:
        """Takes a slot, from the least recently used idle holder if none is free; else LimitReached."""
        if holder not in self._holders and len(self._holders) >= self._limit:
            evictable = (other for other in self._holders if other.evictable)
            idle = min(evictable, key=lambda other: other.used_at, default=None)
            if idle is None:
                raise LimitReached(
                    f"All {self._limit} sessions are busy (MAX_SESSIONS); wait for one to finish or cancel one.",
                    limit=self._limit,
                )
            idle.evict()
        self._holders.add(holder)

    def leave(self, holder: SlotHolder, closing: asyncio.Task[None] | None = None) -> None:
        """Gives the slot back at once; `closing` is the task that still ends the old process."""
        self._holders.discard(holder)
        if closing is not None and not closing.done():
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    @asynccontextmanager
    async def spawning(self) -> AsyncIterator[None]:
        """Around a spawn: waits until the limit holds with closing processes counted, then for a permit to spawn."""
        while self._closing and len(self._holders) + len(self._closing) > self._limit:
            await asyncio.wait(self._closing, return_when=asyncio.FIRST_COMPLETED)
        async with self._spawns:
            yield
