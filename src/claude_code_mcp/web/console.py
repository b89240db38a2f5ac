"""The console of one server: its routes, its links, and where it is served.

Every route but the page and the sign-in needs a signed-in user; a handler is only ever called with one. What is done
is done through the service, as every other frontend.

That port is on loopback, has no MCP and takes no tokens: the only way in is a link that was made for the user, since
nobody else can ask through the socket. It is remembered, so that pages, sign-ins and subscriptions, which browsers tie
to the port, go on after a restart.
"""

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ..errors import InvalidArgument
from ..model.events import AuditEvent, AuditKind, Event, QuestionOpened
from ..model.question import Question
from ..private_files import private_directory, read_regular, replace_file
from ..server.transports.http import Address, HttpServer, host_check, own_origin, plain_app
from ..service import Service
from ..state.known_people import Identity, SignIns
from ..state.state_directory import database_in
from .answers import FILES, BodyRoom, PageFiles, RequestRefused, guarded, refusal
from .change_routes import ChangeRoutes
from .feeds import Feeds, Streams
from .guard import Accounts, Guard, WebUser
from .push.delivery import Push, PushRoutes
from .session_routes import OverviewRoutes, QuestionRoutes, SessionRoutes, SharingRoutes
from .sign_in_routes import ProviderSignIn, SignInRoutes

if TYPE_CHECKING:
    from ..hub.hub import Hub


Handler = Callable[[Request, WebUser], Awaitable[Response]]


class Console:
    """Made for an address once the server listens there."""

    def __init__(
        self,
        service: Service,
        find_hub: "Callable[[], Hub | None]",
        accounts: Accounts,
        push: Push,
        *,
        url: str,
        port: int,
        host_allowed: Callable[[str], bool],
    ) -> None:
        """`url` is where the server listens. Links lead there, unless the settings name another address. `find_hub`
        returns the hub of the moment, which may come later than the console."""
        settings = service.settings
        public = (settings.web_url or url).rstrip("/")
        self.url = f"{public}/"
        self._service = service
        self._page = PageFiles()
        self._bodies = BodyRoom()
        self._used = time.monotonic()
        self._sign_ins = SignIns(database_in(settings.state_dir))
        origins = frozenset({*settings.http_allowed_origins, public})
        self._guard = Guard(
            self._sign_ins, accounts, host_allowed=host_allowed, origins=origins, port=port, refused=self._refused
        )
        self._feeds = Feeds(service)
        service.observe(self._feeds)
        self._streams = Streams(service, self._guard, self._feeds)
        self._find_hub = find_hub
        self._push = push

        def server_facts() -> dict[str, Any]:
            return {"hub": find_hub() is not None, "vapidPublicKey": push.public_key}

        self._at_provider: ProviderSignIn | None = None
        if accounts.issuer is not None and settings.oauth_client_id is not None:
            self._at_provider = ProviderSignIn(
                settings, accounts.issuer, self.url, self._guard.check_host, self.link_for, self._refused
            )
            self.offer_sign_in()
        leave = self._at_provider.sign_out_address if self._at_provider is not None else None
        self._signing_in = SignInRoutes(
            service, self._guard, self._sign_ins, self._streams, self._link, server_facts, leave
        )

    def watched(self, principal: str | None = None) -> bool:
        """Whether anybody, or this principal, has the page open."""
        return self._streams.watched(principal)

    @property
    def idle_seconds(self) -> float:
        """How long ago somebody used the page."""
        return time.monotonic() - self._used

    def signed_in(self, principal: str | None = None) -> bool:
        """Whether anybody, or this principal, is signed in on some device, be it a phone in a pocket. Blocks on the
        disk; OSError."""
        return self._sign_ins.any(principal)

    def _refused(self) -> None:
        self._service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))

    def _link(self, ticket: str) -> str:
        return f"{self.url}#ticket={ticket}"

    def offer_sign_in(self) -> None:
        """From now on the page says that people can sign in with their account, at `/sign-in`."""
        self._guard.offers_provider = True

    async def link_for(self, identity: Identity) -> str:
        """The address of a link with which somebody signs in once as this principal. Raises OSError."""
        return str((await self.new_link(identity))["url"])

    async def new_link(self, identity: Identity) -> dict[str, Any]:
        """A link with which somebody signs in once as this principal. Raises OSError."""
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, identity)
        self._service.audit(AuditEvent(AuditKind.TICKET_GIVEN, identity.principal))
        return {"url": self._link(ticket), "address": self.url, "expires_at": expires_at}

    def close(self) -> None:
        """Ends every open stream."""
        self._streams.close()

    # -- routes ---------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[BaseRoute]:
        """All routes of the console: files, sign-in, the API, and 404 for every other address below `/api`."""
        routes: list[BaseRoute] = [Route(path, self._file, methods=["GET"]) for path in FILES]
        routes.append(Route("/api/sign-in", self._sign_in, methods=["POST"]))
        routes += self._at_provider.routes() if self._at_provider is not None else ()
        routes += [
            Route(f"/api{path}", self._for_user(handler), methods=[method])
            for method, path, handler in self._handlers()
        ]
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return [*routes, Route("/api/{rest:path}", self._unknown, methods=methods)]

    def _handlers(self) -> list[tuple[str, str, Handler]]:
        service, path = self._service, "/sessions/{session}"
        signing_in, sessions, sharing = self._signing_in, SessionRoutes(service), SharingRoutes(service)
        changes, questions = ChangeRoutes(service), QuestionRoutes(service)
        overview, push = OverviewRoutes(service, self._find_hub), PushRoutes(service, self._push)
        return [
            ("GET", "/me", signing_in.me),
            ("POST", "/sign-out", signing_in.sign_out),
            ("GET", "/sign-ins", signing_in.list),
            ("DELETE", "/sign-ins/{sign_in}", signing_in.end),
            ("POST", "/tickets", signing_in.ticket),
            ("GET", "/events", self._open_stream),
            ("GET", "/sessions", sessions.list),
            ("POST", "/sessions", sessions.create),
            ("GET", path, sessions.show),
            ("GET", f"{path}/turns", sessions.turns),
            ("GET", f"{path}/find", sessions.find),
            ("GET", f"{path}/commands", sessions.commands),
            ("GET", f"{path}/files", sessions.files),
            ("GET", path + "/turns/{turn}/items/{item}", sessions.item),
            ("GET", path + "/turns/{turn}/images/{image}", sessions.image),
            ("GET", f"{path}/changes", changes.changes),
            ("GET", f"{path}/file", changes.file),
            ("GET", f"{path}/work", changes.plan),
            ("POST", f"{path}/work", changes.work),
            ("POST", f"{path}/messages", sessions.send),
            ("GET", path + "/messages/{message}", sessions.message),
            ("DELETE", path + "/messages/{message}", sessions.withdraw),
            ("POST", f"{path}/interrupt", sessions.interrupt),
            ("POST", f"{path}/cancel", sessions.cancel),
            ("POST", f"{path}/fork", sessions.fork),
            ("POST", f"{path}/manage", sessions.manage),
            ("GET", f"{path}/shares", sharing.list),
            ("PUT", path + "/shares/{grantee:path}", sharing.give),
            ("DELETE", path + "/shares/{grantee:path}", sharing.take_back),
            ("GET", "/questions", questions.list),
            ("GET", path + "/questions/{question}", questions.show),
            ("POST", path + "/questions/{question}", questions.answer),
            ("GET", "/costs", overview.costs),
            ("GET", "/budgets", overview.budgets),
            ("GET", "/mcp-servers", overview.servers),
            ("POST", "/mcp-servers/{server}", overview.steer),
            ("GET", "/push", push.show),
            ("PUT", "/push", push.change),
            ("POST", "/push/receivers", push.add),
            ("DELETE", "/push/receivers/{receiver}", push.remove),
            ("POST", "/push/receivers/{receiver}/test", push.test),
        ]

    async def _open_stream(self, request: Request, user: WebUser) -> Response:
        response = await self._streams.open(request, user)
        # The page that is open from now on shows what is asked, in its list at least.
        for session in self._service.sessions(principal=user.principal):
            # Whoever only watches a session is not the one whose time to answer begins.
            if self._service.access.may_answer(session.id, user.principal):
                self._service.broker.seen(*(question.id for question in session.questions))
        return response

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

        return await guarded(work(), self._service.redaction.text)

    def _for_user(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            async def work() -> Response:
                self._guard.check_place(request)
                # The user first: no handler runs for a request that is nobody's.
                user = await self._guard.user(request)
                self._used = time.monotonic()
                with self._bodies.of(user.principal, request):
                    return await handler(request, user)

            return await guarded(work(), self._service.redaction.text)

        return handle

    async def _unknown(self, request: Request) -> Response:
        async def nothing(_: Request, __: WebUser) -> Response:
            raise RequestRefused(404, "NOT_FOUND", "There is nothing here.")

        # Behind the same checks: without a sign-in nobody learns which addresses exist.
        return await self._for_user(nothing)(request)


# -- opening ----------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_LOOPBACK = Address("127.0.0.1", 0)
_LONGEST_PORT = 16


class Consoles:
    """The consoles of one service; all push leads to the first that is made."""

    def __init__(self, service: Service, find_hub: "Callable[[], Hub | None]") -> None:
        self._service = service
        self._find_hub = find_hub
        self._made: list[Console] = []
        self._following: asyncio.Task[None] | None = None
        self.push = Push(service, service.settings.state_dir / "web")
        service.observe(self.push)
        service.observe(self)
        service.broker.add_audience(self._expects)

    def console(self, address: Address, accounts: Accounts) -> Console:
        """The console of a server that listens there. Blocks on the disk."""
        # Passkeys are for a name: who signs in with one stays at that origin.
        named = self._service.settings.oauth and accounts.issuer is not None
        host = "localhost" if address.unspecified or named else address.host
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
        """The routes of such a console, none where the settings want none; and those of the embedded authorization
        server where they want that. Blocks on the disk."""
        console = self.console(address, accounts) if self._service.settings.web else None
        routes = console.routes() if console is not None else ()
        if not self._service.settings.oauth or accounts.issuer is None:
            return routes
        from .authorization.authorization_server import AuthorizationServer  # noqa: PLC0415 - its libraries are an extra

        link = console.link_for if console is not None else None
        authorization = AuthorizationServer(
            self._service, accounts.issuer, own_origin(self._service.settings, address), link
        )
        if console is not None:
            console.offer_sign_in()
        self._following = self._service.start_task(authorization.follow())
        return [*authorization.routes(), *routes]

    async def in_use(self, idle: float) -> bool:
        """Whether the server must stay for people with a browser: one is signed in, the page was used within so many
        seconds, or something is being pushed."""
        try:
            # First, since it is awaited: what follows is as it is at the end of this call.
            signed_in = [await asyncio.to_thread(console.signed_in) for console in self._made]
        except OSError as error:
            log.warning("who is signed in cannot be read: %s", error)
            return True
        used = (console.watched() or console.idle_seconds < idle for console in self._made)
        return any(signed_in) or any(used) or self.push.pending

    # -- who sees questions ---------------------------------------------------------------------------------------

    async def _expects(self, question: Question) -> bool:
        """Whether somebody with a browser, or with a receiver of notifications, may still come to see a question."""
        sessions = self._service.sessions(principal=None)
        owner = next((session.owner for session in sessions if session.id == question.session_id), None)
        if owner is None:
            return False

        def may_come() -> bool:
            return any(console.signed_in(owner) for console in self._made) or self.push.has_receiver(owner)

        return await asyncio.to_thread(may_come)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """A question that opens while the page is open is seen at once."""
        if isinstance(event, QuestionOpened) and any(console.watched(owner) for console in self._made):
            self._service.broker.seen(event.question.id)

    def act(self, act: AuditEvent) -> None:
        """Acts of callers show nothing to anybody."""

    @property
    def first(self) -> Console | None:
        return self._made[0] if self._made else None

    def close(self) -> None:
        """Ends all streams, and whatever push still tries."""
        for console in self._made:
            console.close()
        if self._following is not None:
            self._following.cancel()
        self.push.close()


class ConsolePort:
    """The port that a shared server opens for its user; none before that, unless it was open the last time."""

    def __init__(self, consoles: Consoles, service: Service, name: str) -> None:
        """`name` distinguishes the shared servers of a user."""
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
        # Two requests at once must not open two ports: the second one waits and finds the first one's.
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
            return self._server_at(fixed or self._remembered())
        except InvalidArgument:
            # Who has chosen a port expects the console there and nowhere else.
            if fixed:
                raise
            return self._server_at(0)

    def _server_at(self, port: int) -> HttpServer:
        def app(bound: Address) -> ASGIApp:
            # Before there is a console: one that is made counts as open, and links lead to it.
            private_directory(self._file.parent)
            replace_file(self._file, str(bound.port).encode())
            return plain_app(self._consoles.routes(bound, self._accounts))

        return HttpServer(
            replace(_LOOPBACK, port=port),
            app,
            settings=self._service.settings,
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
