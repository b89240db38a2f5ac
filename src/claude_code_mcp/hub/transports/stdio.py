"""A server that is a program of ours: newline-delimited JSON on asyncio pipes, tied to our life.

Messages are written from the caller's own task and handed over from the reader's callback, so that no task stands
between the pipe and the session.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from mcp.shared.message import SessionMessage

from ...child_environment import child_environment
from ..configuration import StdioConfig
from ..redaction import Redactor
from ..streams import BufferedInbox, CalledOutbox, Streams, Trouble, parse_message, render_message

log = logging.getLogger(__name__)

LONGEST_LINE = 64 << 20
_STDERR_KEPT = 8 << 10
_GRACE = 2.0
"""Seconds that a server has to end after its input did, and again after SIGTERM."""


async def _nothing() -> None:
    """There is nothing left to end."""


@dataclass(frozen=True, slots=True)
class Leash:
    """A child's command and environment, tied to the life of this process, and what ends all that it leaves."""

    argv: list[str]
    environment: dict[str, str]
    sweep: Callable[[], Awaitable[object]] = _nothing


PutOnLeash = Callable[[list[str], Mapping[str, str]], Leash]


def no_leash(argv: list[str], environment: Mapping[str, str]) -> Leash:
    """A child that ends with its input and with its process group, and by nothing else."""
    return Leash(argv, child_environment(environment))


@asynccontextmanager
async def stdio(
    config: StdioConfig, environment: Mapping[str, str], put_on_leash: PutOnLeash, trouble: Trouble
) -> AsyncIterator[Streams]:
    """Starts the program; ends it, and all that it started, on the way out."""
    variables = {**environment, **config.env}
    leash = put_on_leash([_find(config.command, variables), *config.args], variables)
    child = _Child(Redactor(config))
    loop = asyncio.get_running_loop()
    try:
        with anyio.CancelScope(shield=True):  # cancelled half way, the child would run on with nobody to end it
            await loop.subprocess_exec(
                lambda: child, *leash.argv, cwd=config.cwd, env=leash.environment, **_group_of_its_own()
            )
        yield child.inbox, CalledOutbox(child.send)
    finally:
        with anyio.CancelScope(shield=True):
            await child.stop()
            await leash.sweep()
        trouble.reason = child.last_words


def _find(command: str, environment: Mapping[str, str]) -> str:
    found = shutil.which(command, path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(f"there is no program {command!r}")
    return found


class _Child(asyncio.SubprocessProtocol):
    def __init__(self, redact: Redactor) -> None:
        self.inbox = BufferedInbox(self._hold)
        self._redact = redact
        self._line = bytearray()
        self._skipping = False
        self._stderr = bytearray()
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._read(data)
        else:
            self._stderr += data
            del self._stderr[:-_STDERR_KEPT]

    def _read(self, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._line or self._skipping:
                line = bytes(self._line) + line  # noqa: PLW2901 - the end of what came before
                self._line.clear()
            if not self._skipping:
                self._take(line)
            self._skipping = False
        self._line += rest
        if len(self._line) > LONGEST_LINE:
            log.warning("a line of over %d bytes was skipped", LONGEST_LINE)
            self._line.clear()
            self._skipping = True

    def _take(self, line: bytes) -> None:
        message = parse_message(line)
        if message is not None:
            self.inbox.put(message)
        elif line.strip():
            log.debug("not a message: %s", self._redact(line[:200].decode("utf-8", "replace")))

    def _hold(self, held: bool) -> None:
        pipe = self._transport and self._transport.get_pipe_transport(1)
        if isinstance(pipe, asyncio.ReadTransport):
            (pipe.pause_reading if held else pipe.resume_reading)()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 or (fd == 0 and not self._stopping):
            self.inbox.end()
        if fd == 0:
            self._writable.set()

    def process_exited(self) -> None:
        self._exited.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.inbox.end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, message: SessionMessage) -> None:
        stdin = self._stdin
        if stdin is None or stdin.is_closing():
            raise anyio.BrokenResourceError
        stdin.write(render_message(message).encode() + b"\n")
        if not self._writable.is_set():
            await self._writable.wait()

    @property
    def _stdin(self) -> asyncio.WriteTransport | None:
        pipe = self._transport.get_pipe_transport(0) if self._transport else None
        assert pipe is None or isinstance(pipe, asyncio.WriteTransport)
        return pipe

    @property
    def last_words(self) -> str | None:
        """How it ended, if it did so by itself."""
        code = self._transport.get_returncode() if self._transport else None
        words = self._redact(self._stderr.decode("utf-8", "replace")).strip()
        if code is None or (code <= 0 and self._stopping and not words):
            return None
        how = f"ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return f"{how}: {words[-500:]}" if words else how

    async def stop(self) -> None:
        """End of input, SIGTERM and SIGKILL to its process group. What has left the group is for the leash."""
        if self._transport is None:
            return
        self._stopping = True
        self._hold(False)  # a server that is stuck writing would never see its input end
        if self._stdin is not None:
            self._stdin.close()
        if not await self._gone():
            self._signal("SIGTERM")
            if not await self._gone():
                self._signal("SIGKILL")
                await self._gone()
        self._transport.close()

    async def _gone(self) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), _GRACE)
        return self._exited.is_set()

    def _signal(self, name: str) -> None:
        assert self._transport is not None
        if self._transport.get_returncode() is not None:
            return  # its number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32":
                os.killpg(self._transport.get_pid(), getattr(signal, name))
            else:
                self._transport.kill()


def _group_of_its_own() -> dict[str, Any]:
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
