"""Frames for any number of watchers, kept once: a ring of bytes in which every watcher has a place of its own.

Adding a frame costs the same however many watch, and never waits. A watcher that falls behind the oldest frame is told
of the gap and goes on there. Watchers at the same place get the very same bytes.
"""

import asyncio
from collections import deque
from itertools import islice
from typing import NamedTuple

from .event_frames import Frame

_MOST_FRAMES = 4096
_MOST_BYTES = 8 << 20
_LONGEST_READ = 256 << 10


class Read(NamedTuple):
    """Frames that follow one another."""

    begin: int
    end: int
    data: bytes
    last_seq: int
    """The newest event among them; 0 if there is none."""


class Ring:
    """The latest frames of one source."""

    def __init__(self, most_frames: int = _MOST_FRAMES, most_bytes: int = _MOST_BYTES) -> None:
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._start = 0
        """The place of the oldest frame."""
        self.dropped_seq = 0
        """The event of the newest frame that is gone."""
        self._wakes: set[asyncio.Event] = set()
        self._latest = Read(0, 0, b"", 0)

    @property
    def end(self) -> int:
        """The place behind the newest frame."""
        return self._start + len(self._frames)

    @property
    def watched(self) -> bool:
        return bool(self._wakes)

    def add(self, frame: Frame) -> None:
        """Adds a frame; `wake` tells the watchers of it."""
        self._frames.append(frame)
        self._bytes += len(frame.data)
        while len(self._frames) > 1 and (len(self._frames) > self._most_frames or self._bytes > self._most_bytes):
            oldest = self._frames.popleft()
            self._bytes -= len(oldest.data)
            self._start += 1
            self.dropped_seq = max(self.dropped_seq, oldest.seq)

    def wake(self) -> None:
        for event in self._wakes:
            event.set()

    def join(self, wake: asyncio.Event) -> "RingPlace":
        """A place at the end; `wake` is set whenever there may be more. Must be left."""
        self._wakes.add(wake)
        return RingPlace(self, wake)

    def leave(self, wake: asyncio.Event) -> None:
        self._wakes.discard(wake)

    def read(self, place: int) -> Read:
        """The frames from a place on that are still there, within a size."""
        begin = max(place, self._start)
        if self._latest.begin == begin and self._latest.end == self.end:
            return self._latest
        parts: list[bytes] = []
        size, last_seq = 0, 0
        for frame in islice(self._frames, begin - self._start, None):
            if parts and size + len(frame.data) > _LONGEST_READ:
                break
            parts.append(frame.data)
            size += len(frame.data)
            last_seq = max(last_seq, frame.seq)
        found = Read(begin, begin + len(parts), b"".join(parts), last_seq)
        if found.end == self.end:
            self._latest = found
        return found


class RingPlace:
    """Where one watcher is."""

    def __init__(self, ring: Ring, wake: asyncio.Event) -> None:
        self._ring = ring
        self._wake = wake
        self._next = ring.end
        self._last_seq = 0

    def read(self) -> tuple[bytes, tuple[int, int] | None]:
        """What is new, empty if nothing is; and the first and last event that were lost before it, if any were."""
        found = self._ring.read(self._next)
        lost = (self._last_seq + 1, self._ring.dropped_seq) if found.begin > self._next else None
        self._next, self._last_seq = found.end, max(self._last_seq, found.last_seq)
        return found.data, lost

    def reached(self, seq: int) -> None:
        """The watcher has everything up to this event by other means."""
        self._last_seq = max(self._last_seq, seq)

    def leave(self) -> None:
        self._ring.leave(self._wake)
