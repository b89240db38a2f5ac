"""Where the console is served: with MCP on the port of a server, or on a port of its own, which the shared server opens
when its user asks for it.

That port is on loopback, has no MCP and takes no tokens: the only way in is a link that was made for the user, since
nobody else can ask through the socket. It is remembered, so that pages, sign-ins and subscriptions, which browsers tie
to the port, go on after a restart.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.routing import BaseRoute

from ..errors import InvalidArgument
from ..private_files import private_directory, read_regular, replace_file
from ..server.transports.http import Address, HttpServer, host_check, plain_app
from ..service import Service
from .accounts import Accounts
from .console import Console
from .push.delivery import Push

if TYPE_CHECKING:  # a server without a hub does not pay for one
    from ..hub.hub import Hub

log = logging.getLogger(__name__)

_LOOPBACK = Address("127.0.0.1", 0)
_LONGEST_PORT = 16


class Consoles:
    """The consoles of one service; all push leads to the first that is made."""

    def __init__(self, service: Service, find_hub: "Callable[[], Hub | None]") -> None:
        self._service = service
        self._find_hub = find_hub
        self._made: list[Console] = []
        self.push = Push(service, service.settings.state_dir / "web")
        service.observe(self.push)

    def console(self, address: Address, accounts: Accounts) -> Console:
        """The console of a server that listens there. Blocks on the disk."""
        host = "localhost" if address.unspecified else address.host
        made = Console(
            self._service,
            self._find_hub,
            accounts,
            self.push,
            url=f"http://{replace(address, host=host).netloc}",
            port=address.port,
            host_allowed=host_check(self._service.settings, address),
        )
        self._made.append(made)
        self.push.knows = accounts.has
        self.push.serve_at(made.url)
        return made

    def routes(self, address: Address, accounts: Accounts) -> Sequence[BaseRoute]:
        """The routes of such a console; none where the settings want none."""
        return self.console(address, accounts).routes() if self._service.settings.web else ()

    @property
    def watched(self) -> bool:
        return any(console.watched for console in self._made)

    @property
    def first(self) -> Console | None:
        return self._made[0] if self._made else None

    def close(self) -> None:
        """Ends all streams, and whatever push still tries."""
        for console in self._made:
            console.close()
        self.push.close()


class ConsolePort:
    """The port that a shared server opens for its user; none before that, unless it was open the last time."""

    def __init__(self, consoles: Consoles, service: Service, name: str) -> None:
        """`name` tells the shared servers of a user from one another."""
        self._consoles = consoles
        self._service = service
        settings = service.settings
        self._accounts = Accounts(None, by_socket=True)
        self._file = settings.state_dir / "web" / f"port-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        self._opening = asyncio.Lock()
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str | None:
        """Where the console is; None if it is not open."""
        console = self._consoles.first
        return console.url if console is not None else None

    async def link(self) -> dict[str, Any]:
        """A link for the user, to the console that is open, or that is opened now."""
        if not self._service.settings.web:
            return {"error": "The console is switched off (CLAUDE_CODE_MCP_WEB)."}
        try:
            await self._open()
            console = self._consoles.first
            assert console is not None
            return await console.new_link(self._accounts.of_user())
        except (InvalidArgument, OSError) as error:
            return {"error": f"The console cannot be opened: {error}"}

    async def reopen(self) -> None:
        """Opens it if it was open when the last server ended."""
        if self._service.settings.web and (
            self._service.settings.web_port or await asyncio.to_thread(self._remembered)
        ):
            try:
                await self._open()
            except (InvalidArgument, OSError) as error:
                log.warning("the console cannot be opened: %s", error)

    async def _open(self) -> None:
        async with self._opening:
            if self._consoles.first is not None:
                return
            server = await asyncio.to_thread(self._listen)
            self._service.own_addresses.extend(server.own_addresses)
            self._server, self._serving = server, self._service.start_task(server.serve())

    def _listen(self) -> HttpServer:
        """Listens at the port of the settings; else at the one from before, if it is free, or at any."""
        fixed = self._service.settings.web_port
        try:
            server = self._server_at(fixed or self._remembered())
        except InvalidArgument:
            if fixed:
                raise
            server = self._server_at(0)
        private_directory(self._file.parent)
        replace_file(self._file, str(server.address.port).encode())
        return server

    def _server_at(self, port: int) -> HttpServer:
        return HttpServer(
            replace(_LOOPBACK, port=port),
            lambda bound: plain_app(self._consoles.routes(bound, self._accounts)),
            proxies=self._service.settings.http_proxies,
            serves="the console",
        )

    def _remembered(self) -> int:
        """The port of the last time; 0 if there is none."""
        try:
            text = read_regular(self._file, _LONGEST_PORT).decode("ascii", "replace").strip()
        except OSError:
            return 0
        return int(text) if text.isdigit() and int(text) <= 65535 else 0

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.stop()
            await asyncio.wait([self._serving])


@contextlib.asynccontextmanager
async def serving_consoles(service: Service, find_hub: "Callable[[], Hub | None]") -> AsyncIterator[Consoles]:
    """Consoles within this context; nothing of them holds up the end of the service."""
    consoles = Consoles(service, find_hub)
    try:
        yield consoles
    finally:
        consoles.close()
