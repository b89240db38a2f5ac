"""The console of one server: its sign-in, its links, and its address.

Every route except the page and the sign-in needs a signed-in user; `page_routes.py` has the rest. The shared server
opens a loopback port for it, without MCP and tokens: the only way in is a link created for the user through the socket,
which no other user can access. The port is remembered, so that pages, sign-ins and subscriptions, which browsers bind
to the port, continue after a restart.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ...core.errors import InvalidArgument
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.question import Question
from ...core.private_files import private_directory, read_regular, replace_file
from ...core.service import Service
from ...core.state.state_directory import database_in
from ...server.api_parts import ApiPart
from ...server.transports.authenticator import HttpService
from ...server.transports.http import Address, HttpServer, host_check, plain_app
from ...server.transports.identity import Identity
from ...server.web_answers import RequestRefused, guarded, refusal
from .guard import Accounts, Guard, WebUser
from .page_files import FILES, PageFiles
from .page_routes import PageRoutes, ServiceRoutes, StillSignedIn, api_routes
from .phone_address import PhoneAddress
from .settings import ConsoleSettings
from .sign_in_routes import SignInRoutes
from .sign_ins import SignIns

if TYPE_CHECKING:
    from ...hub.hub import Hub


class Console:
    """Created once the server listens at an address."""

    def __init__(
        self,
        host: HttpService,
        accounts: Accounts,
        address: Address,
        make_routes: Callable[[StillSignedIn], PageRoutes],
    ) -> None:
        """`address` is the listening address. Links use it, unless the settings name another one."""
        settings = host.settings
        reached = "localhost" if address.unspecified else address.host
        # Passkeys are bound to a host name: a person who signs in with one stays at that origin.
        origin = settings.web_url or accounts.origin or f"http://{replace(address, host=reached).netloc}"
        public = origin.rstrip("/")
        self.url = self._own_url = f"{public}/"
        self.phone: PhoneAddress | None = None
        """The address at which a command serves this console for a phone."""
        self.on_move: Callable[[str], None] = lambda _: None
        """Called with the new address when `reached_at` changes it."""
        self._host = host
        self._page = PageFiles()
        self._used = time.monotonic()
        self._sign_ins = SignIns(database_in(settings.state_dir))
        origins = frozenset({*settings.http_allowed_origins, public})
        self._guard = Guard(
            self._sign_ins,
            accounts,
            host_allowed=host_check(settings, address),
            origins=origins,
            port=address.port,
            refused=self.refused,
        )
        self._routes = make_routes(self._guard.still_signed_in)
        self._signing_in = SignInRoutes(self._routes, host.audit, self._guard, self._sign_ins, self._link, accounts)

    def reached_at(self, address: str | None) -> None:
        """Links now use this origin, and requests to it are accepted; None for the console's own address."""
        url = f"{address}/" if address is not None else self._own_url
        if url != self.url:
            self.url = url
            self._guard.phone_host = urlsplit(address).netloc if address is not None else None
            self.on_move(url)

    def watched(self, principal: str | None = None) -> bool:
        """Whether anyone, or this principal, has the page open."""
        return self._routes.watched(principal)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the page was last used."""
        return time.monotonic() - self._used

    def signed_in(self, principal: str | None = None) -> bool:
        """Whether anyone, or this principal, is signed in on any device. Blocks on the disk; raises OSError."""
        return self._sign_ins.any(principal)

    def refused(self) -> None:
        """Call it for each failed sign-in."""
        self._host.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))

    def _link(self, ticket: str) -> str:
        return f"{self.url}#ticket={ticket}"

    def check_host(self, request: Request) -> str:
        """The host name of the request. Raises RequestRefused (421) if it is not ours."""
        return self._guard.check_host(request)

    async def link_for(self, identity: Identity) -> str:
        """The address of a link that signs one browser in as this principal. Raises OSError."""
        return str((await self.new_link(identity))["url"])

    async def new_link(self, identity: Identity) -> dict[str, Any]:
        """A link that signs one browser in as this principal. Raises OSError."""
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, identity)
        self._host.audit(AuditEvent(AuditKind.TICKET_GIVEN, identity.principal))
        return {"url": self._link(ticket), "address": self.url, "expires_at": expires_at}

    def close(self) -> None:
        """Ends every open stream."""
        self._routes.close()

    # -- routes ---------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[BaseRoute]:
        """All routes of the console: files, sign-in, the API, and 404 for every other address below `/api`."""
        routes: list[BaseRoute] = [Route(path, self._file, methods=["GET"]) for path in FILES]
        routes.append(Route("/api/sign-in", self._sign_in, methods=["POST"]))
        handlers = [*self._signing_in.handlers(), *self._routes.handlers()]
        return [*routes, *api_routes(handlers, self._user, self._routes.clean)]

    async def _user(self, request: Request) -> WebUser:
        self._guard.check_place(request)
        user = await self._guard.user(request)
        self._used = time.monotonic()
        return user

    async def _file(self, request: Request) -> Response:
        try:
            self._guard.check_host(request)
        except RequestRefused as problem:
            return refusal(problem)
        return self._page.answer(request)

    async def _sign_in(self, request: Request) -> Response:
        async def work() -> Response:
            self._guard.check_place(request)
            return await self._signing_in.sign_in(request)

        return await guarded(work(), self._routes.clean)


# -- opening ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_LOOPBACK = Address("127.0.0.1", 0)
_MAX_PORT = 16


class Consoles:
    """The consoles of one service; links in notifications lead to the first one."""

    def __init__(self, service: Service, find_hub: "Callable[[], Hub | None]", parts: Sequence[ApiPart] = ()) -> None:
        """`parts` come from plug-ins."""
        self._service = service
        self._find_hub = find_hub
        self._made: list[Console] = []
        self._parts = parts
        service.broker.add_audience(self._expects)

    def console(self, address: Address, accounts: Accounts) -> Console:
        """The console of a server that listens there. Blocks on the disk."""

        def routes(still_signed_in: StillSignedIn) -> PageRoutes:
            return ServiceRoutes(self._service, self._find_hub, still_signed_in, self._parts)

        made = Console(self._service, accounts, address, routes)
        self._made.append(made)
        for part in self._parts:
            part.page_opened(made.url, accounts.has)
        made.on_move = self._moved
        return made

    def _moved(self, url: str) -> None:
        for part in self._parts:
            part.page_moved(url)

    def open(self, address: Address, accounts: Accounts) -> Console | None:
        """Opens such a console; None if the settings disable it. Blocks on the disk."""
        return self.console(address, accounts) if self._service.settings.section(ConsoleSettings).web else None

    async def in_use(self, idle: float) -> bool:
        """Whether the server must keep running for browsers: one is signed in, a command serves the page for a phone,
        the page was used within this many seconds, or a notification is pending."""
        try:
            # First, because it is awaited: the values read below are current when this call returns.
            signed_in = [await asyncio.to_thread(console.signed_in) for console in self._made]
            served = [console.phone and await asyncio.to_thread(console.phone.read) for console in self._made]
        except OSError as error:
            log.warning("cannot read who is signed in: %s", error)
            return True
        used = (console.watched() or console.idle_seconds < idle for console in self._made)
        return any(signed_in) or any(served) or any(used) or any(part.pending for part in self._parts)

    # -- who sees questions ---------------------------------------------------------------------------------------

    async def _expects(self, question: Question) -> bool:
        """Whether the owner of a question may still see it."""
        sessions = self._service.sessions(principal=None)
        owner = next((session.owner for session in sessions if session.id == question.session_id), None)
        return owner is not None and await self.watched_by(owner)

    async def watched_by(self, principal: str) -> bool:
        """Whether a principal will see questions: a page is open, or questions are pushed. Being signed in is not
        enough, because that lasts for weeks."""
        if any(console.watched(principal) for console in self._made):
            return True
        for part in self._parts:
            if await part.reaches(principal):
                return True
        return False

    @property
    def first(self) -> Console | None:
        return self._made[0] if self._made else None

    def close(self) -> None:
        """Ends all streams, and the parts."""
        for console in self._made:
            console.close()
        for part in self._parts:
            part.close()


class OpenConsoles(Protocol):
    """The open consoles of one server."""

    @property
    def first(self) -> Console | None: ...

    def open(self, address: Address, accounts: Accounts) -> Console | None: ...


class ConsolePort:
    """The port that a shared server opens for its user on request, and after a restart if it was open."""

    def __init__(self, consoles: OpenConsoles, host: HttpService, name: str) -> None:
        """`name` distinguishes the shared servers of a user."""
        self._consoles = consoles
        self._host = host
        settings = host.settings
        self._settings = settings.section(ConsoleSettings)
        self._accounts = Accounts(None, by_socket=True)
        self._file = settings.state_dir / "web" / f"port-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        self._opening = asyncio.Lock()
        self._server: HttpServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._phone: PhoneAddress | None = None

    @property
    def url(self) -> str | None:
        """The console's address; None if it is not open."""
        console = self._consoles.first
        return console.url if console is not None else None

    async def link(self) -> dict[str, Any]:
        """A link for the user; opens the console if needed."""
        if not self._settings.web:
            return {"error": "The console is switched off (CLAUDE_CODE_MCP_WEB)."}
        try:
            await self._open()
            console = self._consoles.first
            assert console is not None
            if self._phone is not None:
                console.reached_at(await asyncio.to_thread(self._phone.read))
            return await console.new_link(self._accounts.of_user())
        except (InvalidArgument, OSError) as error:
            return {"error": f"The console cannot be opened: {error}"}

    async def reopen(self) -> None:
        """Opens it if it was open when the last server exited."""
        if self._settings.web and (self._settings.web_port or await asyncio.to_thread(self._remembered)):
            try:
                await self._open()
            except (InvalidArgument, OSError) as error:
                log.warning("the console cannot be opened: %s", error)

    async def _open(self) -> None:
        # Concurrent requests must not open two ports: the second request waits and finds the port of the first.
        async with self._opening:
            if self._consoles.first is not None:
                return
            server = await asyncio.to_thread(self._listen)
            self._host.own_addresses.extend(server.own_addresses)
            self._server, self._serving = server, self._host.start_task(server.serve())

    def _listen(self) -> HttpServer:
        """Listens on the configured port; otherwise on the previous one if free, or on any."""
        fixed = self._settings.web_port
        try:
            return self._server_at(fixed or self._remembered())
        except InvalidArgument:
            # A user who configures a port expects the console only there.
            if fixed:
                raise
            return self._server_at(0)

    def _server_at(self, port: int) -> HttpServer:
        def app(bound: Address) -> ASGIApp:
            # Checked before the console is created: a created console counts as open, and links lead to it.
            private_directory(self._file.parent)
            replace_file(self._file, str(bound.port).encode())
            # A command that serves the console for a phone keeps running across a restart of the server.
            self._phone = PhoneAddress(self._host.settings.state_dir, bound.port)
            console = self._consoles.open(bound, self._accounts)
            if console is not None:
                console.phone = self._phone
                console.reached_at(self._phone.read())
            return plain_app(console.routes() if console is not None else ())

        return HttpServer(
            replace(_LOOPBACK, port=port),
            app,
            settings=self._host.settings,
            serves="the console",
        )

    def _remembered(self) -> int:
        """The previous port; 0 if there is none."""
        try:
            text = read_regular(self._file, _MAX_PORT).decode("ascii", "replace").strip()
        except OSError:
            return 0
        return int(text) if text.isdigit() and int(text) <= 65535 else 0

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.stop()
            await asyncio.wait([self._serving])
