"""Routes below `/api` that a plug-in adds, for people who have signed in to the console."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..core.model.caller import Caller
from .transports.identity import Identity


class ApiUser:
    """The authenticated sender of a request below `/api`."""

    identity: Identity

    @property
    def principal(self) -> str:
        return self.identity.principal

    @property
    def caller(self) -> Caller:
        return Caller(self.principal)

    @property
    def device(self) -> str:
        """The device that a person signed in on; empty for a program with a token."""
        return ""


Handler = Callable[[Request, Any], Awaitable[Response]]
"""Called with the request and its `ApiUser`."""
Handlers = Sequence[tuple[str, str, Handler]]
"""The HTTP method, the path below `/api`, and the handler of each route."""


class ApiPart:
    """Override the methods that you need; each does nothing by default."""

    def handlers(self) -> Handlers:
        return ()

    async def facts(self, user: Any) -> dict[str, Any]:
        """Additional fields for `/api/me`."""
        return {}

    def page_opened(self, url: str, knows: Callable[[str], bool]) -> None:
        """Called when the first page is served at this URL; `knows` returns whether a principal can still sign in. May
        be called from any thread."""

    def page_moved(self, url: str) -> None:
        """Called when the URL of the page has changed."""

    async def reaches(self, principal: str) -> bool:
        """Whether this principal gets notified of questions while no page is open."""
        return False

    @property
    def pending(self) -> bool:
        """Whether the server must keep running to finish something."""
        return False

    def close(self) -> None:
        """Called when the server stops."""
