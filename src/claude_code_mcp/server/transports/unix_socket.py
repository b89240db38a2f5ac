"""The shared server's side of the socket: every connection is a client with its own MCP session.

Each connection starts with the hello of `startup/shared/handshake.py`. The first hello contains the settings for the
server, and connections wait until the server is created. A client with another user id, settings or protocol is
refused.
"""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import anyio
import mcp_types as types

from ... import __version__
from ...core.claude.user_config import noted_sessions
from ...core.errors import SessionBusy
from ...core.model.caller import ClientEnvironment
from ...core.model.paths import config_directory
from ...core.processes.leftovers import started_by_us
from ...startup.shared import handshake as hello
from ...startup.shared import place
from ...startup.shared.relay import READING_METHODS, READING_TOOLS
from .stdio import MAX_LINE, Inbox, LineConnection, Outbox, Unanswered, line_streams

log = logging.getLogger(__name__)

_HELLO_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 1.0

_ASKED_OF_THE_SOCKET = frozenset({"status", "stop", "restart"})
STOPPING = hello.STOPPING + b"\n"
Status = Callable[[], Mapping[str, Any]]
Asks = Mapping[str, Callable[[], Awaitable[Any]]]
"""Additional queries of commands, by name; each returns a value that is sent as JSON."""


class SocketBackend(Protocol):
    """The server behind a socket: an `McpServer`, or a substitute for one."""

    async def serve(self, inbox: Inbox, outbox: Outbox, environment: ClientEnvironment | None = None) -> None:
        """Serve one connection until the client ends it."""


class SharedSocket:
    """Accepts connections and serves each until it ends, or until `end` is called."""

    def __init__(self, listener: socket.socket, where: place.Place) -> None:
        """`listener` listens at the socket of the place, whose lock this process holds."""
        self._listener = listener
        self._place = where
        self._began = time.time()
        self._first: asyncio.Future[hello.Hello | None] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Future[SocketBackend | str] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._farewell = b""
        self._clients: set[_Client] = set()
        self._changed = asyncio.Event()
        self._watching_the_end: list[_Client] = []
        self._status: Status = dict
        self._asks: Asks = {}
        self.wanted_version = ""
        """The newer version to which a client has requested a handover."""
        self.handover_wanted = asyncio.Event()

    @property
    def name(self) -> str:
        """Distinguishes this server from the user's others."""
        return self._place.socket

    # -- the life of the server -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accept connections until `end`; then remove the socket, send every client the farewell, and close them."""
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def serve_each() -> None:
            while True:
                tasks.start_soon(self._connection, *await accepted.get())

        # Only queued here: the connections are tasks of the group below, and end with it.
        accepting = await asyncio.start_unix_server(
            lambda *streams: accepted.put_nowait(streams), sock=self._listener, limit=MAX_LINE
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_each)
            try:
                await self._ended.wait()
            finally:
                # In this order: no one can connect when the farewell is written, and all get it before they are closed.
                accepting.close()
                with suppress(OSError):
                    os.unlink(self._place.socket)
                for client in self._clients:
                    client.output.write(self._farewell)
                tasks.cancel_scope.cancel()

    def end(self, farewell: bytes = b"") -> None:
        """Close all connections; the first farewell counts."""
        if not self._ended.is_set():
            self._farewell = farewell
            self._ended.set()
            if not self._first.done():
                self._first.set_result(None)

    def end_for(self, version: str) -> None:
        """Stop for a newer version; clients of older versions then wait a moment before they start a server."""
        self.end(hello.HANDOVER + b" " + version.encode() + b"\n")

    async def first_hello(self) -> hello.Hello | None:
        """The first client's hello, which contains the settings; None if the server ends before."""
        return await self._first

    def settle_settings(self, client_hello: hello.Hello) -> None:
        """Fix the settings to those of this hello, whichever client connects first."""
        if not self._first.done():
            self._first.set_result(client_hello)

    def open(self, server: SocketBackend, status: Status, asks: Asks) -> None:
        """Start serving connections."""
        self._status, self._asks = status, asks
        self._server.set_result(server)

    async def refuse(self, reason: str) -> None:
        """Tell every connected client why there is no server, and stop."""
        self._server.set_result(reason)
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            while self._clients:
                await self._change()
        self.end()

    async def _change(self) -> None:
        # Callers check the clients without an await before this: no change is missed.
        self._changed.clear()
        await self._changed.wait()

    async def unused(self, seconds: float, needed: Callable[[], Awaitable[bool]]) -> None:
        """Return when there was no client for `seconds` and the server is not `needed`."""
        while True:
            while self._clients:
                await self._change()
            with anyio.move_on_after(seconds):
                while not self._clients:
                    await self._change()
            # The clients last, without an await afterward: one may have connected during the other check.
            if not await needed() and not self._clients:
                return

    @property
    def idle(self) -> bool:
        """Whether no client waits for anything except a read-only request, which its front repeats."""
        return not any(client.unanswered.working for client in self._clients)

    async def wait_until_idle(self) -> None:
        """Wait until all requests with effects are answered."""
        # A copy: clients connect and disconnect during the wait.
        for client in list(self._clients):
            await client.unanswered.wait_until_idle()

    async def ended(self) -> None:
        await self._ended.wait()

    # -- one connection ---------------------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        output = _SocketOutput(writer)
        # As reported by the kernel, not by the hello, which anyone could write.
        pid = place.peer_pid(writer.get_extra_info("socket"))
        try:
            if place.peer_is_ours(writer.get_extra_info("socket")):
                with anyio.fail_after(_HELLO_TIMEOUT):
                    client_hello = hello.read_hello(await reader.readuntil(b"\n"))
                believed = pid > 0 and not await asyncio.to_thread(_is_within_session, pid)
                await self._greet(_Client(client_hello, reader, output, self._control, believed=believed))
            else:
                log.warning("process %d of another user was refused at the socket", pid)
        except (ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            log.debug("the connection of process %d ended: %r", pid, error)
        except Exception:
            log.exception("the connection of process %d failed", pid)  # other connections are not affected
        finally:
            await output.close()

    async def _greet(self, client: "_Client") -> None:
        if client.hello.ask:
            await self._command(client)
            return
        # Before there is a server: `refuse` and `unused` count the waiting clients too.
        self._clients.add(client)
        self._changed.set()
        try:
            # The first client decides: the server is created from its settings.
            self.settle_settings(client.hello)
            # Shielded: a client that disconnects must not cancel what all of them wait for.
            server = await asyncio.shield(self._server)
            refused = server if isinstance(server, str) else self._objection(client.hello)
            client.output.write(hello.Welcome(os.getpid(), refused).line())
            if not isinstance(server, str) and not refused:
                await client.serve(server)
        finally:
            self._clients.discard(client)
            self._changed.set()

    def _objection(self, client_hello: hello.Hello) -> str:
        if client_hello.protocol != hello.PROTOCOL:
            # It may be a newer version: then this server hands over to it.
            self._control(client_hello.version)
            return f"it is version {__version__}, which uses a different protocol"
        first = self._first.result()
        if first is None or client_hello.fingerprint != first.fingerprint:
            return "it runs with different settings"
        return ""

    def _control(self, version: str) -> None:
        """Handle a client's request to hand over to its own version."""
        if hello.is_newer(version, self.wanted_version or hello.BUILD):
            self.wanted_version = version
            self.handover_wanted.set()

    @property
    def has_person(self) -> bool:
        """Whether a person at a terminal is connected who can answer questions."""
        return any(client.unanswered.has_person for client in self._clients)

    # -- commands ---------------------------------------------------------------------------------------------

    async def _command(self, client: "_Client") -> None:
        """Answer a command's query, by default with the status. After `stop` and `restart` the connection stays open
        until this process has exited."""
        client.output.write(hello.Welcome(os.getpid()).line())
        if client.hello.ask not in _ASKED_OF_THE_SOCKET and self._first.done() and not self._ended.is_set():
            # A server is being created. Before the first client connects there is none, and commands must not wait for
            # one.
            await asyncio.shield(self._server)
        ask = self._asks.get(client.hello.ask)
        answer = self.status() if ask is None else await ask()
        client.output.write(json.dumps(answer, default=dict).encode() + b"\n")
        await client.output.drain()
        farewell = {"stop": STOPPING, "restart": hello.RESTARTING + b"\n"}.get(client.hello.ask)
        if farewell is not None:
            client.output.keep()
            # Kept: an unreferenced connection would be closed.
            self._watching_the_end.append(client)
            self.end(farewell)

    def status(self) -> dict[str, Any]:
        """What `shared status` shows."""
        clients = [client.status() for client in sorted(self._clients, key=lambda client: client.since)]
        return {
            "pid": os.getpid(),
            "version": __version__,
            "state": "running" if self._server.done() else "starting",
            "started": int(self._began),
            "socket": self._place.socket,
            "log": self._place.log_file,
            "handover": self.wanted_version.partition("+")[0] or None,
            "clients": clients,
            **self._status(),
        }


class _Client(LineConnection):
    """One connection. Lines that begin with `!` are for the server itself."""

    def __init__(
        self,
        client_hello: hello.Hello,
        reader: asyncio.StreamReader,
        output: "_SocketOutput",
        control: Callable[[str], None],
        *,
        believed: bool = False,
    ) -> None:
        """`believed` is whether the client's claim that a person uses it is trusted."""
        super().__init__(reader)
        self.hello = client_hello
        self.output: _SocketOutput = output
        self.unanswered: _Working = _Working(believed)
        self.since = time.time()
        self._control = control

    async def serve(self, server: SocketBackend) -> None:
        """Serve one MCP session until the client disconnects."""
        environment = ClientEnvironment(self.hello.directory, self.hello.environment, self.hello.identity)
        async with line_streams(self) as (inbox, outbox):
            await server.serve(inbox, outbox, environment)

    async def line(self) -> bytes:
        try:
            while (line := await super().line()).startswith(b"!"):
                command, _, version = line.strip().partition(b" ")
                if command == hello.HANDOVER:
                    self._control(version.decode(errors="replace"))
        except ConnectionError:
            return b""  # the front was killed
        return line

    def status(self) -> dict[str, Any]:
        client_hello = self.hello
        return {
            "pid": client_hello.pid,
            "version": client_hello.version,
            "directory": client_hello.directory,
            "since": int(self.since),
            "requests": self.unanswered.count,
            "person": self.unanswered.has_person,
        }


class _Working(Unanswered):
    """Tracks which unanswered requests have effects."""

    def __init__(self, believed: bool) -> None:
        super().__init__()
        self._believed = believed
        self._working = Unanswered()
        self.has_person = False
        """Whether the client declared that a person at its terminal can answer questions."""

    def received(self, message: types.JSONRPCMessage) -> None:
        super().received(message)
        if isinstance(message, types.JSONRPCRequest) and not self._believed:
            _remove_person_claim(message.params or {})  # before any other code sees the message
        if isinstance(message, types.JSONRPCRequest) and message.method == "initialize":
            self.has_person = _announces_person(message.params or {})
        if not isinstance(message, types.JSONRPCRequest) or not _only_reads(message):
            self._working.received(message)

    def sent(self, message: types.JSONRPCMessage) -> None:
        super().sent(message)
        self._working.sent(message)

    @property
    def working(self) -> int:
        return self._working.count

    async def wait_until_idle(self) -> None:
        await self._working.wait_until_answered()


def _announces_person(params: Mapping[str, Any]) -> bool:
    """Whether the untrusted parameters of `initialize` announce a person who can answer."""
    for name in ("capabilities", "experimental", hello.PERSON):
        found = params.get(name)
        if not isinstance(found, Mapping):
            return False
        params = found
    return params.get("answers") is True


def _remove_person_claim(params: Mapping[str, Any]) -> None:
    """Remove the claim of a person from a request, in the handshake or its own envelope; in place."""
    meta = params.get("_meta")
    envelope = meta.get(types.CLIENT_CAPABILITIES_META_KEY) if isinstance(meta, Mapping) else None
    for capabilities in (params.get("capabilities"), envelope):
        experimental = capabilities.get("experimental") if isinstance(capabilities, Mapping) else None
        if isinstance(experimental, dict) and hello.PERSON in experimental:
            experimental[hello.PERSON] = {"answers": False}


def _only_reads(request: types.JSONRPCRequest) -> bool:
    called = (request.params or {}).get("name") if request.method == "tools/call" else None
    return request.method in READING_METHODS or called in READING_TOOLS


class _SocketOutput:
    """The client's side of a connection, for writing."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._kept = False

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def keep(self) -> None:
        """Keep the connection open until the process exits, which the other end waits for."""
        self._kept = True

    async def close(self) -> None:
        if self._kept:
            return
        self._writer.close()
        with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(OSError):
            await self._writer.wait_closed()
            return
        self._writer.transport.abort()


def _is_within_session(pid: int) -> bool:
    """Whether a process was started by a session, of a server or in a terminal; true if that cannot be determined."""
    import psutil  # noqa: PLC0415

    if started_by_us(pid):
        return True
    try:
        above = {process.pid for process in psutil.Process(pid).parents()}
        noted = noted_sessions(config_directory(os.environ))
    except (psutil.Error, SessionBusy):
        return True
    return any(entry["pid"] in above for entry in noted)
