"""The shared server's side of the socket: every connection is a client with an MCP session of its own.

Each begins with the hello of `shared/hello.py`. The first hello has the settings of the server, so connections wait for
the server that is made of them. Whoever has another user id, other settings or another protocol is refused.
"""

import asyncio
import json
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import anyio
import mcp_types as types

from ... import __version__
from ...model.origin import ClientOrigin
from ...shared import hello, place
from ...shared.relay import READING_METHODS, READING_TOOLS
from ..server import McpServer
from .stdio import MAX_LINE, LineConnection, Unanswered, line_streams

log = logging.getLogger(__name__)

_HELLO_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 1.0

STOPPING = hello.STOPPING + b"\n"
Status = Callable[[], Mapping[str, Any]]
Asks = Mapping[str, Callable[[], Awaitable[Any]]]
"""What commands may ask for, beside the status; each answer is written as JSON."""


class SharedSocket:
    """Accepts connections and serves each until it ends, or until `end` is called."""

    def __init__(self, listener: socket.socket, where: place.Place) -> None:
        """`listener` listens at the socket of the place, whose lock this process holds."""
        self._listener = listener
        self._place = where
        self._began = time.time()
        self._first: asyncio.Future[hello.Hello | None] = asyncio.get_running_loop().create_future()
        self._server: asyncio.Future[McpServer | str] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._farewell = b""
        self._clients: set[_Client] = set()
        self._changed = asyncio.Event()
        self._watching_the_end: list[_Client] = []
        self._status: Status = dict
        self._asks: Asks = {}
        self.wanted_version = ""
        """The newer version that a client has asked to hand over to."""
        self.handover_wanted = asyncio.Event()

    @property
    def name(self) -> str:
        """Tells this server from the others of its user."""
        return self._place.socket

    # -- the life of the server -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Accepts until `end`; then the socket is removed and every client hears the farewell and is closed."""
        accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

        async def serve_each() -> None:
            while True:
                tasks.start_soon(self._connection, *await accepted.get())

        accepting = await asyncio.start_unix_server(
            lambda *streams: accepted.put_nowait(streams), sock=self._listener, limit=MAX_LINE
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve_each)
            try:
                await self._ended.wait()
            finally:
                accepting.close()
                with suppress(OSError):
                    os.unlink(self._place.socket)
                for client in self._clients:
                    client.output.write(self._farewell)
                tasks.cancel_scope.cancel()

    def end(self, farewell: bytes = b"") -> None:
        """Closes all connections; the first farewell counts."""
        if not self._ended.is_set():
            self._farewell = farewell
            self._ended.set()
            if not self._first.done():
                self._first.set_result(None)

    def end_for(self, version: str) -> None:
        """Ends so that a newer version can be started, which older clients leave to a newer one for a moment."""
        self.end(hello.HANDOVER + b" " + version.encode() + b"\n")

    async def first_hello(self) -> hello.Hello | None:
        """What the first client has said, which has the settings; None if the server is to end before."""
        return await self._first

    def settle_settings(self, client_hello: hello.Hello) -> None:
        """The settings are those of this hello, whoever comes first."""
        if not self._first.done():
            self._first.set_result(client_hello)

    def open(self, server: McpServer, status: Status, asks: Asks) -> None:
        """From now on connections are served."""
        self._status, self._asks = status, asks
        self._server.set_result(server)

    async def refuse(self, reason: str) -> None:
        """Tells every client that has come why there is no server, and ends."""
        self._server.set_result(reason)
        with anyio.move_on_after(_CLOSE_TIMEOUT):
            while self._clients:
                await self._change()
        self.end()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def unused(self, seconds: float, at_work: Callable[[], bool]) -> None:
        """Returns when there has been no client for so long and nothing is at work."""
        while True:
            while self._clients:
                await self._change()
            with anyio.move_on_after(seconds):
                while not self._clients:
                    await self._change()
            if not self._clients and not at_work():
                return

    @property
    def idle(self) -> bool:
        """Whether no client waits for anything but a reading request, which its front repeats."""
        return not any(client.unanswered.working for client in self._clients)

    async def none_working(self) -> None:
        """Returns when the requests that do something now are answered."""
        for client in list(self._clients):
            await client.unanswered.none_working()

    async def ended(self) -> None:
        await self._ended.wait()

    # -- one connection ---------------------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        output = _SocketOutput(writer)
        try:
            if place.peer_is_ours(writer.get_extra_info("socket")):
                with anyio.fail_after(_HELLO_TIMEOUT):
                    client_hello = hello.read_hello(await reader.readuntil(b"\n"))
                await self._greet(_Client(client_hello, reader, output, self._control))
            else:
                log.warning("a process of another user was refused at the socket")
        except (ValueError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
            log.debug("a connection ended: %r", error)
        except Exception:
            log.exception("a connection failed")  # the others go on
        finally:
            await output.close()

    async def _greet(self, client: "_Client") -> None:
        if client.hello.ask:
            await self._command(client)
            return
        self._clients.add(client)
        self._changed.set()
        try:
            self.settle_settings(client.hello)
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
            self._control(client_hello.version)
            return f"it is version {__version__}, which speaks another protocol"
        first = self._first.result()
        if first is None or client_hello.fingerprint != first.fingerprint:
            return "it runs with other settings"
        return ""

    def _control(self, version: str) -> None:
        """A client wants to hand over to its own version."""
        if hello.is_newer(version, self.wanted_version or hello.BUILD):
            self.wanted_version = version
            self.handover_wanted.set()

    # -- commands ---------------------------------------------------------------------------------------------

    async def _command(self, client: "_Client") -> None:
        """Answers what a command asks, by default with the status. After `stop` and `restart` the connection stays
        open until this process is gone."""
        client.output.write(hello.Welcome(os.getpid()).line())
        ask = self._asks.get(client.hello.ask)
        answer = self.status() if ask is None else await ask()
        client.output.write(json.dumps(answer, default=dict).encode() + b"\n")
        await client.output.drain()
        farewell = {"stop": STOPPING, "restart": hello.RESTARTING + b"\n"}.get(client.hello.ask)
        if farewell is not None:
            client.output.keep()
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
    ) -> None:
        super().__init__(reader)
        self.hello = client_hello
        self.output: _SocketOutput = output
        self.unanswered: _Working = _Working()
        self.since = time.time()
        self._control = control

    async def serve(self, server: McpServer) -> None:
        """One MCP session, until the client leaves."""
        origin = ClientOrigin(self.hello.directory, self.hello.environment, self.hello.identity)
        async with line_streams(self) as (inbox, outbox):
            await server.serve(inbox, outbox, origin)

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
        }


class _Working(Unanswered):
    """Knows of the unanswered requests which of them do something."""

    def __init__(self) -> None:
        super().__init__()
        self._working = Unanswered()

    def received(self, message: types.JSONRPCMessage) -> None:
        super().received(message)
        if not isinstance(message, types.JSONRPCRequest) or not _only_reads(message):
            self._working.received(message)

    def sent(self, message: types.JSONRPCMessage) -> None:
        super().sent(message)
        self._working.sent(message)

    @property
    def working(self) -> int:
        return self._working.count

    async def none_working(self) -> None:
        await self._working.none_left()


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
        """Leaves the connection open until the process ends, which its other end waits for."""
        self._kept = True

    async def close(self) -> None:
        if self._kept:
            return
        self._writer.close()
        with anyio.move_on_after(_CLOSE_TIMEOUT, shield=True), suppress(OSError):
            await self._writer.wait_closed()
            return
        self._writer.transport.abort()
