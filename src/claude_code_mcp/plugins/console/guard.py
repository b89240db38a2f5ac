"""Who a request is from, and who can sign in: the checks that stand before everything else.

A sign-in rests on a token (it ends when that token is no longer the principal's), on the socket of the shared server,
which only its own user can reach, on the word of a trusted proxy, which must say the same with every request, or on
nothing where the server lets everybody on this machine in.

The Host must be one of ours, so that no foreign name leads here (DNS rebinding). A browser must say that the page which
asks is ours (Origin, Sec-Fetch-Site). Then a bearer token counts; or else a cookie together with the header
`X-CSRF-Token`, whose value only our own page has. Cookies are shared by all ports of a host, the storage of a page is
not: the cookie alone, which a server on another port may get to see, opens nothing.
"""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ...core.model.caller import LOCAL, Caller
from ...core.model.text import base64url
from ...server.transports.callers import Callers
from ...server.transports.running_calls import FailureLimit
from ...server.web_answers import RequestRefused
from ..team.known_people import SIGN_IN_SECONDS, Identity, NewSignIn, SignIn, SignIns
from ..team.people import is_person, user_of

OPEN, SOCKET = "open", "socket"
_PROXY_SECONDS = 12 * 3600.0
"""After which somebody whom a proxy has let in signs in anew, which the page does by itself."""


class Accounts:
    """The identities that can sign in at one server, and what each rests on."""

    def __init__(self, callers: Callers | None, *, by_socket: bool = False) -> None:
        """`callers` have tokens. `by_socket`: tickets that were given through the shared server's socket count. A
        server that asks for no token and has no socket is open."""
        self._callers = callers
        self._by_socket = by_socket

    @property
    def takes_tokens(self) -> bool:
        return self._callers is not None and self._callers.required

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches this server is its user."""
        return not self._by_socket and not self.takes_tokens

    @property
    def issuer(self) -> Callers | None:
        """The callers, if people can sign in at the operator's own issuer."""
        return self._callers if self._callers is not None and self._callers.open else None

    async def by_proxy(self, request: Request) -> Identity | None:
        """Whom a trusted proxy has let in with this request; None without one, or if they cannot be let in."""
        user = user_of(request.scope)
        return None if user is None or self._callers is None else await self._callers.by_proxy(user, _PROXY_SECONDS)

    def is_proxied(self, identity: Identity) -> bool:
        """Whether users named by a trusted proxy are let in."""
        proxied = self._callers.proxied if self._callers is not None else None
        return proxied is not None and proxied.has(identity)

    def anybody(self) -> Identity | None:
        """The identity of a caller who brings neither a ticket nor a token; None where such callers are refused."""
        return Identity(LOCAL, OPEN) if self.is_open else None

    def of_user(self) -> Identity:
        """The user of the shared server, who has asked through its socket."""
        return Identity(LOCAL, SOCKET)

    async def by_token(self, token: str) -> Identity | None:
        """The identity that a token belongs to, None if it is nobody's. Raises UpstreamUnavailable while that cannot be
        decided."""
        return None if self._callers is None else await self._callers.by_token(token)

    async def stands(self, identity: Identity) -> bool:
        """Whether what a ticket or a sign-in rests on still holds here; if so, the request that asks is that caller's
        and ends with it. UpstreamUnavailable while that cannot be said."""
        if identity.credential == OPEN:
            return self.is_open
        if identity.credential == SOCKET:
            return self._by_socket
        if self._callers is None or not await self._callers.stands(identity):
            return False
        self._callers.claim(identity)
        return True

    def has(self, principal: str) -> bool:
        """Whether somebody of this name can sign in, as far as is known."""
        return principal == LOCAL or (self._callers is not None and self._callers.remembers(principal))


# -- guard ------------------------------------------------------------------------------------------------------------


CSRF_HEADER = "x-csrf-token"
_FAILURES = 10
"""Failed sign-ins of one address within a minute."""
_LONGEST_SECRET = 4096


@dataclass(frozen=True, slots=True)
class WebUser:
    """The authenticated sender of a request. `sign_in` is None if the request came with a token."""

    identity: Identity
    sign_in: SignIn | None

    @property
    def principal(self) -> str:
        return self.identity.principal

    @property
    def caller(self) -> Caller:
        return Caller(self.principal)

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
        """`origins` are those that pages may come from beside the host that is asked itself; `refused` is called for
        every failed sign-in and unknown token."""
        self._sign_ins = sign_ins
        self._accounts = accounts
        self._host_allowed = host_allowed
        self._origins = origins
        self._cookie = f"claude_code_mcp_{port}"
        """With the port: two servers of one machine share their cookies."""
        self._refused = refused
        self._limit = FailureLimit(_FAILURES)
        self.phone_host: str | None = None
        """The name under which a tunnel or a relay serves this server for a phone."""
        self.offers_provider = False
        """Whether people can sign in at the operator's own provider."""

    def check_host(self, request: Request) -> str:
        """The name that the request was sent to. Raises RequestRefused (421) if it is none of ours."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not (hosts[0] == self.phone_host or self._host_allowed(hosts[0])):
            raise RequestRefused(421, "FORBIDDEN", "This server is not served under that name.")
        return hosts[0]

    def check_place(self, request: Request) -> None:
        """RequestRefused for a request that was sent to another name, or by the page of another server."""
        host = self.check_host(request)
        origin = request.headers.get("origin")
        own = (f"http://{host}", f"https://{host}")
        if origin is not None and origin not in own and origin not in self._origins:
            raise RequestRefused(403, "FORBIDDEN", "Pages of other servers may not ask this one.")
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise RequestRefused(403, "FORBIDDEN", "Pages of other servers may not ask this one.")

    async def user(self, request: Request) -> WebUser:
        """The authenticated sender of a request that has passed `check_place`. Raises RequestRefused (401) if there is
        none, and 429 for an address that has failed too often with tokens."""
        token = _bearer(request)
        if token is not None:
            # Before the token is looked at: an address that guesses
            # must not learn whether one of its guesses was right.
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
        """The sign-in that the browser's cookie and CSRF token stand for; None if there is none that still counts. One
        whose token or socket counts no more is ended."""
        cookie, csrf = self.cookie_of(request), request.headers.get(CSRF_HEADER, "")
        if not cookie or not csrf or len(cookie) > _LONGEST_SECRET or len(csrf) > _LONGEST_SECRET:
            return None
        found = await asyncio.to_thread(self._sign_ins.find, cookie, csrf)
        if found is not None and self._accounts.is_proxied(found.identity):
            # With every request: whoever the proxy lets in no more, or as somebody else, is signed in no more.
            user = user_of(request.scope)
            if user is None or user[0] != found.identity.principal:
                return None
            # Nor are the groups those of the sign-in, hours ago, but those that it says now.
            if await self._accounts.by_proxy(request) != found.identity:
                return None
        if found is not None and not await self._accounts.stands(found.identity):
            # Ended for good: if the same token is given out again, an old browser must not be signed in by that.
            await asyncio.to_thread(self._sign_ins.end, found.id, found.identity.principal)
            return None
        return found

    async def still_signed_in(self, user: WebUser) -> bool:
        """Whether somebody from before still may ask."""
        if user.sign_in is not None and not await asyncio.to_thread(self._sign_ins.stands, user.sign_in.id):
            return False
        return await self._accounts.stands(user.identity)

    def _signed_out(self, request: Request) -> RequestRefused:
        sign_in = {
            "token": self._accounts.takes_tokens,
            "open": self._accounts.is_open or user_of(request.scope) is not None,
            "provider": self.offers_provider,
        }
        return RequestRefused(401, "SIGNED_OUT", "You are not signed in.", more={"signIn": sign_in})

    async def refuse_ticket_of_another(self, request: Request, ticket: str) -> None:
        """RequestRefused for the ticket of one person in the browser of another, which is not used up by this: with a
        link of their own somebody could have others work in their name, and read what they write."""
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
        """A new sign-in by a ticket, a token, or nothing where anybody may. RequestRefused if that is not good."""
        address = _address(request)
        # Before the ticket is looked up, which uses it up.
        self._limit.check(address)
        identity = await self._identity(request, ticket, token)
        # A ticket outlives what it rests on: the token may have been withdrawn since it was given.
        if identity is None or not await self._accounts.stands(identity):
            self._note_failure(request)
            raise RequestRefused(
                401, "SIGN_IN_FAILED", "The ticket or the token is not valid; a ticket works once, for a while."
            )
        return await asyncio.to_thread(self._sign_ins.begin, identity, device)

    async def _identity(self, request: Request, ticket: str | None, token: str | None) -> Identity | None:
        if ticket is not None:
            return await asyncio.to_thread(self._sign_ins.use_ticket, ticket)
        if token is not None:
            found = await self._accounts.by_token(token)
            # An access token lasts minutes and can be taken back: a sign-in would outlast it by weeks.
            return None if found is not None and is_person(found) else found
        return await self._accounts.by_proxy(request) or self._accounts.anybody()

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
    """Whether the browser reaches us over HTTPS, also through a proxy: it says where its page is from."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _bearer(request: Request) -> str | None:
    value = request.headers.get("authorization")
    if value is None:
        return None
    scheme, _, token = value.partition(" ")
    # Another scheme is a failed try and not an absence: it must not fall back to the cookie.
    return token.strip() if scheme.casefold() == "bearer" else ""


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


# -- what only this server can have made ------------------------------------------------------------------------------


class OneTimeTexts:
    """Texts that go through a browser and come back: whether this process made them, and whether they came before.

    Nothing is remembered of those on their way, so that nobody can push out those of others by beginning many; of those
    that have come back, the latest `most`. After a restart none counts any more.
    """

    def __init__(self, most: int = 1000) -> None:
        self._key = secrets.token_bytes(32)
        self._most = most
        self._used: OrderedDict[str, None] = OrderedDict()

    def derived(self, purpose: str, text: str) -> str:
        """What only this process can make of a text, another one for each purpose; 43 characters."""
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return base64url(hmac.digest(self._key, message, "sha256"))

    def is_derived(self, presented: str, purpose: str, text: str) -> bool:
        return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), self.derived(purpose, text).encode())

    def use(self, text: str) -> bool:
        """Uses a text up; whether that was not done before."""
        if text in self._used:
            return False
        self._used[text] = None
        if len(self._used) > self._most:
            self._used.popitem(last=False)
        return True
