"""A growing text in chunks. Pure.

While an answer streams, only its last chunk changes and must be drawn again. A chunk ends at an empty line outside of
code before an unindented line, or when it is too long; code that is split continues in a new code block. Each character
is processed a limited number of times, and at most `MAX_LENGTH` are kept.
"""

MAX_LENGTH = 200_000
"""Maximum characters of one text; the oldest chunks are dropped first."""
_LONG_CHUNK = 4_000
_FENCES = ("```", "~~~")


class ChunkedText:
    def __init__(self, text: str = "") -> None:
        self.chunks: list[str] = []
        """The final chunks, oldest first."""
        self.left_out = 0
        """Characters of the beginning that were dropped, and"""
        self.dropped = 0
        """in how many chunks."""
        self._lines: list[str] = []
        """The complete lines of the last chunk."""
        self._size = 0
        self._kept = 0
        self._rest: list[str] = []
        """The pieces of an incomplete line."""
        self._rest_size = 0
        self._fence = ""
        """The line that opened the current code block."""
        if text:
            self.append(text)

    def append(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for line in whole:
            self._take_line("".join((*self._rest, line)))
            self._rest, self._rest_size = [], 0
        if rest:
            self._rest.append(rest)
            self._rest_size += len(rest)
            # A text without a line break would otherwise be joined again for each fragment, which is quadratic.
            if self._rest_size > _LONG_CHUNK:
                self._take_line("".join(self._rest))
                self._rest, self._rest_size = [], 0

    @property
    def tail(self) -> str:
        """The unfinished chunk; may be empty."""
        return "\n".join((*self._lines, *(("".join(self._rest),) if self._rest else ())))

    @property
    def size(self) -> int:
        return self._kept + self._size + self._rest_size

    @property
    def text(self) -> str:
        """The kept text."""
        return "\n".join(filter(None, (*self.chunks, self.tail)))

    def _take_line(self, line: str) -> None:
        if self._lines and not self._fence and not self._lines[-1].strip() and line[:1].strip():
            self._end_chunk()
        self._lines.append(line)
        self._size += len(line) + 1
        self._follow_fence(line)
        if self._size > _LONG_CHUNK:
            fence = self._fence
            if fence:
                self._lines.append(fence.lstrip()[:3])
            self._end_chunk()
            if fence:
                self._lines, self._size = [fence], len(fence) + 1

    def _follow_fence(self, line: str) -> None:
        mark = line.strip()
        if not self._fence and mark.startswith(_FENCES):
            self._fence = line[:100]
        elif self._fence and mark.startswith(self._fence.strip()[:3]) and not mark.strip(mark[0]):
            self._fence = ""

    def _end_chunk(self) -> None:
        chunk = "\n".join(self._lines)
        self._lines, self._size = [], 0
        self.chunks.append(chunk)
        self._kept += len(chunk)
        while self._kept > MAX_LENGTH:
            gone = len(self.chunks.pop(0))
            self._kept -= gone
            self.left_out += gone
            self.dropped += 1
