"""A program on this machine as an MCP server, on its stdin and stdout.

Messages are written in the caller's own task and delivered from the reader's callback, without a task between the pipe
and the session.
"""

import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import anyio
from mcp.shared.message import SessionMessage

from ...core.processes.child import ChildProcess, Exit
from ...core.processes.environment import child_environment
from ...core.processes.line_splitter import MAX_LINE, LineSplitter, Oversized
from ..config_entry import StdioConfig
from ..streams import BufferedInbox, CallbackOutbox, Streams, TransportFailure, parse_message, render_message
from .failure_reasons import stderr_summary

log = logging.getLogger(__name__)

_LOGGED = 200

ChildEnvironment = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]
"""Maps the variables of a server to the environment of its program, and the mark in it."""


def unmarked(variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables without those that no child may get, and without a mark."""
    return child_environment(variables), ""


@asynccontextmanager
async def stdio(
    name: str,
    config: StdioConfig,
    environment: Mapping[str, str],
    child_environment_of: ChildEnvironment,
    failure: TransportFailure,
) -> AsyncIterator[Streams]:
    """Start the program; on exit stop it (end of input, SIGTERM, SIGKILL, each after `failure.grace` seconds) with all
    processes that it started. Neither start nor stop can be cancelled in between."""
    variables, mark = child_environment_of({**environment, **config.env})
    server = _Server(name, config.secrets_redactor().text, mark)
    argv = [_find_program(config.command, variables, config.cwd), *config.args]
    try:
        with anyio.CancelScope(shield=True):  # if this were cancelled, the child would keep running
            await server.child.start(argv, cwd=config.cwd, environment=variables)
        failure.has_read_input = lambda: server.child.has_read_input
        yield server.inbox, CallbackOutbox(server.send)
    finally:
        # Shielded: the program must not outlive the connection.
        with anyio.CancelScope(shield=True):
            await server.stop(failure.grace)
        # Only now is it known how it ended.
        failure.reason = server.end_reason


def _find_program(command: str, environment: Mapping[str, str], cwd: str | None) -> str:
    if cwd is not None and os.path.dirname(command):  # a path leads from where the program runs
        command = os.path.join(cwd, command)
    program = shutil.which(command, path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"there is no program {command!r}")
    return program


class _Server:
    """The child process of a server: turns its lines into messages, and reports how it ended."""

    def __init__(self, name: str, redact: Callable[[str], str], mark: str) -> None:
        self.child = ChildProcess(self, "the server", mark=mark, owner=f"MCP server {name}")
        self._name = name
        self.inbox = BufferedInbox(self.child.pause_reading)
        self._redact = redact
        self._lines = LineSplitter()
        self._ended_by_itself = False

    def output_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if isinstance(line, Oversized):
                log.warning("MCP server %s: a line of over %d bytes was skipped", self._name, MAX_LINE)
            else:
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        message = parse_message(line)
        if message is not None:
            self.inbox.put(message)
        elif line.strip() and log.isEnabledFor(logging.DEBUG):
            # Reads far more than is shown: a truncated secret could not be recognized.
            text = self._redact(line[: 100 * _LOGGED].decode("utf-8", "replace"))
            log.debug("MCP server %s: not a message: %s", self._name, text[:_LOGGED])

    def output_ended(self) -> None:
        # Before its exit is known: the connection stops a program that has closed its output.
        self._ended_by_itself = not self.child.stopping
        # Whichever of the three comes first: messages added before that are still read.
        self.inbox.end()

    def input_closed(self) -> None:
        self.inbox.end()

    def child_ended(self, exit_: Exit) -> None:
        self.inbox.end()

    async def send(self, message: SessionMessage) -> None:
        if not self.child.input_open:
            raise anyio.BrokenResourceError
        self.child.write(render_message(message).encode() + b"\n")
        await self.child.drained()

    @property
    def end_reason(self) -> str | None:
        """How the program ended, with the end of its stderr; None if we stopped it."""
        code = self.child.returncode
        summary = stderr_summary(self._redact(self.child.stderr))
        by_us = self.child.stopping and not self._ended_by_itself
        if code is None or (code <= 0 and by_us and not summary):
            return None
        how = self.child.cause or Exit(code, "").how
        return f"{how}: {summary}" if summary else how

    async def stop(self, grace: float) -> None:
        if self.child.started:
            await self.child.stop(grace)
