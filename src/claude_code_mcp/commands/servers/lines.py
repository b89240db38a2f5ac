"""Lines that a person or a pipe gives us, read without standing in anybody's way.

They are read by a thread on the bare descriptor: a terminal, a pipe and a file are all the same to it, and when the
process ends it can simply be left where it is.
"""

import asyncio
import codecs
import os
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16


class Lines:
    """The lines of a descriptor; reading begins when the first one is wanted."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self) -> str | None:
        """The next line, without its end; None when there are no more, however often that is asked."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, daemon=True).start()
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    def _read(self) -> None:
        for line in _lines_of(self._descriptor):
            if not self._give(line):
                return
        self._give(None)

    def _give(self, line: str | None) -> bool:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:  # the loop has ended, and nobody wants lines any more
            return False
        return True


def _lines_of(descriptor: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := _chunk(descriptor):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest


def _chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:  # a terminal that was closed
        return b""
