"""The console of one server: its routes, behind its guard, and the links to it.

Every route but the page and the sign-in needs a caller; a handler is only ever called with one. What is done
is done through the service, as every other frontend.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..model.events import AuditEvent, AuditKind
from ..service import Service
from ..state.sign_ins import Identity, SignIns
from ..state.state_directory import database_in
from .accounts import Accounts
from .answers import RequestRefused, guarded, refusal
from .feeds import Feeds
from .guard import Guard, WebCaller
from .overview_routes import OverviewRoutes
from .page import FILES, PageFiles
from .push.delivery import Push
from .push.push_routes import PushRoutes
from .question_routes import QuestionRoutes
from .session_routes import SessionRoutes
from .sign_in_routes import SignInRoutes
from .stream import Streams

if TYPE_CHECKING:  # a server without a hub does not pay for one
    from ..hub.hub import Hub

Handler = Callable[[Request, WebCaller], Awaitable[Response]]


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
        self._sign_ins = SignIns(database_in(settings.state_dir))
        origins = frozenset({*settings.http_allowed_origins, public})
        self._guard = Guard(
            self._sign_ins, accounts, host_allowed=host_allowed, origins=origins, port=port, refused=self._refused
        )
        self._feeds = Feeds(service)
        service.observe(self._feeds)
        self._streams = Streams(service, self._guard, self._feeds)
        self._sessions = SessionRoutes(service)
        self._questions = QuestionRoutes(service)
        self._overview = OverviewRoutes(service, find_hub)
        self._push = PushRoutes(service, push)

        def server_facts() -> dict[str, Any]:
            return {"hub": find_hub() is not None, "vapidPublicKey": push.public_key}

        self._signing_in = SignInRoutes(service, self._guard, self._sign_ins, self._streams, self._link, server_facts)

    @property
    def watched(self) -> bool:
        """Whether anybody has the page open."""
        return self._streams.watched

    def _refused(self) -> None:
        self._service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))

    def _link(self, ticket: str) -> str:
        return f"{self.url}#ticket={ticket}"

    async def new_link(self, identity: Identity) -> dict[str, Any]:
        """A link with which somebody signs in once as this caller. Raises OSError."""
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, identity)
        self._service.audit(AuditEvent(AuditKind.TICKET_GIVEN, identity.principal))
        return {"url": self._link(ticket), "address": self.url, "expires_at": expires_at}

    def close(self) -> None:
        """Ends every open stream."""
        self._streams.close()

    # -- routes ---------------------------------------------------------------------------------------------------

    def routes(self) -> Sequence[BaseRoute]:
        """All of them."""
        routes: list[BaseRoute] = [Route(path, self._file, methods=["GET"]) for path in FILES]
        routes.append(Route("/api/sign-in", self._sign_in, methods=["POST"]))
        routes += [
            Route(f"/api{path}", self._for_caller(handler), methods=[method])
            for method, path, handler in self._handlers()
        ]
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return [*routes, Route("/api/{rest:path}", self._unknown, methods=methods)]

    def _handlers(self) -> list[tuple[str, str, Handler]]:
        signing_in, sessions, questions, overview, push = (
            self._signing_in,
            self._sessions,
            self._questions,
            self._overview,
            self._push,
        )
        path = "/sessions/{session}"
        return [
            ("GET", "/me", signing_in.me),
            ("POST", "/sign-out", signing_in.sign_out),
            ("GET", "/sign-ins", signing_in.list),
            ("DELETE", "/sign-ins/{sign_in}", signing_in.end),
            ("POST", "/tickets", signing_in.ticket),
            ("GET", "/events", self._streams.open),
            ("GET", "/sessions", sessions.list),
            ("POST", "/sessions", sessions.create),
            ("GET", path, sessions.show),
            ("GET", f"{path}/turns", sessions.turns),
            ("GET", path + "/turns/{turn}/items/{item}", sessions.item),
            ("POST", f"{path}/messages", sessions.send),
            ("POST", f"{path}/interrupt", sessions.interrupt),
            ("POST", f"{path}/cancel", sessions.cancel),
            ("POST", f"{path}/fork", sessions.fork),
            ("POST", f"{path}/manage", sessions.manage),
            ("GET", "/questions", questions.list),
            ("GET", path + "/questions/{question}", questions.show),
            ("POST", path + "/questions/{question}", questions.answer),
            ("GET", "/costs", overview.costs),
            ("GET", "/mcp-servers", overview.servers),
            ("POST", "/mcp-servers/{server}", overview.steer),
            ("GET", "/push", push.show),
            ("PUT", "/push", push.change),
            ("POST", "/push/receivers", push.add),
            ("DELETE", "/push/receivers/{receiver}", push.remove),
            ("POST", "/push/receivers/{receiver}/test", push.test),
        ]

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

    def _for_caller(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            async def work() -> Response:
                self._guard.check_place(request)
                return await handler(request, await self._guard.caller(request))

            return await guarded(work(), self._service.redaction.text)

        return handle

    async def _unknown(self, request: Request) -> Response:
        async def nothing(_: Request, __: WebCaller) -> Response:
            raise RequestRefused(404, "NOT_FOUND", "There is nothing here.")

        return await self._for_caller(nothing)(request)
