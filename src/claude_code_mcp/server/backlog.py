"""What waits for a client to read it. Bounded: one that stops reading costs no more than this, and stops nobody."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

_CAPACITY = 20_000
_MAX_BYTES = 16 << 20


class Numbered(NamedTuple):
    """A message with its place in the stream and its time (Unix seconds)."""

    sequence: int
    message: Mapping[str, Any]
    at: float
    size: int


class Backlog:
    """An asynchronous iterator. Who falls too far behind loses the oldest; the numbers of the rest tell it."""

    def __init__(self, capacity: int = _CAPACITY, max_bytes: int = _MAX_BYTES) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._queue: deque[Numbered] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._read = asyncio.Event()
        self._closed = False
        self.lost = 0
        """How many were dropped."""

    def put(self, item: Numbered) -> None:
        self._queue.append(item)
        self._bytes += item.size
        while len(self._queue) > 1 and (len(self._queue) > self._capacity or self._bytes > self._max_bytes):
            self._next()
            self.lost += 1
        self._read.clear()
        self._more.set()

    def close(self) -> None:
        """Ends the iteration once everything is read."""
        self._closed = True
        self._more.set()

    async def all_read(self) -> None:
        """Returns when the reader has come back for more and there is none, as of this very moment."""
        while not self._read.is_set():  # more may have come between the reader's return and ours
            await self._read.wait()

    def __aiter__(self) -> "Backlog":
        return self

    async def __anext__(self) -> Numbered:
        while not self._queue:
            self._read.set()
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._next()

    def _next(self) -> Numbered:
        item = self._queue.popleft()
        self._bytes -= item.size
        return item
