"""A command on a terminal of its own: what is typed, what it shows, how it ends."""

import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from ..shared.support import PATIENCE, SCRIPT


class Terminal:
    """Runs `claude-code-mcp` with a terminal as its input, output and errors."""

    def __init__(self, environment: Mapping[str, str], directory: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [SCRIPT, *arguments],
            env={**environment, "TERM": "xterm"},
            cwd=directory,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - so that Ctrl-C reaches it
        )
        os.close(slave)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def until(self, wanted: str) -> str:
        """Reads until this is shown, behind what was waited for before; the value is all between."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.shown.find(wanted, self._seen)) < 0:
            assert self._read(deadline), f"{wanted!r} was not shown:\n{self.shown}"
        passed, self._seen = self.shown[self._seen : found], found + len(wanted)
        return passed

    def end(self) -> int:
        """Reads to the end; the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, deadline: float) -> bool:
        readable, _, _ = select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._master, 1 << 16) if readable else b""
        except OSError:  # Linux says so when the other end is closed
            data = b""
        self.shown += data.decode("utf-8", "replace")
        return bool(data)
