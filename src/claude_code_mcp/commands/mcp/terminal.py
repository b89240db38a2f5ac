"""Where the interactive client reads and writes: a terminal with a prompt, or plain pipes."""

import asyncio
import codecs
import os
import sys
import threading
from collections.abc import Iterator

from .render import clean

_ERASE = "\r\x1b[K"


class Screen:
    """News may come at any time; in a terminal it goes above the prompt."""

    def __init__(self) -> None:
        self.terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.errors = 0
        self._lines = InputLines()
        self._prompt = ""

    def tell(self, text: str) -> None:
        self._erase()
        print(clean(text) if self.terminal else text, flush=True)
        self._show()

    def complain(self, text: str) -> None:
        self.errors += 1
        self._erase()
        print(f"error: {' '.join(clean(text).split())}", file=sys.stderr, flush=True)
        self._show()

    async def next_line(self, prompt: str) -> str | None:
        """The next line; None when there are no more."""
        self._prompt = prompt if self.terminal else ""
        self._show()
        try:
            return await self._lines.next()
        finally:
            self._prompt = ""

    def _erase(self) -> None:
        """The prompt, or the line that shows how far a call is."""
        if self.terminal:
            print(_ERASE, end="")

    def _show(self) -> None:
        if self._prompt:
            print(self._prompt, end="", flush=True)


_CHUNK = 1 << 16


class InputLines:
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
