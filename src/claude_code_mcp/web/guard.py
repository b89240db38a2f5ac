"""Who a request is from: the checks that stand before everything else, in this order.

The Host must be one of ours, so that no foreign name leads here (DNS rebinding). A browser must say that the page which
asks is ours (Origin, Sec-Fetch-Site). Then a bearer token counts; or else a cookie together with the header
`X-CSRF-Token`, whose value only our own page has. Cookies are shared by all ports of a host, the storage of a page is
not: the cookie alone, which a server on another port may get to see, opens nothing.
"""

import asyncio
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ..state.sign_ins import SIGN_IN_SECONDS, Identity, NewSignIn, SignIn, SignIns
from .accounts import Accounts
from .answers import RequestRefused

CSRF_HEADER = "x-csrf-token"
_FAILURES = 10
_WINDOW = 60.0
_MOST_ADDRESSES = 2000
_LONGEST_SECRET = 4096


class FailureLimit:
    """So many failures within a minute for each address; then no more tries until the minute is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Since when an address fails, and how often."""

    def check(self, address: str) -> None:
        """RequestRefused for an address that has failed too often."""
        since, count = self._failed.get(address, (0.0, 0))
        left = since + _WINDOW - self._clock()
        if count >= _FAILURES and left > 0:
            headers = {"Retry-After": str(int(left) + 1)}
            raise RequestRefused(429, "RATE_LIMITED", "Too many failed sign-ins; wait a minute.", headers)

    def failed(self, address: str) -> None:
        now = self._clock()
        since, count = self._failed.pop(address, (now, 0))
        self._failed[address] = (since, count + 1) if now - since < _WINDOW else (now, 1)
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)


@dataclass(frozen=True, slots=True)
class WebCaller:
    """Who asks; without a sign-in if it was with a token."""

    identity: Identity
    sign_in: SignIn | None

    @property
    def principal(self) -> str:
        return self.identity.principal

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
        self._limit = FailureLimit()

    def check_host(self, request: Request) -> str:
        """The name that the request was sent to; RequestRefused if it is none of ours."""
        hosts = request.headers.getlist("host")
        if len(hosts) != 1 or not self._host_allowed(hosts[0]):
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

    async def caller(self, request: Request) -> WebCaller:
        """Who asks; RequestRefused if nobody who may. `check_place` has been passed."""
        token = _bearer(request)
        if token is not None:
            self._limit.check(_address(request))
            identity = await self._accounts.by_token(token)
            if identity is not None:
                return WebCaller(identity, None)
            self._note_failure(request)
            raise self._signed_out()
        found = await self._signed_in(request)
        if found is None:
            raise self._signed_out()
        return WebCaller(found.identity, found)

    async def _signed_in(self, request: Request) -> SignIn | None:
        """The sign-in that the browser has."""
        cookie, csrf = self.cookie_of(request), request.headers.get(CSRF_HEADER, "")
        if not cookie or not csrf or len(cookie) > _LONGEST_SECRET or len(csrf) > _LONGEST_SECRET:
            return None
        found = await asyncio.to_thread(self._sign_ins.find, cookie, csrf)
        if found is not None and not await self._accounts.stands(found.identity):
            await asyncio.to_thread(self._sign_ins.end, found.id, found.identity.principal)
            return None
        return found

    async def still_signed_in(self, caller: WebCaller) -> bool:
        """Whether a caller from before still may ask."""
        if caller.sign_in is not None and not await asyncio.to_thread(self._sign_ins.stands, caller.sign_in.id):
            return False
        return await self._accounts.stands(caller.identity)

    def _signed_out(self) -> RequestRefused:
        sign_in = {"token": self._accounts.takes_tokens, "open": self._accounts.is_open}
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
        self._limit.check(address)
        identity = await self._identity(ticket, token)
        if identity is None or not await self._accounts.stands(identity):
            self._note_failure(request)
            raise RequestRefused(
                401, "SIGN_IN_FAILED", "The ticket or the token is not valid; a ticket works once, for a while."
            )
        return await asyncio.to_thread(self._sign_ins.begin, identity, device)

    async def _identity(self, ticket: str | None, token: str | None) -> Identity | None:
        if ticket is not None:
            return await asyncio.to_thread(self._sign_ins.use_ticket, ticket)
        return self._accounts.anybody() if token is None else await self._accounts.by_token(token)

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
    return token.strip() if scheme.casefold() == "bearer" else ""


def _address(request: Request) -> str:
    """Where a request is from; all addresses of one IPv6 network count as one."""
    host = request.client.host if request.client is not None else ""
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else host
