"""The checks before every request: who sent it, and who can sign in.

The basis of a sign-in is one of these: a token (the sign-in ends when the token is no longer the principal's); the
socket of the shared server, which only its own user can reach; a trusted proxy, which must name the same person in
every request; or nothing, on a server that admits everyone on this machine.

The Host must be one of ours, so that no foreign name leads here (DNS rebinding). A browser must report that the
requesting page is ours (Origin, Sec-Fetch-Site). Then a bearer token counts, or otherwise a cookie together with the
header `X-CSRF-Token`, whose value only our own page has. All ports of a host share cookies but not a page's storage: a
server on another port may receive the cookie, but the cookie alone grants no access.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ...core.model.caller import LOCAL
from ...server.api_parts import ApiUser
from ...server.transports.callers import Callers
from ...server.transports.identity import Identity
from ...server.transports.running_calls import FailureLimit
from ...server.web_answers import RequestRefused
from .sign_ins import SIGN_IN_SECONDS, NewSignIn, SignIn, SignIns

OPEN, SOCKET = "open", "socket"


class Accounts:
    """The identities that can sign in to one server, and the basis of each."""

    def __init__(self, callers: Callers | None, *, by_socket: bool = False) -> None:
        """`callers` have tokens. `by_socket`: tickets from the shared server's socket are valid. A server without
        tokens and socket is open."""
        self._callers = callers
        self._by_socket = by_socket

    @property
    def takes_tokens(self) -> bool:
        return self._callers is not None and self._callers.required

    @property
    def is_open(self) -> bool:
        """Whether everyone who reaches this server is its user."""
        return not self._by_socket and not self.takes_tokens

    @property
    def origin(self) -> str | None:
        """The only origin at which people can sign in; None if any works."""
        return self._callers.origin if self._callers is not None else None

    @property
    def offers_sign_in(self) -> bool:
        """Whether people can sign in with an account, at `/sign-in`."""
        return self._callers is not None and self._callers.offers_sign_in

    async def sign_out_address(self, identity: Identity) -> str | None:
        """The sign-out address of the account that a person signed in with; None without one."""
        return await self._callers.sign_out_address(identity) if self._callers is not None else None

    async def by_request(self, request: Request) -> Identity | None:
        """The identity in the request itself, for example from a trusted proxy; None if it names no admitted person."""
        return await self._callers.by_request(request) if self._callers is not None else None

    def is_named_in(self, request: Request) -> bool:
        """Whether the request itself names a person."""
        return self._callers is not None and self._callers.is_named_in(request)

    def must_be_named(self, identity: Identity) -> bool:
        """Whether each request of this identity must name it again."""
        return self._callers is not None and self._callers.must_be_named(identity)

    def anonymous_identity(self) -> Identity | None:
        """The identity of callers without ticket and token; None if they are refused."""
        return Identity(LOCAL, OPEN) if self.is_open else None

    def of_user(self) -> Identity:
        """The shared server's user, identified by the socket."""
        return Identity(LOCAL, SOCKET)

    async def by_token(self, token: str) -> Identity | None:
        """A token's identity; None if it is invalid. Raises UpstreamUnavailable if that cannot be determined now."""
        return None if self._callers is None else await self._callers.by_token(token)

    async def stands(self, identity: Identity) -> bool:
        """Whether the basis of a ticket or sign-in is still valid; if so, the request is that caller's and ends with
        it. Raises UpstreamUnavailable if that cannot be determined now."""
        if identity.credential == OPEN:
            return self.is_open
        if identity.credential == SOCKET:
            return self._by_socket
        if self._callers is None or not await self._callers.stands(identity):
            return False
        self._callers.claim(identity)
        return True

    def has(self, principal: str) -> bool:
        """Whether a person with this name can sign in, as far as known."""
        return principal == LOCAL or (self._callers is not None and self._callers.remembers(principal))


CSRF_HEADER = "x-csrf-token"
_FAILURES = 10
"""Failed sign-ins per address and minute."""
_MAX_SECRET = 4096


@dataclass(frozen=True, slots=True)
class WebUser(ApiUser):
    """The authenticated sender of a request. `sign_in` is None for a request with a token."""

    identity: Identity
    sign_in: SignIn | None

    @property
    def device(self) -> str:
        return self.sign_in.device if self.sign_in is not None else ""


class Guard:
    """The checks of one server."""

    def __init__(
        self,
        sign_ins: SignIns,
        accounts: Accounts,
        *,
        host_allowed: Callable[[str], bool],
        origins: frozenset[str],
        port: int,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """`origins` are permitted page origins in addition to the requested host; `refused` is called for every failed
        sign-in and unknown token."""
        self._sign_ins = sign_ins
        self._accounts = accounts
        self._host_allowed = host_allowed
        self._origins = origins
        self._cookie = f"claude_code_mcp_{port}"
        """Includes the port, because two servers on one machine share their cookies."""
        self._refused = refused
        self._limit = FailureLimit(_FAILURES)
        self.phone_host: str | None = None
        """The host name under which a tunnel or relay serves this server for a phone."""

    def check_host(self, request: Request) -> str:
        """The host name of the request. Raises RequestRefused (421) if it is not ours."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not (hosts[0] == self.phone_host or self._host_allowed(hosts[0])):
            raise RequestRefused(421, "FORBIDDEN", "This server does not serve that host name.")
        return hosts[0]

    def check_place(self, request: Request) -> None:
        """Raises RequestRefused for a request to another host name, or from a page of another server."""
        host = self.check_host(request)
        origin = request.headers.get("origin")
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and origin not in self._origins:
            raise RequestRefused(403, "FORBIDDEN", "Requests from pages of other origins are not allowed.")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RequestRefused(403, "FORBIDDEN", "Requests from pages of other origins are not allowed.")

    async def user(self, request: Request) -> WebUser:
        """The authenticated sender of a request that passed `check_place`. Raises RequestRefused: 401 without one, and
        429 for an address with too many failed tokens."""
        token = _bearer(request)
        if token is not None:
            # Before the token is checked: an address that guesses tokens must not learn whether one guess was right.
            self._limit.check(_address(request))
            identity = await self._accounts.by_token(token)
            if identity is not None:
                return WebUser(identity, None)
            self._note_failure(request)
            raise self._signed_out(request)
        found = await self._signed_in(request)
        if found is None:
            raise self._signed_out(request)
        return WebUser(found.identity, found)

    async def _signed_in(self, request: Request) -> SignIn | None:
        """The sign-in of the browser's cookie and CSRF token; None if invalid. Ends a sign-in whose token or socket is
        no longer valid."""
        cookie, csrf = self.cookie_of(request), request.headers.get(CSRF_HEADER, "")
        if not cookie or not csrf or len(cookie) > _MAX_SECRET or len(csrf) > _MAX_SECRET:
            return None
        found = await asyncio.to_thread(self._sign_ins.find, cookie, csrf)
        # Checked with every request: a person whom the proxy no longer admits, or names differently, is no longer
        # signed in. The groups are the ones that the proxy names now, not the ones from the sign-in hours ago.
        if (
            found is not None
            and self._accounts.must_be_named(found.identity)
            and await self._accounts.by_request(request) != found.identity
        ):
            return None
        if found is not None and not await self._accounts.stands(found.identity):
            # Ended permanently: if the same token is issued again, an old browser must not be signed in by it.
            await asyncio.to_thread(self._sign_ins.end, found.id, found.identity.principal)
            return None
        return found

    async def still_signed_in(self, user: WebUser) -> bool:
        """Whether an earlier sender may still make requests."""
        if user.sign_in is not None and not await asyncio.to_thread(self._sign_ins.stands, user.sign_in.id):
            return False
        return await self._accounts.stands(user.identity)

    def _signed_out(self, request: Request) -> RequestRefused:
        sign_in = {
            "token": self._accounts.takes_tokens,
            "open": self._accounts.is_open or self._accounts.is_named_in(request),
            "provider": self._accounts.offers_sign_in,
        }
        return RequestRefused(401, "SIGNED_OUT", "You are not signed in.", more={"signIn": sign_in})

    async def refuse_ticket_of_another(self, request: Request, ticket: str) -> None:
        """Raises RequestRefused for one person's ticket in another's browser, without using it up: with their own link,
        a person could make others act in their name and read what they write."""
        current = await self._signed_in(request)
        if current is None:
            return
        other = await asyncio.to_thread(self._sign_ins.look_at_ticket, ticket)
        if other is not None and other.principal != current.identity.principal:
            raise RequestRefused(
                409,
                "OTHER_PERSON",
                f"You are signed in as {current.identity.principal}. This link signs you in as {other.principal}.",
            )

    async def sign_in(self, request: Request, ticket: str | None, token: str | None, device: str) -> NewSignIn:
        """A new sign-in with a ticket, a token, or nothing on an open server. Raises RequestRefused."""
        address = _address(request)
        # Before the ticket is looked up, because that uses it up.
        self._limit.check(address)
        identity = await self._identity(request, ticket, token)
        # A ticket outlives its basis: the token may have been revoked since the ticket was issued.
        if identity is None or not await self._accounts.stands(identity):
            self._note_failure(request)
            raise RequestRefused(
                401, "SIGN_IN_FAILED", "The ticket or token is not valid. A ticket works once and expires."
            )
        return await asyncio.to_thread(self._sign_ins.begin, identity, device)

    async def _identity(self, request: Request, ticket: str | None, token: str | None) -> Identity | None:
        if ticket is not None:
            return await asyncio.to_thread(self._sign_ins.use_ticket, ticket)
        if token is not None:
            found = await self._accounts.by_token(token)
            # An access token lasts minutes and can be revoked: a sign-in would outlast it by weeks.
            return found if found is not None and found.has_operator_token else None
        return await self._accounts.by_request(request) or self._accounts.anonymous_identity()

    def _note_failure(self, request: Request) -> None:
        self._limit.failed(_address(request))
        self._refused()

    def cookie_of(self, request: Request) -> str:
        return request.cookies.get(self._cookie, "")

    def set_cookie(self, request: Request, response: Response, value: str) -> None:
        response.set_cookie(
            self._cookie,
            value,
            max_age=int(SIGN_IN_SECONDS),
            path="/",
            secure=_is_encrypted(request),
            httponly=True,
            samesite="strict",
        )

    def clear_cookie(self, request: Request, response: Response) -> None:
        response.delete_cookie(self._cookie, path="/", secure=_is_encrypted(request), httponly=True, samesite="strict")


def _is_encrypted(request: Request) -> bool:
    """Whether the browser uses HTTPS, also through a proxy: it reports its page's origin."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _bearer(request: Request) -> str | None:
    value = request.headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    # Another scheme is a failed attempt, not a missing token: it must not fall back to the cookie.
    return token.strip() if scheme.casefold() == "bearer" else ""


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""
