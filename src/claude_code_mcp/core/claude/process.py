"""One Claude Code process: the control protocol on the pipes of a child.

Frames reach the owner through a plain call from the reader, in order and at once: there is no queue between the pipe
and the owner, so a slow consumer can neither block the process nor delay a control frame. Only the owner can delay
later frames, with `hold`.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

from ..errors import ProcessFailed
from ..model.image import Image
from ..processes.child import ChildProcess, Exit
from ..processes.limits import USUAL_OPTIONS, ChildOptions
from .model_traffic import ModelTraffic
from .protocol import ControlProtocol, ControlResponse, Frame, Raw, describe

log = logging.getLogger(__name__)

_ENDING = 1.0
"""Seconds that a process with closed input has to exit before it is terminated and then killed."""
_MAX_UNSENT = 64 << 20


class ProcessListener(Interface):
    """The owner of a process. Both calls come from the event loop and must not block."""

    def frame_received(self, frame: Frame) -> None: ...

    def process_ended(self, exit_: Exit) -> None: ...


class ClaudeProcess:
    """A running Claude Code. Created by `start`; ends with `stop` or on its own, reported by `process_ended`."""

    def __init__(self, owner: ProcessListener, mark: str, scratch: Path | None, session_id: str = "") -> None:
        self._owner: ProcessListener = owner
        self._session_id = session_id
        self._protocol = ControlProtocol()
        # Checked once: a check for every fragment of text would slow streams down noticeably.
        self._traced = log.isEnabledFor(logging.DEBUG)
        self._replies: dict[str, asyncio.Future[Raw]] = {}
        self._child = ChildProcess(
            self, "Claude Code", mark=mark, scratch=scratch, owner=f"session {session_id}" if session_id else ""
        )
        self._settled: asyncio.Event = asyncio.Event()
        self.traffic: ModelTraffic | None = None
        """Its model traffic, if this server carries it."""
        self._held: deque[Callable[[], None]] | None = None
        self.exited = self._child.exited
        """Done once the process is gone and all of its output was delivered."""
        self.cleaned = self._child.cleaned
        """Set once its descendants and private files are gone too."""

    @classmethod
    async def start(
        cls,
        owner: ProcessListener,
        argv: Sequence[str],
        *,
        cwd: str,
        environment: Mapping[str, str],
        mark: str,
        session_id: str = "",
        scratch: Path | None = None,
        options: ChildOptions = USUAL_OPTIONS,
    ) -> "ClaudeProcess":
        """Starts it. Raises ProcessFailed for every failure. `session_id` is for the log."""
        process = cls(owner, mark, scratch, session_id)
        try:
            # Sockets: any command of a session could write frames into a pipe.
            options = replace(options, sockets=True)
            await process._child.start(argv, cwd=cwd, environment=environment, options=options)
        except (OSError, ValueError) as error:
            raise ProcessFailed(f"Claude Code could not be started: {error}") from None
        return process

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        return self._child.stderr

    @property
    def alive(self) -> bool:
        return not self.exited.done() and not self._child.stopping

    @property
    def unfinished(self) -> Set[str]:
        """The ids of the user messages whose turn has not ended."""
        return self._protocol.unfinished

    @property
    def open_requests(self) -> int:
        """The number of its requests that wait for our answer."""
        return len(self._protocol.owed)

    # -- speaking ---------------------------------------------------------------------------------------------

    def send(self, text: str, message_id: str, *, images: Sequence[Image] = (), later: bool = False) -> None:
        """Sends a user message."""
        self._write(self._protocol.message(text, message_id, images=images, later=later), "user", message_id)

    async def request(self, subtype: str, *, timeout: float, **fields: Any) -> Raw:
        """Sends a request to the CLI and waits for the answer. Raises ProcessFailed if it refuses, exits or does not
        answer."""
        try:
            reply = self.ask(subtype, **fields)
        except ProcessFailed:
            await asyncio.wait([self.exited], timeout=_ENDING)  # it is about to end, which tells more
            if self.exited.done():
                raise ProcessFailed(self.exited.result().reason) from None
            raise
        try:
            return await asyncio.wait_for(reply, timeout)
        except TimeoutError:
            raise ProcessFailed(f"Claude Code did not answer {subtype!r} within {timeout:g} s.") from None

    def ask(self, subtype: str, **fields: Any) -> "asyncio.Future[Raw]":
        """Writes a request before this call returns, so that everything sent later follows it."""
        request_id, data = self._protocol.request(subtype, fields)
        # Before the future exists: a request that could not be written leaves no future behind. Its reply cannot come
        # before the next await.
        self._write(data, f"control_request/{subtype}", request_id)
        reply: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._replies[request_id] = reply
        reply.add_done_callback(lambda _: self._replies.pop(request_id, None))
        return reply

    def answer(self, request_id: str, response: Raw) -> None:
        """Answers a request of the CLI. Does nothing if it no longer wants the answer or is gone."""
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
        if self.exited.done():
            raise ProcessFailed(self.exited.result().reason)
        if not self._child.input_open:
            if self._child.stopping:
                raise ProcessFailed("Claude Code is being stopped.")
            return  # it is about to end, and its end is reported with the reason
        if self._child.unsent > _MAX_UNSENT:
            raise ProcessFailed("Claude Code does not read its input.")
        self._child.write(data)

    # -- listening --------------------------------------------------------------------------------------------

    def output_received(self, data: bytes) -> None:
        """Some bytes of its stdout."""
        if self._held is None:
            self._deliver_all(self._protocol.receive(data))
        else:
            self._held.append(partial(self.output_received, data))

    def _deliver_all(self, frames: Iterator[Frame]) -> None:
        for frame in frames:
            self._deliver(frame)
            if self._held is not None:
                # The rest stays unparsed: each frame is tracked only when it is delivered, in the order of the stream.
                self._held.append(partial(self._deliver_all, frames))
                return
        if not self._protocol.unfinished:
            self._settled.set()

    def hold(self) -> None:
        """Holds back output after the frame that is being delivered, and the end, until `release`: the owner must
        finish something first."""
        if self._held is None:
            self._held = deque()

    def release(self) -> None:
        """Delivers what was held back, as if it arrived now. Does nothing if nothing is held."""
        # Before the calls: each of them would otherwise find the hold still in place and be held back again.
        waiting, self._held = self._held or deque(), None
        try:
            while waiting:
                waiting.popleft()()
                if self._keep(*waiting):  # the owner has called `hold` again
                    return
        except MemoryError:
            self._child.end_for_memory()

    def _keep(self, *calls: Callable[[], None]) -> bool:
        """Stores calls for `release`; False if nothing is held."""
        if self._held is None:
            return False
        self._held.extend(calls)
        return True

    def _deliver(self, frame: Frame) -> None:
        if self._traced:
            log.debug("<- process %d %s", self.pid, describe(frame))
        if frame.__class__ is ControlResponse and self._protocol.was_asked(frame.id):
            # A reply that is late or repeated is dropped.
            reply = self._replies.pop(frame.id, None)
            if reply is None or reply.done():
                return
            if frame.error is None:
                reply.set_result(frame.response)
            else:
                reply.set_exception(ProcessFailed(f"Claude Code refused: {frame.error}"))
            return
        try:
            self._owner.frame_received(frame)
        except MemoryError:
            raise  # the lost frame may be the one that others wait for: the process is ended
        except Exception:
            log.exception("a frame of session %s could not be handled", self._session_id)

    # -- the end ----------------------------------------------------------------------------------------------

    def output_ended(self) -> None:
        """No more output; a last part without a newline counts as a line."""
        if not self._keep(self.output_ended):
            self._deliver_all(self._protocol.end())

    def input_closed(self) -> None:
        """The process has closed its stdin. Usually it is exiting; otherwise it is stopped, because nothing can reach
        it."""
        loop = asyncio.get_running_loop()
        loop.call_later(_ENDING, self._child.terminate)
        loop.call_later(2 * _ENDING, self._child.kill)

    def child_ended(self, exit_: Exit) -> None:
        """The process is gone: delivers its last output, then fails all open requests, then reports the end to the
        owner."""
        self.output_ended()
        if self._keep(partial(self.child_ended, exit_)):
            return
        self._settled.set()
        # The callbacks that remove them from the dictionary run in a later step of the loop, not in this one.
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(ProcessFailed(exit_.reason))
        self._owner.process_ended(exit_)

    async def settled(self, timeout: float) -> bool:
        """Waits until no user message is unfinished; returns False after `timeout`."""
        # Before the check, with no await in between: an end that comes meanwhile is not missed.
        self._settled.clear()
        if not self._protocol.unfinished or self.exited.done():
            return True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._settled.wait(), timeout)
        return not self._protocol.unfinished

    async def stop(self, timeout: float) -> Exit:
        """Stops in steps: interrupt, end of input, SIGTERM, SIGKILL, everything it started. Each step waits at most
        `timeout`. Cancelling the caller does not stop this half-way."""

        async def interrupt_turn() -> bool:
            """Whether the input may be closed next. With an open question it must stay open: the model would be told
            that the stream closed, and continue."""
            # Without a running turn the interrupt would only cost time: the end of input ends an idle process.
            if self.exited.done() or not (self._protocol.unfinished or self._protocol.owed):
                return True
            try:
                await self.request("interrupt", timeout=timeout, cancel_queued=True)
            except ProcessFailed:
                return False
            return await self.settled(timeout) and not self._protocol.owed

        exit_ = await self._child.stop(timeout, interrupt_turn)
        if exit_ is None:
            raise ProcessFailed(f"Process {self.pid} survived SIGKILL.")
        return exit_
