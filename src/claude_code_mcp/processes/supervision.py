"""Starts children through the supervisor of this process; see `supervisor.py` for what it guarantees.

There is one supervisor per process, started on first use (or ahead of it by `prepare`) and started anew if it has died.
Spawning blocks for about a millisecond, so it happens in a thread; what comes back is a transport of the same shape
as that of `loop.subprocess_exec`.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

log = logging.getLogger(__name__)

_SCRIPT = str(Path(__file__).with_name("supervisor.py"))
_KILLED = -9

ProtocolT = TypeVar("ProtocolT", bound=asyncio.SubprocessProtocol)


def available() -> bool:
    """Whether this platform has what the supervisor needs."""
    return sys.platform == "linux" and bool(sys.executable) and os.path.isdir("/proc/self")


class _Supervisor:
    """The connection to the supervisor. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0

    def prepare(self) -> None:
        """Starts the supervisor unless it runs."""
        with self._lock:
            self._connected()

    def send(self, descriptors: Sequence[int], payload: bytes) -> None:
        """Hands a request over; to a new supervisor if the old one has died. Raises OSError if that fails too."""
        with self._lock:
            try:
                self._send(descriptors, payload)
            except OSError:
                self._forget()
                self._send(descriptors, payload)

    def _send(self, descriptors: Sequence[int], payload: bytes) -> None:
        connection = self._connected()
        socket.send_fds(connection, [struct.pack("!I", len(payload))], descriptors)
        connection.sendall(payload)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            with theirs:
                os.set_inheritable(theirs.fileno(), True)
                argv = [sys.executable, "-I", "-S", _SCRIPT, str(theirs.fileno())]
                # No environment: the supervisor outlives us for a moment, and must hold no secret.
                self._pid = os.posix_spawn(sys.executable, argv, {}, file_actions=_silent())
            self._socket = ours
            atexit.register(ours.close)
        return self._socket

    def _forget(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, os.WNOHANG)


def _silent() -> list[tuple[int, int, str, int, int]]:
    """The supervisor keeps none of our standard streams open: stdout is the protocol, and its end must be seen."""
    return [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]


_supervisor = _Supervisor()


async def prepare() -> None:
    """Has the supervisor ready, so that the first child need not wait for it."""
    await asyncio.to_thread(_supervisor.prepare)


async def spawn(
    factory: Callable[[], ProtocolT], argv: Sequence[str], *, cwd: str | None, environment: Mapping[str, str]
) -> "tuple[SupervisedTransport, ProtocolT]":
    """Starts a program; like `loop.subprocess_exec` with pipes, but nothing that it starts outlives it.

    `argv[0]` is a path. Raises OSError with the reason if it cannot be executed, ValueError for a NUL byte.
    """
    payload = _payload(argv, cwd, environment)
    transport = SupervisedTransport(asyncio.get_running_loop())
    try:
        await transport.start(payload, argv[0], cwd)
        protocol = factory()
        await transport.connect(protocol)
    except BaseException:
        transport.close()
        raise
    return transport, protocol


def _payload(argv: Sequence[str], cwd: str | None, environment: Mapping[str, str]) -> bytes:
    directory = os.path.abspath(cwd) if cwd else os.getcwd()
    fields = [directory, str(len(argv)), *argv, *(f"{name}={value}" for name, value in environment.items())]
    encoded = [os.fsencode(field) for field in fields]
    if any(b"\0" in field for field in encoded):
        raise ValueError("embedded null byte")
    return b"\0".join(encoded)


class SupervisedTransport(asyncio.SubprocessTransport):
    """A child of the supervisor, its three pipes, and the control socket of its keeper.

    Calls the protocol as asyncio's own transport does, with one difference: `connection_lost` comes when nothing of the
    child's descendants is left, not only when the pipes are closed. `close` kills whatever still runs.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._protocol: asyncio.SubprocessProtocol | None = None
        self._pid = 0
        self._returncode: int | None = None
        self._ours: list[int] = []
        self._control: socket.socket | None = None
        self._reports = b""
        self._pipes: dict[int, asyncio.BaseTransport] = {}
        self._open = {0, 1, 2}
        self._gone = False
        self._finished = False

    # -- starting -----------------------------------------------------------------------------------------------

    async def start(self, payload: bytes, program: str, cwd: str | None) -> None:
        """Has the child started; raises the OSError that kept it from it, with the path that is to blame."""
        control, keeper_end = socket.socketpair()
        self._control = control
        control.setblocking(False)
        (child_in, our_in), (our_out, child_out), (our_err, child_err) = os.pipe(), os.pipe(), os.pipe()
        self._ours = [our_in, our_out, our_err]
        theirs = [child_in, child_out, child_err, keeper_end.detach()]
        sending = asyncio.ensure_future(asyncio.to_thread(_hand_over, theirs, payload))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait([sending])  # the descriptors must not be closed under the thread
            raise
        report = await self._first_report(control)
        kind, _, number = report.partition(b" ")
        if kind == b"F":
            missing = cwd if cwd is not None and not await asyncio.to_thread(os.path.isdir, cwd) else program
            raise OSError(int(number), os.strerror(int(number)), missing)
        if kind != b"S":
            raise OSError("the supervisor died while it started a child")
        self._pid = int(number)

    async def _first_report(self, control: socket.socket) -> bytes:
        while b"\n" not in self._reports:
            data = await self._loop.sock_recv(control, 256)
            if not data:
                return b""
            self._reports += data
        line, _, self._reports = self._reports.partition(b"\n")
        return line

    async def connect(self, protocol: asyncio.SubprocessProtocol) -> None:
        """Connects the pipes; from then on the protocol is called."""
        self._protocol = protocol
        our_in, our_out, our_err = self._ours
        self._ours = []
        writer = os.fdopen(our_in, "wb", buffering=0)
        self._pipes[0], _ = await self._loop.connect_write_pipe(lambda: _Pipe(self, 0), writer)
        protocol.connection_made(self)
        for number, descriptor in ((1, our_out), (2, our_err)):
            reader = os.fdopen(descriptor, "rb", buffering=0)
            self._pipes[number], _ = await self._loop.connect_read_pipe(partial(_Pipe, self, number), reader)
        assert self._control is not None
        self._loop.add_reader(self._control.fileno(), self._read_reports)
        self._take_reports()

    # -- what the keeper reports --------------------------------------------------------------------------------

    def _read_reports(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._reports += data
            self._take_reports()
            return
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._control = None
        self._gone = True
        self._exited(_KILLED)  # only counts if no report came: the keeper was killed, and its child with it
        self._finish_if_done()

    def _take_reports(self) -> None:
        while b"\n" in self._reports:
            line, _, self._reports = self._reports.partition(b"\n")
            kind, _, number = line.partition(b" ")
            if kind == b"X":
                self._exited(int(number))

    def _exited(self, code: int) -> None:
        if self._returncode is None:
            self._returncode = code
            assert self._protocol is not None
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
        # Its stdin may stay open until somebody closes it: nobody reads it any more.
        if self._gone and not self._open & {1, 2} and not self._finished:
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
        """SIGTERM to the child's process group."""
        self._order(b"T")

    def kill(self) -> None:
        """SIGKILL to the child, and with it to everything it started."""
        self._order(b"K")

    def send_signal(self, signal: int) -> None:
        raise NotImplementedError("only terminate and kill reach a supervised child")

    def _order(self, order: bytes) -> None:
        if self._control is not None and self._returncode is None:
            with contextlib.suppress(OSError):
                self._control.send(order)

    def close(self) -> None:
        """Closes everything of ours; the keeper then ends whatever still runs."""
        for descriptor in self._ours:
            os.close(descriptor)
        self._ours = []
        for pipe in self._pipes.values():
            pipe.close()
        if self._control is not None and not self._gone:
            if self._protocol is not None:
                self._order(b"K")  # its end is still reported, and the reader stays until then
            else:
                self._control.close()
                self._control = None


def _hand_over(theirs: Sequence[int], payload: bytes) -> None:
    try:
        _supervisor.send(theirs, payload)
    finally:
        for descriptor in theirs:
            os.close(descriptor)


class _Pipe(asyncio.Protocol):
    """One pipe of a child, as its transport sees it."""

    def __init__(self, child: SupervisedTransport, number: int) -> None:
        self._child = child
        self._number = number

    def data_received(self, data: bytes) -> None:
        if self._number:
            self._child.pipe_data(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._child.pipe_lost(self._number, exc)

    def pause_writing(self) -> None:
        self._child.writing_paused(True)

    def resume_writing(self) -> None:
        self._child.writing_paused(False)
