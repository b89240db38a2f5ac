"""Input and output of the interactive client: a terminal with a prompt, or plain pipes.

`editing.py` is the same for a terminal with line editing, where `prompt_toolkit` is installed.
"""

import asyncio
import codecs
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TextIO

from .candidates import Candidates
from .render import ERASE_LINE, clean

_CHUNK = 1 << 16


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; one that is closed is none."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


class Screen:
    """Output that may come at any time: in a terminal it goes above the prompt, which is then shown again."""

    edits = False
    """Whether lines can be edited and completed."""

    def __init__(self) -> None:
        self.is_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        self.errors = 0
        self._lines = InputLines()
        self._prompt = ""

    def show(self, text: str) -> None:
        """Prints to stdout; in a terminal without what would steer it."""
        self._print(clean(text) if self.is_terminal else text, sys.stdout)

    def show_error(self, text: str) -> None:
        """Prints one line to stderr and counts it in `errors`."""
        self.errors += 1
        self._print(f"error: {' '.join(clean(text).split())}", sys.stderr)

    def complete_with(self, candidates: Candidates) -> None:
        """From now on commands are completed with these, where lines can be edited."""

    async def read_command(self) -> str | None:
        """The next command; None when there are no more."""
        return await self.read_line("> ")

    async def read_line(self, prompt: str, choices: Sequence[str] = ()) -> str | None:
        """The next line; None when there are no more. The prompt is shown in a terminal only."""
        self._prompt = prompt if self.is_terminal else ""
        self._show_prompt()
        try:
            return await self._lines.next()
        finally:
            self._prompt = ""

    def _print(self, text: str, stream: TextIO) -> None:
        if self.is_terminal:  # takes away the prompt, or the line that shows the progress of a call
            print(ERASE_LINE, end="")
        print(text, file=stream, flush=True)
        self._show_prompt()

    def _show_prompt(self) -> None:
        if self._prompt:
            print(self._prompt, end="", flush=True)


class InputLines:
    """The lines of a descriptor, read by a daemon thread that starts when the first line is wanted.

    A thread, because a terminal or file cannot be polled everywhere; a daemon, because a blocking read cannot be
    cancelled and must not keep the process alive.
    """

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def next(self) -> str | None:
        """The next line, without its end; None when there are no more, and from then on always."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, daemon=True).start()
        line = await self._lines.get()
        if line is None:
            self._lines.put_nowait(None)
        return line

    def _read(self) -> None:
        for line in _read_lines(self._descriptor):
            if not self._hand_over(line):
                return
        self._hand_over(None)

    def _hand_over(self, line: str | None) -> bool:
        """Puts a line into the queue from the reading thread; False when the loop has ended."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            return False
        return True


def _read_lines(descriptor: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    while data := _read_chunk(descriptor):
        *lines, rest = (rest + decoder.decode(data)).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest


def _read_chunk(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _CHUNK)
    except OSError:  # a terminal that was closed
        return b""
