"""NDJSON framing without I/O: bytes in, whole lines out.

A line may be huge (a large edit, an image), so pieces are joined once, when the line is complete. A line over
the limit is dropped up to its newline and reported as `Oversized`; the stream goes on behind it.
"""

from dataclasses import dataclass

MAX_LINE = 64 << 20


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was longer than the limit: its length so far when it was given up, and how it began."""

    length: int
    head: bytes


class LineSplitter:
    """Splits a byte stream into lines. Blank lines are skipped."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._length = 0
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """The lines that this data completes."""
        first, *rest = data.split(b"\n")
        if not rest:
            return self._hold(first)
        *whole, tail = rest
        lines: list[bytes | Oversized] = self._finish(first)
        lines.extend(line for line in whole if line)
        lines.extend(self._hold(tail))
        return lines

    def close(self) -> list[bytes | Oversized]:
        """What is left when the stream ends without a newline."""
        return self._finish(b"")

    def _hold(self, piece: bytes) -> list[bytes | Oversized]:
        if not piece or self._skipping:
            return []
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length <= self._limit:
            return []
        dropped = Oversized(self._length, self._pieces[0][:200])
        self._reset(skipping=True)
        return [dropped]

    def _finish(self, piece: bytes) -> list[bytes | Oversized]:
        held, skipped = self._pieces, self._skipping
        dropped = self._hold(piece) if self._length + len(piece) > self._limit else []
        self._reset(skipping=False)
        if dropped or skipped:
            return dropped
        line = b"".join((*held, piece)) if held else piece
        return [line] if line else []

    def _reset(self, *, skipping: bool) -> None:
        self._pieces, self._length, self._skipping = [], 0, skipping
