"""The process that a client starts with `--shared`: a relay between its pipes and the shared server.

It answers the greeting while there is no connection, starts the server if there is none, and passes lines on. When the
server ends for any reason, it connects to the next one, starting it if needed; the client sees only errors for requests
in flight, see `relay.py`. If no shared server is possible, it reports that on stderr and serves in this process, as
without `--shared`.

Nothing blocks: up to `_ROOM` bytes are buffered for a side that does not read; after that the other side is not read
either. Importing this module must stay cheap, as for `startup/greeting/loop.py`; there is only one thread.
"""

import _signal  # type: ignore[import-not-found]  # `signal` itself takes a while to import
import os
import select
import sys
import time

from ...core.processes.environment import depth
from ..greeting import loop
from ..greeting.first_answers import GreetedInput, Greeting, find
from . import handshake as hello
from . import place
from .handshake import Lines, unreadable
from .relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Callable
    from typing import NoReturn

_CHUNK = 1 << 16
_ROOM = 1 << 20
"""Bytes buffered for a side that does not read."""
_RETRY = 0.03
"""Seconds between two checks for a server that is starting or exiting; the lock has no event to wait for."""
_ANSWER_SECONDS = 120.0
"""Seconds within which a server must answer."""
_OTHERS_FIRST = 10.0
"""Seconds in which a newer version, or the initiator of a restart, may start the next server."""
_STEADY = 5.0
"""Seconds after which a connection counts as stable."""
_FAILURES = 6
"""Consecutive failed connections before this process serves on its own."""

_IN, _OUT, _GONE = 1, 4, 8 | 16  # POLLIN, POLLOUT, POLLERR and POLLHUP everywhere


class _NoServer(Exception):
    """Why no shared server is available."""


def serve_shared(argv: list[str], load: "Callable[[], loop.Serve]") -> int:
    """Serves MCP on stdio through the shared server; returns the exit code. `load` is as for `greet`."""
    if not loop.on_pipes():
        return loop.greet(argv, load)  # a terminal or a file: there is no client to relay for
    try:
        where, fingerprint = place.find_place(argv[1:], os.environ)
    except OSError as error:
        _report_fallback(str(error))
        return loop.greet(argv, load)
    if sys.platform != "win32":
        _signal.signal(_signal.SIGINT, loop.exit_on_interrupt)
        _signal.signal(_signal.SIGTERM, _exit)
    front = _Front(argv, where, fingerprint)
    try:
        front.run()
    except _NoServer as problem:
        _report_fallback(str(problem))
        return load()(argv, front.hand_over())
    except (BrokenPipeError, ConnectionError):
        pass  # the client is gone
    finally:
        # On every path: another process may share these ends of the pipes, and would find them non-blocking.
        front.restore_pipes()
    return 0


def _exit(*_: object) -> "NoReturn":
    os._exit(0)


def _report_fallback(reason: str) -> None:
    """Reports on stderr why this process serves its client itself. A reason may be a sentence or part of one."""
    text = f"claude-code-mcp: serving in this process, without the shared server: {reason.rstrip('.')}.\n"
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        pass


class _Front:
    """The client's two pipes, the server's socket, and the data in between."""

    def __init__(self, argv: list[str], where: place.Place, fingerprint: str) -> None:
        self._place = where
        found, self._leave_manifest = (None, None)
        # A gateway offers more than the manifest contains, such as the machine on which a session runs.
        if os.environ.get(loop.SWITCH) != "off" and not place.is_gateway(where):
            found, self._leave_manifest = find(argv)
        self._greeting = Greeting(found) if found is not None else None
        self._hello = hello.Hello(
            directory=place.working_directory(),
            environment=dict(os.environ),
            fingerprint=fingerprint,
            arguments=argv[1:],
            identity=hello.new_identity(),
            pid=os.getpid(),
            manifest=self._leave_manifest,
        ).line()
        self._relay = Relay()
        self._client_lines, self._server_lines = Lines(unreadable), Lines(self._relay.too_long)
        self._socket: _socket.socket | None = None
        self._online = False
        self._client_ended = False
        self._waiting: list[bytes] = []
        """The client's lines for a server that is not available yet."""
        self._waiting_bytes = 0
        self._to_client, self._to_server = bytearray(), bytearray()
        self._poll = select.poll()
        self._masks: dict[int, int] = {}
        self._failures = 0
        now = time.monotonic()
        self._next_try = now
        self._since = now
        """Since when there is no server, or since when the connection exists."""
        self._may_start_at = now
        self._lazy = False
        """Whether no server is needed until the client sends something, because the last one was stopped
        deliberately."""
        self._rested = False
        self._input_ended = False
        """Whether the server knows that the client's input has ended."""

    def run(self) -> None:
        """Returns when the client is gone. Raises `_NoServer` if the client must be served in another way."""
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        self._watch(1, 0)
        while not self._done():
            if self._socket is None:
                self._look_for_server()
            elif not self._online and time.monotonic() - self._since > _ANSWER_SECONDS:
                raise _NoServer(f"it has not answered for {_ANSWER_SECONDS:g} s")
            self._watch_all()
            self._handle(self._poll.poll(self._timeout()))
            if self._steady:
                self._watch_all()
            while self._steady:  # the usual state, in which there is nothing to decide
                self._handle(self._poll.poll())

    @property
    def _steady(self) -> bool:
        """Whether lines are passing and none waits."""
        return self._online and not self._to_client and not self._to_server and not self._client_ended

    def _done(self) -> bool:
        if not self._client_ended or self._to_client:
            return False
        if self._input_ended:
            return self._socket is None  # the missing answers stay missing
        if self._greeting is not None and not self._online:
            return self._greeting.satisfied
        return self._socket is None and not self._waiting and not self._relay.waiting

    def _handle(self, events: list[tuple[int, int]]) -> None:
        """The server, with the highest descriptor, comes first: lines that a client sends after the end of a server are
        for the next one."""
        if len(events) > 1:
            events.sort(reverse=True)
        for descriptor, event in events:
            if descriptor == 0:
                self._read_client()
            elif descriptor == 1:
                if event & _GONE:
                    raise BrokenPipeError
                self._write_client()
            elif self._socket is not None and descriptor == self._socket.fileno():
                if event & _OUT:
                    self._write_server()
                if event & (_IN | _GONE):
                    self._read_server()

    # -- polled events ----------------------------------------------------------------------------------------

    def _watch_all(self) -> None:
        room = len(self._to_server) + self._waiting_bytes < _ROOM
        greeting_is_full = self._greeting is not None and self._greeting.full
        self._watch(0, _IN if room and not greeting_is_full and not self._client_ended else None)
        self._watch(1, _OUT if self._to_client else 0)
        if self._socket is not None:
            wanted = (_IN if len(self._to_client) < _ROOM else 0) | (_OUT if self._to_server else 0)
            self._watch(self._socket.fileno(), wanted)

    def _watch(self, descriptor: int, mask: int | None) -> None:
        """Sets what is polled for on a descriptor. With None it is not polled: the end of a pipe would be reported
        repeatedly."""
        if self._masks.get(descriptor) == mask:
            return
        if mask is None:
            if self._masks.pop(descriptor, None) is not None:
                self._poll.unregister(descriptor)
            return
        self._poll.register(descriptor, mask)
        self._masks[descriptor] = mask

    def _timeout(self) -> float | None:
        """Milliseconds until the next action that no event triggers."""
        if self._online or (self._socket is None and self._is_idle):
            return None
        until = self._since + _ANSWER_SECONDS if self._socket is not None else self._next_try
        return max(0.0, until - time.monotonic()) * 1000 + 1

    @property
    def _is_idle(self) -> bool:
        """Whether no server is needed now."""
        greeted = self._greeting is not None and self._greeting.waiting
        return self._lazy and not self._waiting and not self._relay.waiting and not greeted

    # -- the server -------------------------------------------------------------------------------------------

    def _look_for_server(self) -> None:
        """Connects, or starts the server. Retries a moment later if another process has the lock."""
        now = time.monotonic()
        if self._is_idle:
            self._rested = True
            return
        if self._rested:
            self._rested, self._since = False, now
        if now < self._next_try:
            return
        if now - self._since > _ANSWER_SECONDS:
            raise _NoServer(f"no answer at {self._place.socket}")
        # Before the try, which may raise or find that another process is starting a server.
        self._next_try = now + _RETRY
        try:
            connection = self._connect(now)
        except PermissionError as error:
            raise _NoServer(str(error)) from None
        except OSError as error:
            raise _NoServer(f"it cannot be started: {error}") from None
        if connection is not None:
            self._socket = connection
            self._since = now
            # Replaces everything buffered for a previous server: nothing may be sent before the hello.
            self._to_server[:] = self._hello
            self._write_server()

    def _connect(self, now: float) -> "_socket.socket | None":
        try:
            return place.connect(self._place.socket)
        # No server was ever started here, or a killed one has left its socket: in both cases none runs.
        except (FileNotFoundError, ConnectionRefusedError):
            pass
        except BlockingIOError:
            return None  # too many connections at once
        if depth(os.environ):
            raise _NoServer("none is running, and one started inside a session would end with it")
        return place.start(self._place) if now >= self._may_start_at else None

    def _welcome(self, line: bytes) -> None:
        """The server has answered: lines are passed on from now on, starting with the waiting ones."""
        try:
            welcome = hello.read_welcome(line)
        except ValueError:
            raise _NoServer("the program at the socket is not a claude-code-mcp server") from None
        if welcome.refused:
            raise _NoServer(welcome.refused)
        if welcome.protocol != hello.PROTOCOL:
            raise _NoServer(f"it is version {welcome.version}, which uses a different protocol")
        if hello.is_newer(hello.BUILD, welcome.version):
            # Before the lines of the client: a server without work may end at once for the newer version.
            self._to_server += hello.HANDOVER + b" " + hello.BUILD.encode() + b"\n"
        self._online, self._lazy, self._since = True, False, time.monotonic()
        if self._greeting is not None:
            lines, rest = self._relay.greeted(self._greeting.handover())
            self._waiting, self._greeting = [*lines, *self._waiting], None
            self._client_lines.receive(rest)
        # Before all other waiting lines: a server accepts no request before the handshake.
        self._to_server += self._relay.resume()
        for waiting in self._waiting:
            self._to_server += self._relay.from_client(waiting)
        self._waiting, self._waiting_bytes = [], 0
        self._write_server()
        self._end_server_input()

    def _control(self, line: bytes) -> None:
        command, _, version = line.strip().partition(b" ")
        if command == hello.STOPPING:
            self._lazy = True
        elif command == hello.RESTARTING or (
            command == hello.HANDOVER and hello.is_newer(version.decode(errors="replace"), hello.BUILD)
        ):
            self._may_start_at = time.monotonic() + _OTHERS_FIRST

    def _lost(self) -> None:
        """The connection is lost. A server that repeatedly exits right after connecting is given up."""
        assert self._socket is not None
        self._watch(self._socket.fileno(), None)
        self._socket.close()
        now = time.monotonic()
        steady = self._online and now - self._since > _STEADY
        self._failures = 0 if steady else self._failures + 1
        if self._online:
            # Only for a server that has answered: without its answer, no request is in flight and no question is open.
            self._to_client += self._relay.lost()
        self._socket, self._online, self._since = None, False, now
        # Half a line of the old server must not become the beginning of the new server's first line.
        self._server_lines = Lines(self._relay.too_long)
        self._to_server.clear()
        # Growing pauses: a server that cannot run would otherwise be restarted continuously.
        self._next_try = now + _RETRY * self._failures**2
        self._write_client()
        if self._failures > _FAILURES and not self._is_idle:
            raise _NoServer("it exits immediately")

    # -- bytes ------------------------------------------------------------------------------------------------

    def _read_client(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._client_ended = True
            self._watch(0, None)
        if self._greeting is not None:
            self._to_client += self._greeting.receive(data) if data else self._greeting.end()
            self._write_client()
            return
        if not data and (rest := self._client_lines.take_rest()):
            data = rest + b"\n"  # a last line without a line break
        lines = self._client_lines.receive(data)
        if self._online:
            self._to_server += b"".join([self._relay.from_client(line) for line in lines])
            self._write_server()
            self._end_server_input()
        else:
            self._waiting += lines
            self._waiting_bytes += sum(map(len, lines))

    def _read_server(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        for line in self._server_lines.receive(data):
            if not self._online:
                self._welcome(line)
            elif line.startswith(b"!"):
                self._control(line)
            else:
                self._to_client += self._relay.from_server(line)
        self._write_client()

    def _write_client(self) -> None:
        _write(self._to_client, lambda data: os.write(1, data))

    def _write_server(self) -> None:
        if self._socket is not None:
            try:
                _write(self._to_server, self._socket.send)
            except OSError:
                self._to_server.clear()  # it is gone: the next read reports that and handles requests in flight
            self._end_server_input()

    def _end_server_input(self) -> None:
        """Tells the server that the client's input has ended, after it has received all of it."""
        if self._client_ended and self._online and not self._to_server and self._socket is not None:
            try:
                self._socket.shutdown(1)
            except OSError:
                pass  # it is gone
            self._input_ended = True

    @staticmethod
    def restore_pipes() -> None:
        """Makes them blocking again, because other processes may share them."""
        for descriptor in (0, 1):
            os.set_blocking(descriptor, True)

    def hand_over(self) -> GreetedInput:
        """The input for a server in this process, after all output is written."""
        if self._socket is not None:
            self._socket.close()
        self.restore_pipes()
        self._write_client()
        if self._greeting is not None:
            greeted = self._greeting.handover()
            return GreetedInput(greeted.unread, greeted.answered, self._leave_manifest)
        unread = [self._relay.resume(), *self._waiting, self._client_lines.take_rest()]
        return GreetedInput(b"".join(unread), self._relay.replayed, self._leave_manifest)


def _write(buffer: bytearray, write: "Callable[[memoryview], int]") -> None:
    """Writes as much as possible and removes it from the buffer."""
    while buffer:
        try:
            with memoryview(buffer) as whole, whole[:_CHUNK] as part:
                written = write(part)
        except BlockingIOError:
            return
        del buffer[:written]
