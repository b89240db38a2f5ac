"""The messages of a query that its client has not read yet."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

_QUEUE_LENGTH = 20_000
_QUEUE_BYTES = 16 << 20
_PIECE_LENGTH = 100
_PIECE_BYTES = 256 << 10
"""The maximum size of a piece, unless it is a single message."""
RawMessage = Mapping[str, Any]


class Numbered(NamedTuple):
    """A message with its number in the stream and its time (Unix seconds)."""

    sequence: int
    message: RawMessage
    at: float
    size: int


class NotificationQueue:
    """An asynchronous iterator over messages, grouped into pieces for sending, for one reader.

    When the reader falls too far behind, the oldest messages are dropped; the gap in the numbers shows it.
    """

    def __init__(self, capacity: int = _QUEUE_LENGTH, max_bytes: int = _QUEUE_BYTES) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._queue: deque[Numbered] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._read = asyncio.Event()
        self._closed = False
        self.lost = 0
        """The number of dropped messages."""

    def put(self, item: Numbered) -> None:
        self._queue.append(item)
        self._bytes += item.size
        # The newest stays, however large it is.
        while len(self._queue) > 1 and (len(self._queue) > self._capacity or self._bytes > self._max_bytes):
            self._next()
            self.lost += 1
        self._read.clear()
        self._more.set()

    def close(self) -> None:
        """End the iteration after everything is read."""
        self._closed = True
        self._more.set()

    async def all_read(self) -> None:
        """Return when the reader is waiting and the queue is empty."""
        while not self._read.is_set():  # more may have arrived in the meantime
            await self._read.wait()

    def __aiter__(self) -> "NotificationQueue":
        return self

    async def __anext__(self) -> list[Numbered]:
        while not self._queue:
            self._read.set()
            if self._closed:
                raise StopAsyncIteration
            # No await between the check and `clear`: a later item sets it again.
            self._more.clear()
            await self._more.wait()
        piece = [self._next()]
        size = piece[0].size
        while self._queue and len(piece) < _PIECE_LENGTH and size + self._queue[0].size <= _PIECE_BYTES:
            piece.append(self._next())
            size += piece[-1].size
        return piece

    def _next(self) -> Numbered:
        item = self._queue.popleft()
        self._bytes -= item.size
        return item
