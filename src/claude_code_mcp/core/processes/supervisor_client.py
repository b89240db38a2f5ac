"""Starts children through the supervisor of this process (`supervisor.py` describes its guarantees) and reads their
output.

There is one supervisor per process, started on first use (or in advance by `prepare`) and restarted if it died.
Spawning blocks for about a millisecond, so it runs in a thread; the result is a transport like the one of
`loop.subprocess_exec`.

Failures: a program that cannot be executed raises OSError with the reason, as in `subprocess_exec`. A supervisor that
cannot be started, or that loses two requests in a row, raises SupervisorFailed: nothing of the child runs, and it can
be started in another way. A supervisor that does not answer (it was suspended, or the directory hangs) raises
TimeoutError after `_START_TIMEOUT`.
"""

import asyncio
import atexit
import contextlib
import errno
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .environment import MARK
from .limits import USUAL_OPTIONS, ChildOptions
from .line_splitter import LineSplitter

_SCRIPT = str(Path(__file__).with_name("supervisor.py"))
_KILLED = -9
_START_TIMEOUT = 60.0
_ENVIRONMENT = {"CLAUDE_CODE_MCP_SUPERVISOR": "1"}
"""The supervisor's whole environment: it outlives us briefly and must contain no secret. It is not empty, because a
process without an environment looks like one in `exec`, and every sweep by mark would wait for it."""
_OUT_OF_MEMORY = (
    b"\nclaude-code-mcp: a process was killed because the session used more memory than the policy allows.\n"
)
"""Written to the child's stderr, where the reason for its end is looked for."""
_SOCKET_BUFFER = 1 << 20
"""The requested size; the kernel grants what its configuration allows."""
NICENESS = 7
"""How much lower a child's priority is than ours: with 5 the server answered late next to forty busy sessions, and with
more than this a session starves next to other programs."""

_READ_AT_ONCE = 256 << 10
_READ_AT_LEAST = 4 << 10
_LONG_LINE = 1 << 20
ProtocolT = TypeVar("ProtocolT", bound=asyncio.SubprocessProtocol)


class SupervisorFailed(OSError):
    """The supervisor could not be started or lost the request; the child was not started."""


def available() -> bool:
    """Whether this platform has what the supervisor needs: /proc, and an interpreter that runs scripts."""
    has_interpreter = bool(sys.executable) and not getattr(sys, "frozen", False)
    return sys.platform == "linux" and has_interpreter and os.path.isdir("/proc/self")


class _Supervisor:
    """The connection to the supervisor. Thread-safe."""

    def __init__(self) -> None:
        # Requests come from several threads, and on the one socket their parts must not mix.
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._unreaped: list[int] = []

    def prepare(self) -> None:
        """Starts the supervisor unless it runs. Raises SupervisorFailed."""
        with self._lock:
            self._connect()

    def send(self, descriptors: Sequence[int], payload: bytes) -> None:
        """Sends a request, to a new supervisor if the old one died. Raises SupervisorFailed if that fails too."""
        with self._lock:
            try:
                self._send(descriptors, payload)
            except (BrokenPipeError, ConnectionResetError):
                self._disconnect()
                self._send_to_new(descriptors, payload)
            except TimeoutError:
                self._disconnect()  # half of the request may have been sent, so no other can follow it
                raise

    def close(self) -> None:
        """Tells the supervisor that this process is exiting."""
        with self._lock:
            self._disconnect()

    def _send_to_new(self, descriptors: Sequence[int], payload: bytes) -> None:
        try:
            self._send(descriptors, payload)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._disconnect()
            raise SupervisorFailed(error.errno, "the supervisor exits immediately") from None

    def _send(self, descriptors: Sequence[int], payload: bytes) -> None:
        connection = self._connect()
        socket.send_fds(connection, [struct.pack("!I", len(payload))], descriptors)
        connection.sendall(payload)

    def _connect(self) -> socket.socket:
        if self._socket is None:
            self._reap()
            ours, theirs = socket.socketpair()
            # Our copy is closed on every path: while it is open, a request to a dead supervisor would not fail.
            with theirs:
                try:
                    os.set_inheritable(theirs.fileno(), True)
                    # Isolated and without site packages: nothing that a user has
                    # configured for Python runs in it, and it starts sooner.
                    argv = [sys.executable, "-I", "-S", _SCRIPT, str(theirs.fileno()), str(NICENESS)]
                    self._pid = os.posix_spawn(sys.executable, argv, _ENVIRONMENT, file_actions=_null_streams())
                except OSError as error:
                    ours.close()
                    raise SupervisorFailed(error.errno, f"it cannot be started: {error.strerror}") from None
            ours.settimeout(_START_TIMEOUT)
            self._socket = ours
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._unreaped.append(self._pid)
            self._reap()

    def _reap(self) -> None:
        """Its socket closes shortly before it can be waited for, so a dead supervisor is reaped here or later."""
        for pid in list(self._unreaped):
            try:
                ended = os.waitpid(pid, os.WNOHANG)[0]
            except ChildProcessError:
                ended = pid
            if ended:
                self._unreaped.remove(pid)


def _null_streams() -> list[tuple[int, int, str, int, int]]:
    """The supervisor must not keep our standard streams open: stdout is the protocol, and its end must be visible."""
    return [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]


_supervisor = _Supervisor()
atexit.register(_supervisor.close)


async def prepare() -> None:
    """Starts the supervisor, so that the first child need not wait for it."""
    await asyncio.to_thread(_supervisor.prepare)


async def spawn(
    factory: Callable[[], ProtocolT],
    argv: Sequence[str],
    *,
    cwd: str | None,
    environment: Mapping[str, str],
    options: ChildOptions = USUAL_OPTIONS,
) -> "tuple[SupervisedTransport, ProtocolT]":
    """Starts a program, like `loop.subprocess_exec` with pipes, but nothing that it starts outlives it. `argv[0]` is a
    path. Raises OSError with the reason if it cannot be executed, ValueError for a NUL byte, and SupervisorFailed if it
    was not tried."""
    request = _Request(_payload(argv, cwd, environment, options), argv[0], cwd, options)
    try:
        transport = await _start(request)
    except SupervisorFailed:
        # The supervisor or the reaper was killed before the child ran: with a new one there is no reason to fail.
        transport = await _start(request)
    try:
        protocol = factory()
        await transport.connect(protocol)
    except BaseException:
        transport.close()
        raise
    return transport, protocol


@dataclass(frozen=True, slots=True)
class _Request:
    """A request to the supervisor."""

    payload: bytes
    program: str
    cwd: str | None
    options: ChildOptions


async def _start(request: _Request) -> "SupervisedTransport":
    transport = SupervisedTransport(asyncio.get_running_loop())
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            await transport.start(request)
    except BaseException:
        transport.close()
        raise
    return transport


def _payload(argv: Sequence[str], cwd: str | None, environment: Mapping[str, str], options: ChildOptions) -> bytes:
    directory, numbers = os.path.abspath(cwd) if cwd else os.getcwd(), " ".join(map(str, options.descriptors))
    variables = [f"{name}={value}" for name, value in environment.items()]
    directives = options.limits.directives(environment.get(MARK, ""))
    directives = [*directives, *(f"execute {path}" for path in options.executables)]
    fields = [directory, numbers, str(len(directives)), *directives, str(len(argv)), *argv, *variables]
    encoded = [os.fsencode(field) for field in fields]
    if any(b"\0" in field for field in encoded):
        raise ValueError("embedded null byte")
    return b"\0".join(encoded)


class SupervisedTransport(asyncio.SubprocessTransport):
    """A child of the supervisor, its three pipes, and its reaper's control socket. Calls the protocol like asyncio's
    own transport, with one difference: `connection_lost` comes when none of the child's descendants is left, not
    already when the pipes are closed. `close` kills whatever still runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._protocol: asyncio.SubprocessProtocol | None = None
        self._pid = 0
        self._returncode: int | None = None
        self._descriptors: list[int] = []
        """Our ends of pipes without a transport, to be closed if they never get one."""
        self._control: socket.socket | None = None
        self._watches_control = False
        self._report_lines = LineSplitter()
        self._early_reports: list[bytes] = []
        """Reports that arrived before there was a protocol to call."""
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self._open = {0, 1, 2}
        self._reaper_gone = False
        self._finished = False
        self.reaper_lost = False
        """Whether the reaper was killed: the child is dead too, but its descendants may not be."""

    # -- starting -----------------------------------------------------------------------------------------------

    async def start(self, request: _Request) -> None:
        """Starts the child. Raises the OSError that prevented it, with the responsible path."""
        cwd, theirs = request.cwd, self._open_channels(sockets=request.options.sockets)
        sending = asyncio.ensure_future(asyncio.to_thread(_hand_over, theirs, request))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait([sending])  # the descriptors must not be closed under the thread
            raise
        kind, _, number = (await self._first_report()).partition(b" ")
        if kind == b"F":
            code = int(number)
            # `exec` reports a missing directory and a missing program with the same number, but a person must know
            # which one it is.
            missing = cwd if cwd is not None and not await asyncio.to_thread(os.path.isdir, cwd) else request.program
            raise OSError(code, os.strerror(code), missing)
        if kind != b"S":
            raise SupervisorFailed(errno.EPIPE, "it exited before it started the child")
        self._pid = int(number)

    def _open_channels(self, *, sockets: bool) -> list[int]:
        """Opens the pipes and the control socket; returns the reaper's ends. Opens all or none."""
        control, reaper_end = socket.socketpair()
        self._control = control
        control.setblocking(False)
        theirs: list[int] = [reaper_end.detach()]
        try:
            for number in range(3):
                reader, writer = _socket_pair() if sockets and number < 2 else os.pipe()
                self._descriptors.append(writer if number == 0 else reader)
                theirs.insert(-1, reader if number == 0 else writer)
        except OSError:  # too many are open; `close` closes ours
            for descriptor in theirs:
                os.close(descriptor)
            raise
        return theirs

    async def _first_report(self) -> bytes:
        assert self._control is not None
        while not self._early_reports:
            data = await self._loop.sock_recv(self._control, 256)
            if not data:
                return b""
            self._early_reports += self._reports_in(data)
        return self._early_reports.pop(0)

    def _reports_in(self, data: bytes) -> list[bytes]:
        return [line for line in self._report_lines.feed(data) if isinstance(line, bytes)]

    async def connect(self, protocol: asyncio.SubprocessProtocol) -> None:
        """Connects the pipes; from then on the protocol is called."""
        self._protocol = protocol
        # Each descriptor leaves the list as its owner takes it over: a cancelled caller must leave none open.
        writer = os.fdopen(self._descriptors.pop(0), "wb", buffering=0)
        self._pipes[0], _ = await self._loop.connect_write_pipe(lambda: _InputPipe(self), writer)
        # Before the outputs are read: the protocol must know its transport before the first data arrives.
        protocol.connection_made(self)
        for number in (1, 2):
            self._pipes[number] = _OutputPipe(self, number, self._loop, self._descriptors.pop(0))
        assert self._control is not None
        self._loop.add_reader(self._control.fileno(), self._read_reports)
        self._watches_control = True
        self._take_reports(self._early_reports)

    # -- what the reaper reports --------------------------------------------------------------------------------

    def _read_reports(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take_reports(self._reports_in(data))
            return
        # The end of the socket: the reaper has ended, after all descendants or because it was killed.
        self._close_control()
        self._reaper_gone = True
        if self._returncode is None:
            self.reaper_lost = True
            self._exited(_KILLED)  # the kernel has killed the child with its reaper
        self._finish_if_done()

    def _take_reports(self, reports: Sequence[bytes]) -> None:
        for report in reports:
            kind, _, number = report.partition(b" ")
            if kind == b"X":
                self._exited(int(number))
            elif kind == b"M":
                self.pipe_data(2, _OUT_OF_MEMORY)

    def _exited(self, code: int) -> None:
        if self._returncode is None:
            self._returncode = code
            assert self._protocol is not None
            # In a later step of the loop, as asyncio does: `connect` may still be running, with the early reports.
            self._loop.call_soon(self._protocol.process_exited)

    def pipe_lost(self, number: int, error: Exception | None) -> None:
        """One of the pipes is closed."""
        self._open.discard(number)
        assert self._protocol is not None
        self._protocol.pipe_connection_lost(number, error)
        self._finish_if_done()

    def pipe_data(self, number: int, data: bytes) -> None:
        """The child wrote something."""
        assert self._protocol is not None
        self._protocol.pipe_data_received(number, data)

    def writing_paused(self, paused: bool) -> None:
        """The child reads more slowly than we write, or has caught up."""
        assert self._protocol is not None
        if paused:
            self._protocol.pause_writing()
        else:
            self._protocol.resume_writing()

    def _finish_if_done(self) -> None:
        # Its stdin does not count: it stays open on our side until we close it, even if the child no longer reads it.
        if self._reaper_gone and not self._open & {1, 2} and not self._finished:
            self._finished = True
            assert self._protocol is not None
            self._loop.call_soon(self._protocol.connection_lost, None)
            self._pipes[0].close()

    # -- the interface of asyncio -------------------------------------------------------------------------------

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return self._returncode

    def get_pipe_transport(self, fd: int) -> Any:
        return self._pipes.get(fd)

    def is_closing(self) -> bool:
        return self._control is None

    def terminate(self) -> None:
        """Sends SIGTERM to the child's process group."""
        self._order(b"T")

    def kill(self) -> None:
        """Kills the child and everything it started."""
        self._order(b"K")

    def send_signal(self, signal: int) -> None:
        raise NotImplementedError("only terminate and kill reach a supervised child")

    def _order(self, order: bytes) -> None:
        # Once the child has ended, the reaper ends the remaining processes without a request.
        if self._control is not None and self._returncode is None:
            with contextlib.suppress(OSError):
                self._control.send(order)

    def close(self) -> None:
        """Closes all of our ends; the reaper then ends whatever still runs."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []
        for pipe in self._pipes.values():
            pipe.close()
        self._order(b"K")  # without it the reaper would give the child time to end
        if not self._watches_control:  # otherwise the end is still reported, and the socket is read until then
            self._close_control()

    def _close_control(self) -> None:
        if self._control is not None:
            if self._watches_control:
                self._loop.remove_reader(self._control.fileno())
                self._watches_control = False
            self._control.close()
            self._control = None


def _socket_pair() -> tuple[int, int]:
    """Two connected sockets; bytes go from the second to the first."""
    reader, writer = socket.socketpair()
    # Each write takes up far more of a socket's buffer than its bytes: with the usual size a program that writes many
    # short lines would have to wait for us sooner than at a pipe.
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
    return reader.detach(), writer.detach()


def _hand_over(theirs: Sequence[int], request: _Request) -> None:
    try:
        _supervisor.send([*theirs, *request.options.descriptors], request.payload)
    finally:
        for descriptor in theirs:
            os.close(descriptor)


class _InputPipe(asyncio.BaseProtocol):
    """The stdin of a child, as its transport sees it."""

    def __init__(self, child: SupervisedTransport) -> None:
        self._child = child

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.pipe_lost(0, exc)

    def pause_writing(self) -> None:
        self._child.writing_paused(True)

    def resume_writing(self) -> None:
        self._child.writing_paused(False)


class _OutputPipe(asyncio.ReadTransport):
    """The stdout or stderr of a child. Replaces asyncio's own class, which retries endlessly without a pause if there
    is no memory to read into. This one reads less or, if the child is in the middle of a long line, which is where the
    memory went, gives up the pipe: `pipe_lost` is called with the MemoryError."""

    def __init__(
        self, child: SupervisedTransport, number: int, loop: asyncio.AbstractEventLoop, descriptor: int
    ) -> None:
        super().__init__()
        self._child = child
        self._number = number
        self._loop = loop
        self._descriptor = descriptor
        self._unfinished = 0
        """Bytes after the last line break."""
        self._paused = self._closing = False
        os.set_blocking(descriptor, False)
        loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = self._read_some()
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, MemoryError) as error:
            self._give_up(error)
            return
        if not data:
            self._give_up(None)
            return
        end = data.rfind(b"\n")
        self._unfinished = len(data) - end - 1 if end >= 0 else self._unfinished + len(data)
        self._child.pipe_data(self._number, data)

    def _read_some(self) -> bytes:
        try:
            return os.read(self._descriptor, _READ_AT_ONCE)
        except MemoryError:
            # To read less would not help: the line that has taken the memory only gets longer.
            if self._unfinished >= _LONG_LINE:
                raise
            return os.read(self._descriptor, _READ_AT_LEAST)

    def _give_up(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._loop.remove_reader(self._descriptor)
            self._loop.call_soon(self._end, error)  # not within the call of the code that closes it

    def _end(self, error: Exception | None) -> None:
        os.close(self._descriptor)
        self._child.pipe_lost(self._number, error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._give_up(None)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def pause_reading(self) -> None:
        if self.is_reading():
            self._paused = True
            self._loop.remove_reader(self._descriptor)

    def resume_reading(self) -> None:
        if self._paused and not self._closing:
            self._paused = False
            self._loop.add_reader(self._descriptor, self._read)
