"""Splits the output of a process into lines."""

from dataclasses import dataclass

MAX_LINE = 64 << 20
_HEAD = 200


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line longer than the limit: its length and its beginning."""

    length: int
    head: bytes


class LineSplitter:
    """Splits a byte stream into lines, independent of how the bytes arrive. Skips blank lines. A line may be huge (a
    large edit, an image), so its pieces are joined once, when it is complete. A line over the limit is dropped and
    reported as `Oversized` at its end; the stream continues after it."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        """The lines that this data completes."""
        first, *rest = data.split(b"\n")
        self._hold(first)
        if not rest:
            return []
        tail = rest.pop()
        lines = self._finish()
        # Then no line that lies within this data can be too long, and none has to be counted.
        if len(data) <= self._limit:
            lines += filter(None, rest)
        else:
            for line in rest:
                self._hold(line)
                lines += self._finish()
        self._hold(tail)
        return lines

    def close(self) -> list[bytes | Oversized]:
        """The last line, if the stream ended without a newline."""
        return self._finish()

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        fitted = self._length <= self._limit
        self._length += len(piece)
        if self._length <= self._limit:
            self._pieces.append(piece)
        elif fitted:
            self._pieces = [b"".join(part[:_HEAD] for part in (*self._pieces, piece))[: min(_HEAD, self._limit)]]

    def _finish(self) -> list[bytes | Oversized]:
        pieces, length = self._pieces, self._length
        self._pieces, self._length = [], 0
        if length > self._limit:
            return [Oversized(length, pieces[0])]
        return [b"".join(pieces)] if pieces else []
