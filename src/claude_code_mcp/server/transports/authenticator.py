"""Authentication over HTTP in addition to the operator's tokens: the interface, and the services it can use.

The server itself knows the tokens of the settings and of the tokens file (`tokens_file.py`). A plug-in adds other ways
to authenticate, such as access tokens of an OAuth issuer, as subclasses of `Authenticator`.
"""

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ...core.config import Settings
from ...core.model.events import AuditEvent
from ...core.state.database import Database
from .identity import Identity
from .running_calls import AccessUntil

if TYPE_CHECKING:
    from .callers import Callers
    from .http import Address


class HttpService(Protocol):
    """The service behind an HTTP server: a `Service`, or the gateway of a fleet."""

    @property
    def settings(self) -> Settings: ...

    @property
    def state(self) -> Database: ...

    @property
    def own_addresses(self) -> list[str]: ...

    def audit(self, event: AuditEvent) -> None: ...

    def add_secrets(self, secrets: Iterable[str]) -> None: ...

    def start_task(self, work: Coroutine[Any, Any, Any], /, *, endless: bool = False) -> "asyncio.Task[Any]": ...

    async def admit(self, principal: str, groups: Collection[str], /) -> str | None: ...

    def assign(self, principal: str, groups: Collection[str], /) -> None: ...

    async def why_restart_for(self, principal: str, /) -> str | None: ...


class SignInPage(Protocol):
    """A page for people, such as the console. A link signs in one browser, once."""

    @property
    def url(self) -> str: ...

    async def link_for(self, identity: Identity) -> str:
        """A link for this identity. Raises OSError."""

    def check_host(self, request: Request) -> str:
        """The host name of a request; RequestRefused if it is not a name of this server."""

    def refused(self) -> None:
        """Call this for each failed sign-in."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """Where clients get access tokens (RFC 9728), sent to clients without a valid one."""

    issuer: str
    resource: str
    """The MCP endpoint, as the tokens name it."""
    scopes: tuple[str, ...] = ()
    """The scopes that each token must have."""


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """The result of a valid token."""

    identity: Identity
    access: AccessUntil
    scopes: Collection[str]


class Authenticator:
    """One way to authenticate. The default admits no one. Methods raise UpstreamUnavailable while they cannot decide,
    and RateLimited for an address that fails too often."""

    # -- start ------------------------------------------------------------------------------------------------

    def check(self, address: "Address") -> None:
        """InvalidArgument if it cannot work on a server that listens at this address."""

    def serve(self, callers: "Callers", service: HttpService, address: "Address") -> None:
        """Called once, when the server has its address and before its first request. Blocks on the disk."""

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """A middleware around the whole application. It sees the address of the peer itself: the headers of proxies
        are read inside."""
        return app

    async def follow(self) -> None:
        """Watch for changes, for as long as the server runs."""

    # -- its routes -------------------------------------------------------------------------------------------

    def challenge(self) -> Challenge | None:
        """Where clients get tokens; None if it does not use tokens."""
        return None

    def origin(self) -> str | None:
        """The only origin at which browsers can use it; None if any works."""
        return None

    def routes(self, page: SignInPage | None) -> Sequence[BaseRoute]:
        """Its routes. They check their callers themselves. Called once; blocks on the disk."""
        return ()

    @property
    def offers_sign_in(self) -> bool:
        """Whether people can sign in at `/sign-in`."""
        return False

    async def sign_out_address(self, identity: Identity) -> str | None:
        """Where a person who signed in there also signs out."""
        return None

    # -- identifying callers ----------------------------------------------------------------------------------

    async def by_token(self, token: str) -> AdmittedCaller | None:
        """The caller with this token; None if it is not valid here."""
        return None

    async def by_request(self, request: Request) -> Identity | None:
        """The identity that the request itself names, for example in a trusted proxy's header."""
        return None

    def is_named_in(self, request: Request) -> bool:
        """Whether `by_request` may find an identity."""
        return False

    def has(self, identity: Identity) -> bool:
        """Whether exactly this person has been admitted since the server started."""
        return False

    def must_be_named(self, identity: Identity) -> bool:
        """Whether each request of this identity must name it again (`by_request`)."""
        return False

    async def stands(self, identity: Identity) -> bool:
        """Whether this identity is still admitted now."""
        return False

    def access_of(self, identity: Identity) -> AccessUntil | None:
        """Until when this identity's credential admits it; None if it does not."""
        return None

    def scopes_of(self, identity: Identity) -> Collection[str]:
        """The scopes of this identity."""
        return ()

    def knows(self, name: str) -> bool:
        """Whether a principal of this name has been admitted since the server started."""
        return False

    def remembers(self, name: str) -> bool:
        """Like `knows`, but includes admissions by earlier servers."""
        return False

    def drop(self, names: Collection[str]) -> list[Identity]:
        """Revoke the admission of these names, which now belong to callers with tokens; return the identities that were
        admitted."""
        return []
