"""The routes of the page for authenticated users, on one service. A console serves them behind its sign-in
(`console.py`); a machine of a fleet serves them to the consoles of gateways, which name the user
(`plugins/fleet/page_link.py`)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ...core.model.events import AuditEvent, Event, QuestionOpened
from ...core.model.options import BYPASS
from ...core.service import Service
from ...server.api_parts import ApiPart, Handler, Handlers
from ...server.web_answers import BodyRoom, RequestRefused, guarded
from .change_routes import ChangeRoutes
from .directory_routes import DirectoryRoutes
from .feeds import Feeds, Streams
from .guard import WebUser
from .session_routes import QUESTIONS, OverviewRoutes, QuestionRoutes, SessionRoutes, SharingRoutes

if TYPE_CHECKING:
    from ...hub.hub import Hub

StillSignedIn = Callable[[WebUser], Awaitable[bool]]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class PageRoutes(Protocol):
    """What a console serves to signed-in users."""

    def handlers(self) -> Handlers:
        """Everything but the sign-in."""

    async def facts(self, user: WebUser) -> dict[str, Any]:
        """The server's part of `/api/me`."""

    def clean(self, text: str) -> str:
        """A refusal's message, redacted."""

    def watched(self, principal: str | None = None) -> bool:
        """Whether anyone, or this principal, has the page open."""

    def check_sign_ins(self, principal: str) -> None:
        """Makes every stream of a principal check whether its sign-in is still valid."""

    def close(self) -> None:
        """Ends every open stream."""


class ServiceRoutes:
    """The routes on one service. Event streams end when the user is no longer signed in."""

    def __init__(
        self,
        service: Service,
        find_hub: "Callable[[], Hub | None]",
        still_signed_in: StillSignedIn,
        parts: Sequence[ApiPart] = (),
    ) -> None:
        """`find_hub` returns the current hub, which may appear later than the routes; `parts` come from plug-ins."""
        self._service = service
        self._find_hub = find_hub
        self._parts = parts
        feeds = Feeds(service)
        service.observe(feeds)
        service.observe(self)
        self._streams = Streams(service, still_signed_in, feeds)

    def handlers(self) -> Handlers:
        service, path = self._service, "/sessions/{session}"
        sessions, sharing = SessionRoutes(service), SharingRoutes(service)
        changes, questions = ChangeRoutes(service), QuestionRoutes(service)
        handlers: list[tuple[str, str, Handler]] = [
            ("GET", "/events", self._open_stream),
            ("GET", "/sessions", sessions.list),
            ("POST", "/sessions", sessions.create),
            ("GET", path, sessions.show),
            ("GET", f"{path}/turns", sessions.turns),
            ("GET", f"{path}/timeline", sessions.timeline),
            ("GET", f"{path}/find", sessions.find),
            ("GET", f"{path}/commands", sessions.commands),
            ("POST", f"{path}/export", sessions.export),
            ("GET", "/directories", DirectoryRoutes(service).list),
            ("GET", f"{path}/files", sessions.files),
            ("GET", path + "/turns/{turn}/items/{item}", sessions.item),
            ("GET", path + "/turns/{turn}/images/{image}", sessions.image),
            ("GET", f"{path}/changes", changes.changes),
            ("GET", f"{path}/changes/amount", changes.amount),
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
            ("GET", QUESTIONS.path, questions.list),
            ("GET", path + "/questions/{question}", questions.show),
            ("POST", path + "/questions/{question}", questions.answer),
            *OverviewRoutes(service, self._find_hub).handlers(),
        ]
        return [*handlers, *(handler for part in self._parts for handler in part.handlers())]

    async def facts(self, user: WebUser) -> dict[str, Any]:
        policy = self._service.policy_for(user.caller)
        facts = {
            "modes": [mode for mode in policy.modes if mode != BYPASS or policy.bypass_usable],
            "push": False,  # unless a part says otherwise
            "directories": await asyncio.to_thread(policy.directories),
            "bypassPossible": policy.bypass_possible,
            "hub": self._find_hub() is not None,
            "allCosts": policy.sees_all_costs,
        }
        for part in self._parts:
            facts |= await part.facts(user)
        return facts

    def clean(self, text: str) -> str:
        return self._service.redaction.text(text)

    def watched(self, principal: str | None = None) -> bool:
        return self._streams.watched(principal)

    def check_sign_ins(self, principal: str) -> None:
        self._streams.check_sign_ins(principal)

    def close(self) -> None:
        self._streams.close()

    # -- who sees questions ---------------------------------------------------------------------------------------

    async def _open_stream(self, request: Request, user: WebUser) -> Response:
        response = await self._streams.open(request, user)
        # From now on the open page shows open questions, at least in its list.
        for session in self._service.sessions(principal=user.principal):
            # A viewer of a shared session does not start the time limit of a question.
            if self._service.access.may_answer(session.id, user.principal):
                self._service.broker.seen(*(question.id for question in session.questions))
        return response

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """A question that opens while the page is open counts as seen at once."""
        if isinstance(event, QuestionOpened) and self.watched(owner):
            self._service.broker.seen(event.question.id)

    def act(self, act: AuditEvent) -> None:
        """Audit events are not shown."""


def api_routes(
    handlers: Handlers, user_of: Callable[[Request], Awaitable[WebUser]], clean: Callable[[str], str]
) -> list[BaseRoute]:
    """The routes below `/api`, and 404 for every other address there. Handlers are called only with a user from
    `user_of`; otherwise RequestRefused."""

    bodies = BodyRoom()

    def for_user(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            async def work() -> Response:
                # Authenticates first: no handler runs for an unauthenticated request.
                user = await user_of(request)
                with bodies.of(user.principal, request):
                    return await handler(request, user)

            return await guarded(work(), clean)

        return handle

    async def nothing(_: Request, __: WebUser) -> Response:
        raise RequestRefused(404, "NOT_FOUND", "Not found.")

    routes = [Route(f"/api{path}", for_user(handler), methods=[method]) for method, path, handler in handlers]
    # Behind the same checks: without a sign-in the existing addresses are not revealed.
    return [*routes, Route("/api/{rest:path}", for_user(nothing), methods=[*METHODS])]
