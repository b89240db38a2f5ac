"""Sign-in at the operator's own provider (OpenID Connect, code flow with PKCE).

The browser returns with a code, for which the provider returns an id token with the person. The browser then gets a
link to the page, like an invited person: there is one way in, and nothing from the provider reaches the page.

A returning sign-in is valid only in the browser that started it, once, and within ten minutes; otherwise a person could
make others act in their name. Its parameters are derived from its `state` and a key of this server (`OneTimeTexts`). If
the provider identifies itself (RFC 9207), it must be the one that was asked.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ...core.config import Settings
from ...core.errors import UpstreamUnavailable
from ...core.model.text import base64url, visible
from ...server.transports.authenticator import SignInPage
from ...server.transports.identity import Identity
from ...server.web_answers import HEADERS, guarded
from .access_tokens import AccessTokens, Grant, is_safe_page
from .one_time_texts import OneTimeTexts
from .settings import TeamSettings

log = logging.getLogger(__name__)

AdmitPerson = Callable[[Grant, float], Awaitable[Identity | None]]
"""Admits a person with this grant at least until then; None if they cannot be admitted."""
START, CALLBACK = "/sign-in", "/sign-in/callback"
_LASTS = 12 * 3600.0
"""Seconds after which a person must sign in again."""
_BEGUN_FOR = 600.0


class _Failed(Exception):
    """Why a sign-in failed; for the log."""


class ProviderSignIn:
    """The two addresses that a browser visits."""

    def __init__(
        self,
        settings: Settings,
        tokens: AccessTokens,
        admit: AdmitPerson,
        page: SignInPage,
    ) -> None:
        """`tokens` are the provider's, `admit` admits the person who signed in, and `page` is where they sign in
        then."""
        own = settings.section(TeamSettings)
        assert own.oauth_client_id is not None
        secret = own.oauth_client_secret
        self._url = url = page.url
        self._client = (own.oauth_client_id, secret.get_secret_value() if secret is not None else "")
        self._tokens = tokens
        self._admit = admit
        self._page = page
        self._required = {*own.oauth_scopes}
        self._scopes = tuple(dict.fromkeys(("openid", "profile", "email", *own.oauth_scopes)))
        self._callback = f"{url.rstrip('/')}{CALLBACK}"
        self._secure = url.startswith("https://")
        # With the prefix no other host of the same domain can set it. Otherwise that host's owner could make people of
        # this server continue a sign-in of the owner's. Browsers accept it for the whole host only, and over TLS.
        prefix, self._path = ("__Host-", "/") if self._secure else ("", START)
        self._cookie = f"{prefix}claude_code_mcp_sign_in_{hashlib.sha256(url.encode()).hexdigest()[:8]}"
        self._states = OneTimeTexts()

    def routes(self) -> list[Route]:
        def route(path: str, handler: Callable[[Request], Awaitable[Response]]) -> Route:
            async def work(request: Request) -> Response:
                self._page.check_host(request)
                try:
                    return await handler(request)
                except _Failed as reason:
                    log.warning("a sign-in at the provider failed: %s", reason)
                except UpstreamUnavailable as error:
                    log.warning("a sign-in at the provider failed: %s", error.message)
                # The browser shows a page to the person; the provider's address stays in the log.
                self._page.refused()
                return RedirectResponse(f"{self._url}#sign-in-failed", 303, dict(HEADERS))

            async def handle(request: Request) -> Response:
                return await guarded(work(request), str)

            return Route(path, handle, methods=["GET"])

        return [route(START, self._start), route(CALLBACK, self._handle_callback)]

    async def _start(self, request: Request) -> Response:
        endpoint = (await self._tokens.metadata()).get("authorization_endpoint")
        if not is_safe_page(endpoint):
            raise _Failed("the provider's metadata has no authorization endpoint")
        state = self._new_state()
        challenge = base64url(hashlib.sha256(self._states.derived("verifier", state).encode()).digest())
        wanted = {
            "response_type": "code",
            "client_id": self._client[0],
            "redirect_uri": self._callback,
            "scope": " ".join(self._scopes),
            "state": state,
            "nonce": self._states.derived("nonce", state),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        response = RedirectResponse(
            f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(wanted)}", 303, dict(HEADERS)
        )
        # Lax, unlike the cookie of a sign-in: the browser comes back from another site.
        response.set_cookie(
            self._cookie,
            self._states.derived("browser", state),
            max_age=int(_BEGUN_FOR),
            path=self._path,
            secure=self._secure,
            httponly=True,
            samesite="lax",
        )
        return response

    async def _handle_callback(self, request: Request) -> Response:
        query = request.query_params
        state, code = query.get("state", ""), query.get("code", "")
        browser, tokens = request.cookies.get(self._cookie, ""), self._tokens
        # Before any await: it counts once, whichever request uses it.
        if not self._use(state):
            raise _Failed("it was not started here, has expired or was already completed")
        if not self._states.is_derived(browser, "browser", state):
            raise _Failed("it was started in another browser")
        if query.get("iss", tokens.issuer) != tokens.issuer:
            raise _Failed("the response is from another issuer")
        if not code:
            raise _Failed(f"the provider reported {visible(query.get('error', 'nothing'))[:100]}")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._callback,
            "client_id": self._client[0],
            "code_verifier": self._states.derived("verifier", state),
        }
        answer = await tokens.exchange(form, self._client)
        id_token, nonce = str(answer.get("id_token", "")), self._states.derived("nonce", state)
        # A provider that returns no scopes has granted the requested ones (RFC 6749, 5.1).
        granted = answer.get("scope", " ".join(self._scopes))
        scopes = granted.split() if isinstance(granted, str) else ()
        identity = await self._admitted(id_token, nonce, scopes)
        if identity is None:
            raise _Failed("this person cannot be admitted")
        response = RedirectResponse(await self._page.link_for(identity), 303, dict(HEADERS))
        response.delete_cookie(self._cookie, path=self._path, secure=self._secure, httponly=True, samesite="lax")
        return response

    async def _admitted(self, id_token: str, nonce: str, scopes: Collection[str]) -> Identity | None:
        """The person who signed in, with these scopes; None if that is invalid, if a required scope is missing, or if
        their name cannot be admitted. Raises UpstreamUnavailable if that cannot be determined now."""
        grant = await self._tokens.person(id_token, self._client[0], nonce)
        if grant is None:
            return None
        if not self._required.issubset(scopes):
            log.warning("%s signed in but is not admitted: the issuer did not grant a required scope", grant.name)
            return None
        return await self._admit(grant, time.time() + _LASTS)

    async def sign_out_address(self) -> str | None:
        """The provider's sign-out address (OpenID Connect RP-initiated logout); None if the provider has none or cannot
        be asked."""
        try:
            endpoint = (await self._tokens.metadata()).get("end_session_endpoint")
        except UpstreamUnavailable as error:
            log.warning("cannot read the provider's sign-out address: %s", error.message)
            return None
        if not is_safe_page(endpoint):
            return None
        wanted = {"client_id": self._client[0], "post_logout_redirect_uri": self._url}
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(wanted)}"

    # -- state of a sign-in -----------------------------------------------------------------------------------------

    def _new_state(self) -> str:
        """An expiry time, an unguessable value, and a proof that it was created here."""
        begun = f"{int(time.monotonic() + _BEGUN_FOR)}.{secrets.token_urlsafe(32)}"
        return f"{begun}.{self._states.derived('state', begun)}"

    def _use(self, state: str) -> bool:
        """Marks a state as used; returns whether it was created here, is valid and was unused."""
        begun, _, proof = state.rpartition(".")
        if not self._states.is_derived(proof, "state", begun) or not self._states.use(state):
            return False
        return int(begun.partition(".")[0]) >= time.monotonic()
