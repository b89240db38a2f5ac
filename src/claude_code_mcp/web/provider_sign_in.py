"""Signing in to the console at the operator's own provider: OpenID Connect, code flow with PKCE.

The browser is sent to the provider and comes back with a code, for which the provider gives an id token that says who
it is. The browser then gets a ticket, as it would by a link, and the page signs in with that: there is one way in, and
nothing of the provider is ever in the page.

A sign-in that came back counts only in the browser that has begun it, once, and within ten minutes; otherwise somebody
could have others work in their name. Nothing is remembered of one that is on its way, so that nobody can push out those
of others by beginning many: what belongs to it follows from its `state` and a key of this server. The provider must
say that it was the one that was asked (RFC 9207), if it says anything at all.
"""

import base64
import hashlib
import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ..config import Settings
from ..errors import UpstreamUnavailable
from ..model.text import visible
from ..server.transports.access_tokens import is_safe_page
from ..server.transports.callers import Callers
from ..state.sign_ins import Identity
from .answers import HEADERS, guarded

log = logging.getLogger(__name__)

START, CALLBACK = "/sign-in", "/sign-in/callback"
_LASTS = 12 * 3600.0
"""Seconds after which somebody must sign in again."""
_BEGUN_FOR = 600.0
_MOST_USED = 1000
"""Sign-ins that have come back and count no more; the oldest are forgotten, and the provider knows them as used."""


class _Failed(Exception):
    """Why a sign-in does not count; for the log."""


class ProviderSignIn:
    """The two addresses that a browser passes."""

    def __init__(
        self,
        settings: Settings,
        callers: Callers,
        url: str,
        check_host: Callable[[Request], str],
        link: Callable[[Identity], Awaitable[str]],
        refused: Callable[[], None],
    ) -> None:
        """`url` is the address of the page; `link` makes one that signs somebody in once; `refused` is called for every
        sign-in that fails."""
        assert settings.oauth_client_id is not None
        secret = settings.oauth_client_secret
        self._url = url
        self._client = (settings.oauth_client_id, secret.get_secret_value() if secret is not None else "")
        self._callers = callers
        self._scopes = tuple(dict.fromkeys(("openid", "profile", "email", *settings.oauth_scopes)))
        self._callback = f"{url.rstrip('/')}{CALLBACK}"
        self._secure = url.startswith("https://")
        # With the prefix no other host of the same domain can set it: its owner could have people of this server go on
        # with a sign-in of theirs. Browsers take it for the whole host only, and over TLS.
        prefix, self._path = ("__Host-", "/") if self._secure else ("", START)
        self._cookie = f"{prefix}claude_code_mcp_sign_in_{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        self._check_host = check_host
        self._link = link
        self._refused = refused
        self._key = secrets.token_bytes(32)
        self._used: OrderedDict[str, None] = OrderedDict()
        """States that have come back."""

    def routes(self) -> list[Route]:
        def route(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
            async def work(request: Request) -> Response:
                self._check_host(request)
                try:
                    return await handler(request)
                except _Failed as reason:
                    log.warning("a sign-in at the provider has failed: %s", reason)
                except UpstreamUnavailable as error:
                    log.warning("a sign-in at the provider has failed: %s", error.message)
                # A person is before the browser: the page tells them, and where the provider is stays in the log.
                self._refused()
                return RedirectResponse(f"{self._url}#sign-in-failed", 303, dict(HEADERS))

            async def handle(request: Request) -> Response:
                return await guarded(work(request), str)

            return Route(path, handle, methods=["GET"])

        return [route(START, self._start), route(CALLBACK, self._come_back)]

    async def _start(self, request: Request) -> Response:
        tokens = self._callers.access_tokens
        endpoint = (await tokens.metadata()).get("authorization_endpoint") if tokens is not None else None
        if not is_safe_page(endpoint):
            raise _Failed("the provider says nothing of where people sign in")
        state = self._new_state()
        challenge = _base64(hashlib.sha256(self._derived("verifier", state).encode()).digest())
        wanted = {
            "response_type": "code",
            "client_id": self._client[0],
            "redirect_uri": self._callback,
            "scope": " ".join(self._scopes),
            "state": state,
            "nonce": self._derived("nonce", state),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        response = RedirectResponse(
            f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(wanted)}", 303, dict(HEADERS)
        )
        # Lax, unlike the cookie of a sign-in: the browser comes back from another site.
        response.set_cookie(
            self._cookie,
            self._derived("browser", state),
            max_age=int(_BEGUN_FOR),
            path=self._path,
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
        return response

    async def _come_back(self, request: Request) -> Response:
        query = request.query_params
        state, code = query.get("state", ""), query.get("code", "")
        browser, tokens = request.cookies.get(self._cookie, ""), self._callers.access_tokens
        # Before anything is awaited: it counts once, whoever comes with it.
        if not self._use(state) or tokens is None:
            raise _Failed("it was not begun here, or too long ago, or has come back before")
        if not _equal(browser, self._derived("browser", state)):
            raise _Failed("another browser has begun it")
        if query.get("iss", tokens.issuer) != tokens.issuer:
            raise _Failed("another issuer has answered")
        if not code:
            raise _Failed(f"the provider says {visible(query.get('error', 'nothing'))[:100]}")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": self._client[0],
            "code_verifier": self._derived("verifier", state),
        }
        answer = await tokens.exchange(form, self._client)
        id_token, nonce = str(answer.get("id_token", "")), self._derived("nonce", state)
        # A provider that says nothing of scopes has granted those that were asked for (RFC 6749, 5.1).
        granted = answer.get("scope", " ".join(self._scopes))
        scopes = granted.split() if isinstance(granted, str) else ()
        identity = await self._callers.by_sign_in(id_token, self._client[0], nonce, _LASTS, scopes)
        if identity is None:
            raise _Failed("who it is cannot be let in")
        response = RedirectResponse(await self._link(identity), 303, dict(HEADERS))
        response.delete_cookie(self._cookie, path=self._path, secure=self._secure, httponly=True, samesite="lax")
        return response

    async def sign_out_address(self, identity: Identity) -> str | None:
        """Where somebody who has signed in at the provider signs out there (OpenID Connect RP-initiated logout); None
        for others, and where the provider has no such page or cannot be asked."""
        people, tokens = self._callers.people, self._callers.access_tokens
        if people is None or tokens is None or not people.has(identity):
            return None
        try:
            endpoint = (await tokens.metadata()).get("end_session_endpoint")
        except UpstreamUnavailable as error:
            log.warning("where people sign out at the provider cannot be read: %s", error.message)
            return None
        if not is_safe_page(endpoint):
            return None
        wanted = {"client_id": self._client[0], "post_logout_redirect_uri": self._url}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(wanted)}"

    # -- what belongs to a sign-in ----------------------------------------------------------------------------------

    def _new_state(self) -> str:
        """Until when it counts, something that nobody can guess, and a proof that it was made here."""
        begun = f"{int(time.monotonic() + _BEGUN_FOR)}.{secrets.token_urlsafe(32)}"
        return f"{begun}.{self._derived('state', begun)}"

    def _use(self, state: str) -> bool:
        """Uses a state up; whether it was made here, still counts, and has not been used before."""
        begun, _, proof = state.rpartition(".")
        if not _equal(proof, self._derived("state", begun)) or state in self._used:
            return False
        self._used[state] = None
        if len(self._used) > _MOST_USED:
            self._used.popitem(last=False)
        return int(begun.partition(".")[0]) >= time.monotonic()

    def _derived(self, purpose: str, text: str) -> str:
        """What only this server can make of a text, another one for each purpose; 43 characters."""
        message = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return _base64(hmac.digest(self._key, message, "sha256"))


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _equal(presented: str, known: str) -> bool:
    return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), known.encode())
