"""A command on a terminal of its own: what is typed, what it shows, how it ends."""

import os
import pty
import re
import select
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS


class Terminal:
    """Runs `claude-code-mcp` with a terminal as its input, output and errors."""

    def __init__(self, environment: Mapping[str, str], directory: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = warm_commands.helper().start(
            arguments, {**environment, "TERM": "xterm"}, directory, (slave, slave, slave), terminal=True
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, wanted: str) -> str:
        """Reads until this is shown, behind what was waited for before; the value is all between."""
        deadline = time.monotonic() + HANG_SECONDS
        while (found := self.shown.find(wanted, self._seen)) < 0:
            assert self._read(deadline), f"{wanted!r} was not shown:\n{self.shown}"
        passed, self._seen = self.shown[self._seen : found], found + len(wanted)
        return passed

    def end(self) -> int:
        """Reads to the end; the exit code."""
        deadline = time.monotonic() + HANG_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(HANG_SECONDS)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 1 << 16) if readable else b""
        except OSError:  # Linux says so when the other end is closed
            data = b""
        self.shown += data.decode("utf-8", "replace")
        return bool(data)


_ESCAPE = re.compile(r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|[()][A-Z0-9]|[=>78])")


class Display:
    """What stands on a terminal after some output: text, the movements of the cursor, and what is cleared. It is as
    high as there are lines, and never scrolls."""

    def __init__(self) -> None:
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._rows)

    def feed(self, output: str) -> None:
        at = 0
        while at < len(output):
            escape = _ESCAPE.match(output, at)
            if escape is not None:
                if escape[2] is not None:
                    self._control(escape[2], escape[1])
                at = escape.end()
                continue
            self._write(output[at])
            at += 1

    def _write(self, character: str) -> None:
        match character:
            case "\n":
                self._move(1)
            case "\r":
                self._column = 0
            case "\x08":
                self._column = max(0, self._column - 1)
            case _ if character >= " ":
                row = self._rows[self._row]
                row.extend(" " * (self._column + 1 - len(row)))
                row[self._column] = character
                self._column += 1

    def _move(self, rows: int) -> None:
        self._row = max(0, self._row + rows)
        self._rows.extend([] for _ in range(self._row + 1 - len(self._rows)))

    def _control(self, final: str, parameters: str) -> None:
        number = int(parameters) if parameters.isdecimal() else None
        match final:
            case "A" | "B":
                self._move((number or 1) * (1 if final == "B" else -1))
            case "C" | "D":
                self._column = max(0, self._column + (number or 1) * (1 if final == "C" else -1))
            case "K":
                del self._rows[self._row][self._column :]
            case "J" if not number:
                del self._rows[self._row][self._column :]
                del self._rows[self._row + 1 :]
