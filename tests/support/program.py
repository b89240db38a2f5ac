"""Programs that run while a test does: `claude-code-mcp` or another one, and its output so far.

`claude-code-mcp` is forked from a process that has it loaded (see `warm_commands`). With `real=True` it is started as
users start it, for tests of its start, its command line or its environment.

At the end of the block a program gets SIGTERM. One that does not end within `HANG_SECONDS` is killed and fails the
test, as does an exit code other than the expected ones.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from . import warm_commands
from .waiting import HANG_SECONDS

COMMAND = str(Path(sys.executable).parent / "claude-code-mcp")
"""The path of the installed program."""
OURS = "claude-code-mcp"
Process = warm_commands.WarmProcess | subprocess.Popen[bytes]
_ADDRESS = re.compile(r"\bMCP\b.*(http://\S+/mcp)$", re.MULTILINE)


class Program:
    """A running program. `output` and `errors` are all that it has printed so far."""

    def __init__(self, process: Process, *streams: IO[str]) -> None:
        self.process = process
        self._lines: list[list[str]] = [[] for _ in streams]
        self._changed = threading.Condition()
        self._open = len(streams)
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in zip(streams, self._lines, strict=True)
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    @property
    def output(self) -> str:
        return "".join(self._lines[0])

    @property
    def errors(self) -> str:
        return "".join(self._lines[1])

    @property
    def said(self) -> str:
        """Everything that it has printed, errors last."""
        return self.output + self.errors

    def until_said(self, text: str) -> str:
        """Wait until it has printed this; the value is everything that it has printed."""
        with self._changed:
            self._changed.wait_for(lambda: text in self.said or not self._open, HANG_SECONDS)
        assert text in self.said, f"{text!r} was not printed (exit code {self.process.poll()}):\n{self.said}"
        return self.said

    def until_matched(self, pattern: "re.Pattern[str]") -> str:
        """Wait until it has printed a match of the pattern; the value is its last group."""
        with self._changed:
            found = self._changed.wait_for(lambda: pattern.search(self.said) or not self._open, HANG_SECONDS)
        assert isinstance(found, re.Match), f"no {pattern.pattern} (exit code {self.process.poll()}):\n{self.said}"
        return str(found[found.re.groups])

    def end(self) -> int:
        """SIGTERM, unless it has ended; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for reader in self._readers:
            reader.join(HANG_SECONDS)
        return code


@contextmanager
def started(
    command: Sequence[str],
    environment: Mapping[str, str],
    directory: Path | None = None,
    *,
    real: bool = False,
    exit_codes: Collection[int] | None = (0,),
) -> Iterator[Program]:
    """Run a command, with nothing on its input, until the end of the block; None allows any exit code."""
    (our_output, their_output), (our_errors, their_errors) = os.pipe(), os.pipe()
    process: Process
    with open(os.devnull, "rb") as nothing:
        if command[0] == OURS and not real and os.name == "posix":
            streams = nothing.fileno(), their_output, their_errors
            process = warm_commands.helper().start(command[1:], environment, directory, streams)
        else:
            process = subprocess.Popen(
                [COMMAND if command[0] == OURS else command[0], *command[1:]],
                env=dict(environment),
                cwd=directory,
                stdin=nothing,
                stdout=their_output,
                stderr=their_errors,
            )
    os.close(their_output)
    os.close(their_errors)
    program = Program(
        process, *(os.fdopen(end, encoding="utf-8", errors="replace") for end in (our_output, our_errors))
    )
    try:
        yield program
    finally:
        code = program.end()
    assert exit_codes is None or code in exit_codes, f"exit code {code}:\n{program.said}"


class HttpServer:
    """`claude-code-mcp serve --http`: its address, and the program."""

    def __init__(self, program: Program, url: str) -> None:
        self.program = program
        self.process = program.process
        self.url = url

    @property
    def base(self) -> str:
        return self.url.removesuffix("/mcp")

    @property
    def log(self) -> str:
        return self.program.errors


@contextmanager
def http_server(
    environment: Mapping[str, str],
    directory: Path,
    address: str = "127.0.0.1:0",
    *,
    real: bool = False,
) -> Iterator[HttpServer]:
    """Serve MCP over HTTP until the end of the block; entered when the server listens."""
    command = [OURS, "serve", "--http", address]
    with started(command, environment, directory, real=real, exit_codes=None) as program:
        yield HttpServer(program, program.until_matched(_ADDRESS))
