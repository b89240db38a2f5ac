"""Room for live processes: how many at once, how many starting at once, and who makes way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from ..errors import LimitReached


class SlotHolder(Protocol):
    """Whoever holds a slot."""

    @property
    def used_at(self) -> float:
        """When it was last in use."""

    @property
    def evictable(self) -> bool:
        """Whether its process can be closed without harm to anybody."""

    def evict(self) -> None:
        """Gives up the process; must call `leave` with the task that closes it before it returns."""


class Slots:
    """At most `limit` processes live; at most `spawns` of them are starting up."""

    def __init__(self, limit: int, spawns: int) -> None:
        self._limit = limit
        self._spawning = asyncio.Semaphore(spawns)
        self._occupants: set[SlotHolder] = set()
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def live(self) -> int:
        """Slots taken."""
        return len(self._occupants)

    def take(self, newcomer: SlotHolder) -> None:
        """Takes a slot, from the least recently used idle occupant if none is free; else LimitReached."""
        if newcomer not in self._occupants and len(self._occupants) >= self._limit:
            self._make_room()
        self._occupants.add(newcomer)

    def _make_room(self) -> None:
        evictable = (occupant for occupant in self._occupants if occupant.evictable)
        victim = min(evictable, key=lambda occupant: occupant.used_at, default=None)
        if victim is None:
            raise LimitReached(
                f"All {self._limit} sessions are busy (MAX_SESSIONS); wait for one to finish or cancel one.",
                limit=self._limit,
            )
        victim.evict()

    def leave(self, occupant: SlotHolder, closing: asyncio.Task[None] | None = None) -> None:
        """Gives the slot back; `closing` is still at work on the old process."""
        self._occupants.discard(occupant)
        if closing is not None and not closing.done():
            self._leaving.add(closing)
            closing.add_done_callback(self._leaving.discard)

    @asynccontextmanager
    async def spawning(self) -> AsyncIterator[None]:
        """Waits until the old processes are gone that must be, and for a turn to start up."""
        while self._leaving and len(self._occupants) + len(self._leaving) > self._limit:
            await asyncio.wait(self._leaving, return_when=asyncio.FIRST_COMPLETED)
        async with self._spawning:
            yield
