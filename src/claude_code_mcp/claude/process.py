"""The asyncio shell around one Claude Code process.

Frames reach the owner by a plain call from the reader, in order and at once: no queue stands between the pipe and
the owner, so a slow consumer further up can neither block the process nor delay a control frame.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from ..errors import ProcessFailed
from .frames import ControlResponse, Frame, Raw, describe
from .leftovers import sweep
from .protocol import Protocol
from .tether import tether

log = logging.getLogger(__name__)

_STDERR_KEPT = 32 << 10
_DRAIN = 1.0
_MAX_UNSENT = 64 << 20


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended: its code (negative for a signal) and the end of its stderr."""

    code: int
    stderr: str

    @property
    def reason(self) -> str:
        how = f"was ended by {_signal_name(-self.code)}" if self.code < 0 else f"exited with code {self.code}"
        last_words = self.stderr.strip()
        return f"Claude Code {how}" + (f": {last_words[-2000:]}" if last_words else ".")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Owner(Interface):
    """Whoever listens to a process. Both calls come from the event loop and must not block."""

    def frame_received(self, frame: Frame) -> None: ...

    def process_ended(self, exit_: Exit) -> None: ...


class ClaudeProcess:
    """A running Claude Code. Made by `start`; ended by `stop` or by itself, which `process_ended` tells."""

    def __init__(self, owner: Owner, mark: str, scratch: Path | None) -> None:
        self._owner: Owner = owner
        self._mark = mark
        self._scratch = scratch
        self._protocol = Protocol()
        self._traced = log.isEnabledFor(logging.DEBUG)
        self._stderr: deque[bytes] = deque()
        self._stderr_size = 0
        self._replies: dict[str, asyncio.Future[Raw]] = {}
        self._transport: asyncio.SubprocessTransport | None = None
        self._settled: asyncio.Event = asyncio.Event()
        self._cleanup: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[Exit] | None = None
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        """Done once the process is gone and everything it said was handed over."""
        self.cleaned = asyncio.Event()
        """Set once whatever it left behind is gone too."""

    @classmethod
    async def start(
        cls,
        owner: Owner,
        argv: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        mark: str,
        scratch: Path | None = None,
    ) -> "ClaudeProcess":
        """Starts it. Whatever goes wrong before it runs is a ProcessFailed."""
        process = cls(owner, mark, scratch)
        loop = asyncio.get_running_loop()
        try:
            await loop.subprocess_exec(
                lambda: _Pipes(process),
                *tether(list(argv)),
                cwd=cwd,
                env=dict(environment),
                **_detached(),
            )
        except (OSError, ValueError) as error:
            if scratch is not None:
                await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            raise ProcessFailed(f"Claude Code could not be started: {error}") from None
        return process

    def connected(self, transport: asyncio.SubprocessTransport) -> None:
        """The process runs. It may have ended again before `start` returns."""
        self._transport = transport

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def alive(self) -> bool:
        return not self.exited.done() and self._stopping is None

    @property
    def unfinished(self) -> Set[str]:
        """The ids of the user messages whose turn has not ended."""
        return self._protocol.unfinished

    # -- speaking ---------------------------------------------------------------------------------------------

    def send(self, text: str, message_id: str, *, later: bool = False) -> None:
        """Hands over a user message."""
        self._write(self._protocol.message(text, message_id, later=later), "user", message_id)

    async def request(self, subtype: str, *, timeout: float, **fields: Any) -> Raw:
        """Asks the CLI and waits for its answer; ProcessFailed if it refuses, dies or stays silent."""
        try:
            reply = self.ask(subtype, **fields)
        except ProcessFailed:
            await asyncio.wait([self.exited], timeout=_DRAIN)  # it is about to end, which tells more
            if self.exited.done():
                raise ProcessFailed(self.exited.result().reason) from None
            raise
        try:
            return await asyncio.wait_for(reply, timeout)
        except TimeoutError:
            raise ProcessFailed(f"Claude Code did not answer {subtype!r} within {timeout:g} s.") from None

    def ask(self, subtype: str, **fields: Any) -> "asyncio.Future[Raw]":
        """Asks the CLI before this call returns, so that whatever is sent next comes behind it."""
        request_id, data = self._protocol.request(subtype, fields)
        self._write(data, f"control_request/{subtype}", request_id)
        reply: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._replies[request_id] = reply
        reply.add_done_callback(lambda _: self._replies.pop(request_id, None))
        return reply

    def answer(self, request_id: str, response: Raw) -> None:
        """Answers a request of the CLI; a no-op if it no longer wants the answer or is gone."""
        self._reply(self._protocol.answer(request_id, response), "control_response/success", request_id)

    def refuse(self, request_id: str, error: str) -> None:
        """Refuses a request of the CLI."""
        self._reply(self._protocol.refuse(request_id, error), "control_response/error", request_id)

    def _reply(self, data: bytes | None, kind: str, frame_id: str) -> None:
        if data is not None:
            with contextlib.suppress(ProcessFailed):
                self._write(data, kind, frame_id)

    def _write(self, data: bytes, kind: str, frame_id: str) -> None:
        if self._traced:
            log.debug("-> process %d %s id %s %d bytes", self.pid, kind, frame_id, len(data))
        stdin = self._stdin
        if self.exited.done():
            raise ProcessFailed(self.exited.result().reason)
        if stdin.is_closing():
            if self._stopping is not None:
                raise ProcessFailed("Claude Code is being stopped.")
            return  # it is about to end, and will say why
        if stdin.get_write_buffer_size() > _MAX_UNSENT:
            raise ProcessFailed("Claude Code does not read what it is sent.")
        stdin.write(data)

    @property
    def _stdin(self) -> asyncio.WriteTransport:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(0)
        assert isinstance(pipe, asyncio.WriteTransport)
        return pipe

    # -- listening --------------------------------------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        for frame in self._protocol.receive(data):
            self._deliver(frame)
        if not self._protocol.unfinished:
            self._settled.set()

    def _deliver(self, frame: Frame) -> None:
        if self._traced:
            log.debug("<- process %d %s", self.pid, describe(frame))
        if frame.__class__ is ControlResponse:
            self._take_reply(frame)
            return
        try:
            self._owner.frame_received(frame)
        except Exception:
            log.exception("a frame of process %s could not be handled", self._mark)

    def _take_reply(self, frame: ControlResponse) -> None:
        reply = self._replies.pop(frame.id, None)
        if reply is None or reply.done():
            return
        if frame.error is None:
            reply.set_result(frame.response)
        else:
            reply.set_exception(ProcessFailed(f"Claude Code refused: {frame.error}"))

    def stderr_received(self, data: bytes) -> None:
        self._stderr.append(data)
        self._stderr_size += len(data)
        while self._stderr_size > _STDERR_KEPT and len(self._stderr) > 1:
            self._stderr_size -= len(self._stderr.popleft())

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        return b"".join(self._stderr)[-_STDERR_KEPT:].decode("utf-8", "replace")

    # -- the end ----------------------------------------------------------------------------------------------

    def stdin_closed(self) -> None:
        """It can no longer be spoken to. As a rule it is ending; one that is not would never hear of anything."""
        if self._stopping is None:
            loop = asyncio.get_running_loop()
            loop.call_later(_DRAIN, self._terminate)
            loop.call_later(2 * _DRAIN, self._kill)

    def process_exited(self) -> None:
        """The process is gone; its pipes may still hold words, or be held open by a child of its."""
        if self._cleanup is None:
            self._cleanup = asyncio.get_running_loop().create_task(self._clean_up())

    def pipes_closed(self) -> None:
        """Everything it said has arrived."""
        if self.exited.done():
            return
        for frame in self._protocol.end():
            self._deliver(frame)
        assert self._transport is not None
        code = self._transport.get_returncode()
        assert code is not None
        exit_ = Exit(code, self.stderr)
        self.exited.set_result(exit_)
        self._settled.set()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ProcessFailed(exit_.reason))
        try:
            self._owner.process_ended(exit_)
        except Exception:
            log.exception("the end of process %s could not be handled", self._mark)

    async def _clean_up(self) -> None:
        assert self._transport is not None
        try:
            await sweep(self._mark)  # first, since a child may hold the pipes open
            await asyncio.wait([self.exited], timeout=_DRAIN)
            self.pipes_closed()
            self._transport.close()
            if self._scratch is not None:
                await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)
        finally:
            self.cleaned.set()

    async def settled(self, timeout: float) -> bool:
        """Waits until no user message is unfinished; tells whether that came about."""
        self._settled.clear()
        if not self._protocol.unfinished or self.exited.done():
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout)
        return not self._protocol.unfinished

    async def stop(self, timeout: float) -> Exit:
        """The stop ladder: interrupt, end of input, SIGTERM, SIGKILL, sweep. Each step waits `timeout` at most.

        Cancelling the caller does not stop it half way.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._climb_down(timeout))
        return await asyncio.shield(self._stopping)

    async def _climb_down(self, timeout: float) -> Exit:
        if await self._interrupt_quietly(timeout) and not self._protocol.owed:
            await self._ended_by(self._close_stdin, timeout)
        await self._ended_by(self._terminate, timeout)
        await self._ended_by(self._kill, timeout)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.cleaned.wait(), 2 * timeout + _DRAIN)
        if not self.exited.done():
            raise ProcessFailed(f"Process {self.pid} survived SIGKILL.")
        return self.exited.result()

    async def _interrupt_quietly(self, timeout: float) -> bool:
        if self.exited.done() or not (self._protocol.unfinished or self._protocol.owed):
            return True
        try:
            await self.request("interrupt", timeout=timeout, cancel_queued=True)
        except ProcessFailed:
            return False
        return await self.settled(timeout)

    async def _ended_by(self, step: "_Step", timeout: float) -> None:
        if not self.exited.done():
            step()
            await asyncio.wait([self.exited], timeout=timeout)

    def _close_stdin(self) -> None:
        self._stdin.close()

    def _terminate(self) -> None:
        self._signal("SIGTERM")

    def _kill(self) -> None:
        self._signal("SIGKILL")

    def _signal(self, name: str) -> None:
        assert self._transport is not None
        if self._transport.get_returncode() is not None:
            return  # only its pipes are left, and its number may belong to somebody else by now
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if sys.platform != "win32":
                os.killpg(self.pid, getattr(signal, name))
            else:
                self._transport.terminate()


class _Step(Interface):
    def __call__(self) -> None: ...


class _Pipes(asyncio.SubprocessProtocol):
    """Passes what asyncio sees to the process."""

    def __init__(self, process: ClaudeProcess) -> None:
        self._process = process

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._process.connected(transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            self._process.stdout_received(data)
        else:
            self._process.stderr_received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 0:
            self._process.stdin_closed()

    def process_exited(self) -> None:
        self._process.process_exited()

    def connection_lost(self, exc: Exception | None) -> None:
        self._process.pipes_closed()


def _detached() -> dict[str, Any]:
    """A session of its own, so that a Ctrl-C meant for the server does not reach it."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}
