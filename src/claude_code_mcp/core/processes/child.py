"""One child process: started with the strongest containment, read line by line, ended with all its descendants.

| containment  | where | what holds |
| ------------ | ----- | ---------- |
| `supervisor` | Linux | everything that a child starts ends with it, whatever it does to its session, name or environment, also when this process is killed with SIGKILL |
| `marks`      | elsewhere, and on Linux where the supervisor does not start | a child's process group is signaled; what has left the group is found by the mark in its environment, when the child ends or when the next server starts |

Output reaches the listener by a plain call from the reader's callback, in order, with no queue and no task between the
pipe and the listener. Order at the end: all output, then `child_ended`; `cleaned` is set when the descendants have
ended too. A child whose output does not fit into memory is killed, and its exit reports this: the output would be
incomplete, and all other parts of the server need the memory that it occupies.
"""  # noqa: E501 - a table

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from . import supervisor_client
from .leftovers import sweep
from .limits import USUAL_OPTIONS, ChildOptions

log = logging.getLogger(__name__)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.SubprocessProtocol)

_fallback_logged = False


def containment() -> str:
    """The containment that this platform offers: `supervisor` or `marks`."""
    return "supervisor" if supervisor_client.available() else "marks"


def needs_sweep(transport: asyncio.SubprocessTransport) -> bool:
    """Whether the leftovers of a child that ended must be searched for by its mark."""
    return not isinstance(transport, supervisor_client.SupervisedTransport) or transport.reaper_lost


async def prepare() -> None:
    """Prepares the resources that the first child would otherwise wait for. Never fails."""
    if supervisor_client.available():
        with contextlib.suppress(OSError):
            await supervisor_client.prepare()


async def spawn(
    factory: Callable[[], ProtocolT],
    argv: Sequence[str],
    *,
    cwd: str | None,
    environment: Mapping[str, str],
    options: ChildOptions = USUAL_OPTIONS,
) -> tuple[asyncio.SubprocessTransport, ProtocolT]:
    """Starts a program with three pipes. It gets its own session, so that a Ctrl-C meant for us does not reach it, and
    a lower priority than ours, so that busy children do not keep us from answering. `argv[0]` is a path. Raises OSError
    or ValueError if it cannot be started; then nothing runs.

    If the supervisor does not work, the child is started without it; this is logged once, and the next child tries the
    supervisor again.
    """
    global _fallback_logged  # noqa: PLW0603 - once per process is what is wanted
    if supervisor_client.available():
        try:
            return await supervisor_client.spawn(factory, argv, cwd=cwd, environment=environment, options=options)
        # Only this error: a program that cannot be started under the supervisor cannot be started without it either.
        except supervisor_client.SupervisorFailed as error:
            if not _fallback_logged:
                _fallback_logged = True
                log.warning(
                    "the process supervisor is not available (%s): children run without it, and leftover processes "
                    "are found only by their mark",
                    error,
                )
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        factory, *argv, cwd=cwd, env=dict(environment), **_platform_options(options.descriptors)
    )
    if sys.platform != "win32":
        # Set from here: code between fork and exec (`preexec_fn`) may deadlock if there are other threads.
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, transport.get_pid(), supervisor_client.NICENESS)
    return transport, protocol


def _platform_options(descriptors: Sequence[int]) -> dict[str, Any]:
    """Options that put a child into its own process group and, on Windows, lower its priority."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS}
    return {"start_new_session": True, "pass_fds": tuple(descriptors)}


def terminate(transport: asyncio.SubprocessTransport) -> None:
    """Asks a child and its process group to end."""
    _signal(transport, "SIGTERM")


def kill(transport: asyncio.SubprocessTransport) -> None:
    """Ends a child and its process group; under a supervisor, everything that it started."""
    _signal(transport, "SIGKILL")


def _signal(transport: asyncio.SubprocessTransport, name: str) -> None:
    if transport.get_returncode() is not None:
        return  # only its pipes are left, and its number may belong to another process by now
    # It may end between the check above and the signal. On macOS a group of only zombies gives PermissionError.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32" or isinstance(transport, supervisor_client.SupervisedTransport):
            (transport.terminate if name == "SIGTERM" else transport.kill)()
        else:
            os.killpg(transport.get_pid(), getattr(signal, name))


_STDERR_KEPT = 32 << 10
_NO_MEMORY = "the server has no memory left for its output"
_DRAIN = 1.0
"""Seconds to wait for the pipes of a child that ended, because a descendant may hold them open."""
_REMOVAL = 30.0
"""Seconds to wait for the removal of a child's leftovers."""
_DESCENDANTS = 6.0
"""Slightly longer than the supervisor tries to kill descendants that cannot be killed."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended: its code (negative for a signal), the end of its stderr, the program's human-readable name,
    and why we ended it, if we did."""

    code: int
    stderr: str
    program: str = field(default="the program", compare=False)
    cause: str = ""

    @property
    def how(self) -> str:
        return f"ended by {_signal_name(-self.code)}" if self.code < 0 else f"exited with code {self.code}"

    @property
    def reason(self) -> str:
        """A human-readable sentence with the last output of the program."""
        if self.cause:
            return f"{self.program} was stopped: {self.cause}."
        sentence = f"{self.program} {'was ' if self.code < 0 else ''}{self.how}"
        last_lines = self.stderr.strip()
        return f"{sentence}: {last_lines[-2000:]}" if last_lines else f"{sentence}."


def _bytes_waiting(channel: int) -> int:
    """How many bytes written to a pipe or socket are still unread; 0 if the system cannot tell."""
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
        import termios  # noqa: PLC0415

        question = termios.TIOCOUTQ if stat.S_ISSOCK(os.fstat(channel).st_mode) else termios.FIONREAD
        return int.from_bytes(fcntl.ioctl(channel, question, bytes(4)), sys.byteorder)
    except (ImportError, OSError, ValueError):
        return 0


def _run_removal(command: Sequence[str], environment: Mapping[str, str], child: str) -> None:
    """Never fails: leftovers that cannot be removed are logged."""
    try:
        subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_REMOVAL,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("leftovers of %s could not be removed: %s", child, error)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ChildListener(Protocol):
    """The owner of a child. Calls come from the event loop and must not block; exceptions are logged. A MemoryError
    raised by `output_received` ends the child."""

    def output_received(self, data: bytes) -> None:
        """Some bytes of stdout."""

    def output_ended(self) -> None:
        """Stdout is closed; the child may still run."""

    def input_closed(self) -> None:
        """The child can no longer be written to, although it was not stopped."""

    def child_ended(self, exit_: Exit) -> None:
        """The child is gone, and all of its output was delivered."""


class _ChildInput(asyncio.SubprocessProtocol):
    """The stdin of a child, and whether the child reads it."""

    def __init__(self) -> None:
        self._stdin: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    @property
    def input_open(self) -> bool:
        return self._stdin is not None and not self._stdin.is_closing()

    @property
    def unsent(self) -> int:
        """Bytes that the child has not read."""
        return self._stdin.get_write_buffer_size() if self._stdin is not None else 0

    @property
    def has_read_input(self) -> bool:
        """Whether the child has read everything that was written; True if the system cannot tell, False once its input
        is closed."""
        if self._stdin is None or not self.input_open:
            return False
        pipe = self._stdin.get_extra_info("pipe")
        return not self.unsent and (pipe is None or _bytes_waiting(pipe.fileno()) == 0)

    def write(self, data: bytes) -> None:
        """Writes to the child, buffering what it does not read yet. Does nothing once its input is closed."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(data)

    async def drained(self) -> None:
        """Waits until the child has caught up with our writes."""
        await self._writable.wait()

    def close_input(self) -> None:
        if self._stdin is not None:
            self._stdin.close()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()


class ChildProcess(_ChildInput):
    """One child. Call `start` once; it ends by itself or with `stop`. The event loop reports on its pipes."""

    def __init__(
        self, listener: ChildListener, program: str, *, mark: str = "", scratch: Path | None = None, owner: str = ""
    ) -> None:
        """`program` is a human-readable name, `mark` is set in its environment, `scratch` is removed when it ends.
        `owner` identifies its owner in the log."""
        super().__init__()
        self._listener = listener
        self._program = program
        self._logged_as = f"{program} of {owner}" if owner else program
        self._mark = mark
        self._scratch = scratch
        self._removal: tuple[tuple[str, ...], Mapping[str, str]] = ((), {})
        self._stderr: deque[bytes] = deque()
        self._stderr_size = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._ladder: asyncio.Task[Exit | None] | None = None
        self._pipes_lost = asyncio.Event()
        self.stopping = False
        """Whether `stop` was called."""
        self.cause = ""
        """Why we ended it on our own initiative; empty otherwise."""
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        """Done once the child is gone and all of its output was delivered."""
        self.cleaned = asyncio.Event()
        """Set once its descendants and its scratch directory are gone too."""

    async def start(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None,
        environment: Mapping[str, str],
        options: ChildOptions = USUAL_OPTIONS,
    ) -> None:
        """Starts it. Raises OSError or ValueError if that fails. Nothing of it remains then, nor if this is
        cancelled."""
        self._removal = (options.removal, environment)
        try:
            await spawn(lambda: self, argv, cwd=cwd, environment=environment, options=options)
        # Also when cancelled: the scratch directory, and perhaps a container, already exist.
        except BaseException:
            await self._remove_rest()
            raise

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._transport is not None

    @property
    def pid(self) -> int:
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def returncode(self) -> int | None:
        return self._transport.get_returncode() if self._transport is not None else None

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        return b"".join(self._stderr)[-_STDERR_KEPT:].decode("utf-8", "replace")

    def pause_reading(self, paused: bool) -> None:
        """Stops reading the child's stdout, or resumes."""
        pipe = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if isinstance(pipe, asyncio.ReadTransport):
            (pipe.pause_reading if paused else pipe.resume_reading)()

    # -- the end ------------------------------------------------------------------------------------------------

    async def stop(self, timeout: float, first: Callable[[], Awaitable[bool]] | None = None) -> Exit | None:
        """Stops in steps: end of input, SIGTERM, SIGKILL, then everything it started. Each step waits at most
        `timeout`. `first` runs before all steps; if it returns False, the input is not closed and SIGTERM is the next
        step. Cancelling the caller does not stop this half-way. Returns None if the child survived SIGKILL."""
        if self._ladder is None:
            # Before the first step: we cause the following end of input, so it must not be reported as `input_closed`.
            self.stopping = True
            self._ladder = asyncio.get_running_loop().create_task(self._run_ladder(timeout, first))
        return await asyncio.shield(self._ladder)

    async def _run_ladder(self, timeout: float, first: Callable[[], Awaitable[bool]] | None) -> Exit | None:
        close_input = await first() if first is not None else True
        self.pause_reading(False)  # a child that is stuck writing would never see its input end
        if close_input:
            await self._try_step(self.close_input, timeout)
        await self._try_step(self.terminate, timeout)
        await self._try_step(self.kill, timeout)
        with contextlib.suppress(TimeoutError):
            # A descendant that cannot be killed or a slow removal must not delay the caller longer.
            await asyncio.wait_for(self.cleaned.wait(), 2 * timeout + _DRAIN)
        return self.exited.result() if self.exited.done() else None

    async def _try_step(self, step: Callable[[], None], timeout: float) -> None:
        if not self.exited.done():
            step()
            await asyncio.wait([self.exited], timeout=timeout)

    def terminate(self) -> None:
        assert self._transport is not None
        terminate(self._transport)

    def kill(self) -> None:
        assert self._transport is not None
        kill(self._transport)

    # -- what the pipes report ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The child runs. It may have ended again before `start` returns."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport
        stdin = transport.get_pipe_transport(0)
        assert stdin is None or isinstance(stdin, asyncio.WriteTransport)
        self._stdin = stdin

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 1:
            try:
                self._listener.output_received(data)
            except MemoryError:
                self.end_for_memory()
            except Exception:
                log.exception("the output of %s could not be processed", self._logged_as)
            return
        self._stderr.append(data)
        self._stderr_size += len(data)
        while self._stderr_size > _STDERR_KEPT and len(self._stderr) > 1:
            self._stderr_size -= len(self._stderr.popleft())

    def end_for_memory(self) -> None:
        """Kills it and discards the rest of its output, part of which is lost."""
        if self.cause or self.exited.done():
            return
        self.cause = _NO_MEMORY
        log.error("stopping %s: %s", self._logged_as, self.cause)
        self.kill()
        pipe = self._transport.get_pipe_transport(1) if self._transport is not None else None
        if pipe is not None:
            pipe.close()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if isinstance(exc, MemoryError):
            self.end_for_memory()
        if fd == 0:
            # Nothing reads any more: a caller that waits in `drained` would wait forever.
            self._writable.set()
            if not self.stopping:
                self._notify(self._listener.input_closed)
        elif fd == 1:
            self._notify(self._listener.output_ended)

    def process_exited(self) -> None:
        """The child is gone; its pipes may still contain output, or be held open by a descendant."""
        if self._cleanup is None:
            self._cleanup = asyncio.get_running_loop().create_task(self._clean_up())

    def connection_lost(self, exc: Exception | None) -> None:
        """Its pipes are closed: all of its output has arrived."""
        self._pipes_lost.set()
        if not self.exited.done():
            # Once only: asyncio also reports this late, after `_clean_up` has stopped waiting for the pipes.
            code = self.returncode
            assert code is not None
            exit_ = Exit(code, self.stderr, self._program, self.cause)
            # Tasks that wait for `exited` continue in a later step of the loop: the listener learns of the end before
            # they do.
            self.exited.set_result(exit_)
            self._notify(lambda: self._listener.child_ended(exit_))

    async def _clean_up(self) -> None:
        """Runs once the child has ended: its descendants, then the rest of its output, then the report of its end. The
        end is reported and `cleaned` is set in any case, even if the search for descendants fails."""
        assert self._transport is not None
        try:
            swept = needs_sweep(self._transport)
            if swept and self._mark:
                try:
                    await sweep(self._mark)  # first, since a descendant may hold the pipes open
                except Exception:
                    log.exception("could not look for leftover processes of %s", self._logged_as)
            with contextlib.suppress(TimeoutError):
                # Under a supervisor the reaper ends the descendants, and until then they may hold the pipes.
                await asyncio.wait_for(self._pipes_lost.wait(), _DRAIN if swept else _DESCENDANTS)
            self.connection_lost(None)
            # After the wait: closing discards the remaining data in the pipes.
            self._transport.close()
            await self._remove_rest()
        finally:
            self.cleaned.set()

    async def _remove_rest(self) -> None:
        command, environment = self._removal
        if command:
            await asyncio.to_thread(_run_removal, command, environment, self._logged_as)
        if self._scratch is not None:
            await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _notify(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            log.exception("a report on %s could not be processed", self._logged_as)
