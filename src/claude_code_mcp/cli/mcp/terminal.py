"""Output and input of the `mcp` actions: plain text from servers, tables, progress, and lines of input.

Text from a server may contain control sequences for the terminal; `clean` removes them, and everything printed to a
terminal passes through it.
"""

import asyncio
import codecs
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from ...client.conventions import table
from ...core.model.text import count_of
from ...hub.hub import Hub

_CONTROLS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_MAX_LENGTH = 100
_BAR_WIDTH = 20
ERASE_LINE = "\r\x1b[K"
"""Moves to the beginning of the line and clears it."""


def clean(text: str) -> str:
    """The text without terminal control sequences; line breaks and tabs stay."""
    return _CONTROLS.sub("", text)


def one_line(text: str | None, longest: int = _MAX_LENGTH) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(clean(text or "").split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def print_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    for line in table([head, *([clean(str(cell)) for cell in row] for row in rows)]):
        print(line)


def signature(name: str, schema: Mapping[str, Any] | None) -> str:
    """`name(a, b, c?)`: optional parameters have a question mark."""
    properties = (schema or {}).get("properties")
    required = (schema or {}).get("required") or ()
    names = properties if isinstance(properties, dict) else ()
    parameters = (parameter if parameter in required else f"{parameter}?" for parameter in names)
    return clean(f"{name}({', '.join(parameters)})")


def result_text(result: Mapping[str, Any]) -> str:
    """The result of a call for people: text unchanged, and other contents described in brackets."""
    blocks = [block_text(block) for block in result.get("content") or ()]
    if not blocks and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], indent=2, ensure_ascii=False)
    return "\n".join(blocks)


def block_text(block: Mapping[str, Any]) -> str:
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "image" | "audio" as kind:
            return f"[{kind}: {block.get('mimeType')}, {_decoded_size(block.get('data'))}]"
        case "resource":
            return resource_text(block.get("resource") or {})
        case "resource_link":
            return f"[link: {block.get('uri')} {block.get('name', '')}]"
        case other:
            return f"[{other}]"


def resource_text(resource: Mapping[str, Any]) -> str:
    if isinstance(resource.get("text"), str):
        return str(resource["text"])
    return f"[resource: {resource.get('uri')} {resource.get('mimeType', '')}, {_decoded_size(resource.get('blob'))}]"


def _decoded_size(encoded: object) -> str:
    """The decoded size of a base64 text in bytes."""
    return count_of(len(encoded) * 3 // 4 - encoded[-2:].count("="), "byte") if isinstance(encoded, str) else "empty"


def notification_line(method: str, params: Mapping[str, Any]) -> str:
    """A notification of a server, on one line."""
    if method == "notifications/message":
        return f"{params.get('level')}: {one_line(plain_text(params.get('data')), 1000)}"
    return f"{method} {one_line(plain_text(params), 1000)}".rstrip() if params else method


def plain_text(value: Any) -> str:
    """A string as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class Progress:
    """The progress of one call: one line that changes in a terminal, one line for each step elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        line = progress_line(progress, total, message)
        if self._live:
            self._write(ERASE_LINE + line[: shutil.get_terminal_size().columns - 1])
        else:
            self._write(line + "\n")

    def done(self) -> None:
        """Clears the line, so that the next output begins at its start."""
        if self._live:
            self._write(ERASE_LINE)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def progress_line(progress: float, total: float | None, message: str | None) -> str:
    suffix = f" {one_line(message)}" if message else ""
    if not total or total < 0:
        return f"progress {progress:g}{suffix}"
    full = round(_BAR_WIDTH * min(1.0, max(0.0, progress / total)))
    return f"[{'#' * full}{'-' * (_BAR_WIDTH - full)}] {progress:g}/{total:g}{suffix}"


# -- lines of input ----------------------------------------------------------------------------------------------------


_CHUNK = 1 << 16


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; False for a closed stream."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


class Screen:
    """Output that may arrive at any time: in a terminal it appears above the prompt, which is then shown again."""

    edits = False
    """Whether lines can be edited and completed."""

    def __init__(self) -> None:
        self.is_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
        self.errors = 0
        self._lines = InputLines()
        self._prompt = ""

    def show(self, text: str) -> None:
        """Prints to stdout; in a terminal without control sequences."""
        self._print(clean(text) if self.is_terminal else text, sys.stdout)

    def show_error(self, text: str) -> None:
        """Prints one line to stderr and counts it in `errors`."""
        self.errors += 1
        self._print(f"error: {' '.join(clean(text).split())}", sys.stderr)

    def complete_from(self, hub: Hub, server: str, commands: Mapping[str, tuple[str, str]]) -> None:
        """Completes command lines with a server's features from now on, if lines can be edited."""

    async def read_command(self) -> str | None:
        """The next command; None at the end of the input."""
        return await self.read_line("> ")

    async def read_line(self, prompt: str, choices: Sequence[str] = ()) -> str | None:
        """The next line; None at the end of the input. The prompt is shown only in a terminal."""
        self._prompt = prompt if self.is_terminal else ""
        self._show_prompt()
        try:
            return await self._lines.next()
        finally:
            self._prompt = ""

    def _print(self, text: str, stream: TextIO) -> None:
        if self.is_terminal:  # removes the prompt, or the progress line of a call
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
        """The next line, without its end; None at the end of the input, also for later calls."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, daemon=True).start()
        line = await self._lines.get()
        if line is None:
            # Put back, so that the next reader also sees the end and does not wait forever.
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
            # The queue belongs to the event loop: a line put in directly would not wake the waiting task.
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)
        except RuntimeError:
            return False
        return True


def _read_lines(descriptor: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    with suppress(OSError):  # a terminal that was closed
        while data := os.read(descriptor, _CHUNK):
            *lines, rest = (rest + decoder.decode(data)).split("\n")
            yield from (line.removesuffix("\r") for line in lines)
    if rest:
        yield rest
