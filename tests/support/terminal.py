"""A program on a pseudo-terminal: type as a person does, and wait for the text that a person would see.

The program has its own session, with the terminal as the controlling one, so that Ctrl-C reaches it. Leaving the
block kills the program and closes the terminal. No wait lasts longer than `HANG_SECONDS`.
"""

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS

_PRESS_AGAIN_SECONDS = 5.0


class Terminal:
    """A running program and its terminal. What `until` searches is decided by `view`."""

    def __init__(
        self,
        process: "warm_commands.WarmProcess | subprocess.Popen[bytes]",
        end: int,
        view: "Transcript | Screen | None",
    ) -> None:
        self.process = process
        self._end = end
        self._view = view or Transcript()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a character
        self._seen = 0

    @classmethod
    def ours(
        cls,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        directory: Path | None = None,
        view: "Transcript | Screen | None" = None,
    ) -> "Terminal":
        """Run `claude-code-mcp`, forked from a process that has it loaded. `TERM` is xterm unless it is given."""
        end, theirs = pty.openpty()
        process = warm_commands.helper().start(
            arguments, {"TERM": "xterm", **environment}, directory, (theirs, theirs, theirs), terminal=True
        )
        os.close(theirs)
        return cls(process, end, view)

    @classmethod
    def of(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        directory: Path | None = None,
        view: "Transcript | Screen | None" = None,
        size: tuple[int, int] = (24, 80),
    ) -> "Terminal":
        """Run any program on a terminal of this many rows and columns."""
        end, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        process = subprocess.Popen(
            command,
            env=dict(environment),
            cwd=directory,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - needs the new session
        )
        os.close(theirs)
        return cls(process, end, view)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(HANG_SECONDS)
        os.close(self._end)

    @property
    def shown(self) -> str:
        return self._view.text

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, wanted: str, press: str = "") -> str:
        """Read until this is shown after the text of the previous wait; the value is the text between the two.

        `press` is a key for it, pressed again every few seconds: a dialog that is still being drawn ignores keys.
        """
        deadline, pressed = time.monotonic() + HANG_SECONDS, 0.0
        while (found := self.shown.find(wanted, self._seen)) < 0:
            if press and time.monotonic() - pressed > _PRESS_AGAIN_SECONDS:
                self.type(press)
                pressed = time.monotonic()
            patience = min(deadline, pressed + _PRESS_AGAIN_SECONDS) if press else deadline
            read = self._read(patience)
            again = press and time.monotonic() < deadline and self.process.poll() is None
            assert read or again, f"{wanted!r} is not shown after position {self._seen}:\n{self.shown[-3000:]}"
        passed, self._seen = self.shown[self._seen : found], found + len(wanted)
        return passed

    def end(self) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + HANG_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(HANG_SECONDS)

    def _read(self, deadline: float) -> bool:
        """Whether anything was written before the deadline."""
        readable, _, _ = select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._end, 1 << 16) if readable else b""
        except OSError:  # how Linux reports that the other end is closed
            data = b""
        self._view.feed(self._decoder.decode(data))
        return bool(data)


class Transcript:
    """Everything that was written, escape sequences included."""

    def __init__(self) -> None:
        self.text = ""

    def feed(self, output: str) -> None:
        self.text += output


class Words(Transcript):
    """Everything that was written, without escape sequences, with one space between words."""

    _SEQUENCE = re.compile(
        r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>78c]"
    )

    def __init__(self) -> None:
        super().__init__()
        self._written = ""

    def feed(self, output: str) -> None:
        self._written += output
        self.text = " ".join(self._SEQUENCE.sub(" ", self._written).split())


class Screen:
    """The text on the screen: follows cursor movements and clears. It is as high as there are lines, and never
    scrolls."""

    _ESCAPE = re.compile(r"\x1b(?:\[([0-?]*)[ -/]*([@-~])|[()][A-Z0-9]|[=>78])")

    def __init__(self) -> None:
        self._rows: list[list[str]] = [[]]
        self._row = self._column = 0

    @property
    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self._rows)

    def feed(self, output: str) -> None:
        at = 0
        while at < len(output):
            escape = self._ESCAPE.match(output, at)
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
