"""Signing in to the console: the routes around it, and the way by the operator's own provider.

The routes begin and end a sign-in, list devices, and give a link for another one, also as a QR code.

At a provider (OpenID Connect, code flow with PKCE) the browser comes back with a code, for which the provider gives an
id token that says who it is. The browser then gets a ticket, as it would by a link, and the page signs in with that:
there is one way in, and nothing of the provider is ever in the page. A sign-in that came back counts only in the
browser that has begun it, once, and within ten minutes; otherwise somebody could have others work in their name. What
belongs to one on its way follows from its `state` and a key of this server (`OneTimeTexts`). The provider must say that
it was the one that was asked (RFC 9207), if it says anything at all.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from ... import __version__
from ...core.config import Settings
from ...core.errors import InvalidArgument, UpstreamUnavailable
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.text import base64url, iso, one_line, visible
from ...server.tools.arguments import Arguments
from ...server.transports.callers import Callers
from ...server.web_answers import HEADERS, Nothing, RequestRefused, answer, arguments_of, guarded
from ..team.access_tokens import is_safe_page
from ..team.known_people import Identity, SignIns
from ..team.people import is_person, user_of
from .guard import Guard, OneTimeTexts, WebUser
from .page_routes import Handlers, PageRoutes

_BLOCKS = {("1", "1"): "█", ("1", "0"): "▀", ("0", "1"): "▄", ("0", "0"): " "}


def qr_rows(text: str) -> list[str] | None:
    """The rows of the code with a quiet zone around it, `1` for dark; None without the library."""
    try:
        import segno  # noqa: PLC0415 - optional
    except ImportError:
        return None
    code = segno.make(text, error="l", micro=False)
    return ["".join("1" if dark else "0" for dark in row) for row in code.matrix_iter(border=2)]


def qr_text(rows: Sequence[str]) -> str:
    """The code for a terminal, two rows in a line. Light parts are drawn: most terminals are dark, and a reader takes
    the code either way only if the quiet zone is of the same kind as its light parts."""
    inverted = ["".join("0" if part == "1" else "1" for part in row) for row in rows]
    if len(inverted) % 2:
        inverted.append("0" * len(inverted[0]))
    pairs = zip(inverted[::2], inverted[1::2], strict=True)
    return "\n".join("".join(_BLOCKS[parts] for parts in zip(upper, lower, strict=True)) for upper, lower in pairs)


# -- sign in routes ---------------------------------------------------------------------------------------------------


_LONGEST_DEVICE = 60
_LARGEST_SIGN_IN = 16 << 10
"""Bytes of a request that anybody may send."""


class SignInArguments(Arguments):
    ticket: str | None = None
    token: str | None = None
    device: str | None = None
    replace: bool | None = None
    """Whether a ticket of somebody else may end the sign-in that the browser has."""


class SignOutArguments(Arguments):
    everywhere: bool | None = None


class SignInRoutes:
    """The handlers. `link` makes the address of the page for a ticket."""

    def __init__(
        self,
        routes: PageRoutes,
        audit: Callable[[AuditEvent], None],
        guard: Guard,
        sign_ins: SignIns,
        link: Callable[[str], str],
        leave_provider: Callable[[Identity], Awaitable[str | None]] | None = None,
    ) -> None:
        """`leave_provider` is where somebody signs out of the provider that they have signed in at."""
        self._routes = routes
        self._write_audit = audit
        self._guard = guard
        self._sign_ins = sign_ins
        self._link = link
        self._leave_provider = leave_provider

    def handlers(self) -> Handlers:
        """All but the sign-in itself."""
        return [
            ("GET", "/me", self.me),
            ("POST", "/sign-out", self.sign_out),
            ("GET", "/sign-ins", self.list),
            ("DELETE", "/sign-ins/{sign_in}", self.end),
            ("POST", "/tickets", self.ticket),
        ]

    async def sign_in(self, request: Request) -> Response:
        """The one route that needs no sign-in."""
        arguments = await arguments_of(request, SignInArguments, _LARGEST_SIGN_IN)
        if arguments.ticket is not None and arguments.token is not None:
            raise InvalidArgument("token: give a ticket or a token, not both.", field="token")
        device = one_line(visible(arguments.device or ""), _LONGEST_DEVICE)
        if arguments.ticket is not None and not arguments.replace:
            # Before the ticket is used: a person who decides against it can still use it elsewhere.
            await self._guard.refuse_ticket_of_another(request, arguments.ticket)
        made = await self._guard.sign_in(request, arguments.ticket, arguments.token, device)
        principal = made.sign_in.identity.principal
        by = "ticket" if arguments.ticket is not None else "token" if arguments.token is not None else "proxy"
        if by == "proxy" and user_of(request.scope) is None:
            by = "open"
        self._audit(AuditKind.SIGNED_IN, principal, device=device, by=by)
        response = answer({"principal": principal, "csrf": made.csrf, "expiresAt": iso(made.sign_in.expires_at)})
        self._guard.set_cookie(request, response, made.cookie)
        return response

    async def sign_out(self, request: Request, user: WebUser) -> Response:
        arguments = await arguments_of(request, SignOutArguments)
        if arguments.everywhere:
            await asyncio.to_thread(self._sign_ins.end_all, user.principal)
        elif user.sign_in is not None:
            await asyncio.to_thread(self._sign_ins.end, user.sign_in.id, user.principal)
        self._audit(AuditKind.SIGNED_OUT, user.principal, device=user.device, everywhere=bool(arguments.everywhere))
        # After the sign-in has ended: the streams ask the database whether it still stands.
        self._routes.check_sign_ins(user.principal)
        # Otherwise the next person at this browser would be signed in again with a click.
        leaving = await self._leave_provider(user.identity) if self._leave_provider is not None else None
        response = answer({"provider": leaving})
        self._guard.clear_cookie(request, response)
        return response

    async def me(self, request: Request, user: WebUser) -> Response:
        fields = {
            "principal": user.principal,
            "version": __version__,
            "device": user.device,
            "expiresAt": iso(user.sign_in.expires_at) if user.sign_in is not None else None,
            **await self._routes.facts(user),
        }
        response = answer(fields)
        cookie = self._guard.cookie_of(request) if user.sign_in is not None else None
        if cookie:  # so that the browser keeps it as long as we do
            self._guard.set_cookie(request, response, cookie)
        return response

    async def list(self, _: Request, user: WebUser) -> Response:
        found = await asyncio.to_thread(self._sign_ins.of, user.principal)
        current = user.sign_in.id if user.sign_in is not None else None
        rows = [
            {
                "id": sign_in.id,
                "device": sign_in.device,
                "createdAt": iso(sign_in.created_at),
                "lastUsedAt": iso(sign_in.used_at),
                "current": sign_in.id == current,
            }
            for sign_in in found
        ]
        return answer({"signIns": rows})

    async def end(self, request: Request, user: WebUser) -> Response:
        wanted = str(request.path_params["sign_in"])
        if not await asyncio.to_thread(self._sign_ins.end, wanted, user.principal):
            raise InvalidArgument("There is no such sign-in.", field="id")
        self._audit(AuditKind.SIGNED_OUT, user.principal, device=user.device, other=wanted[:8])
        self._routes.check_sign_ins(user.principal)
        return answer({})

    async def ticket(self, request: Request, user: WebUser) -> Response:
        await arguments_of(request, Nothing)
        if user.sign_in is None and is_person(user.identity):
            # For the same reason as in `Guard.sign_in`: a link would make a sign-in of an access token.
            raise RequestRefused(403, "FORBIDDEN", "An access token gives no link; sign in to the console for one.")
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, user.identity)
        self._audit(AuditKind.TICKET_GIVEN, user.principal, device=user.device)
        url = self._link(ticket)
        return answer({"url": url, "expiresAt": iso(expires_at), "qr": await asyncio.to_thread(qr_rows, url)})

    def _audit(self, kind: AuditKind, principal: str, **details: Any) -> None:
        self._write_audit(AuditEvent(kind, principal, details=details))


# -- provider sign in -------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

START, CALLBACK = "/sign-in", "/sign-in/callback"
_LASTS = 12 * 3600.0
"""Seconds after which somebody must sign in again."""
_BEGUN_FOR = 600.0


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
        self._states = OneTimeTexts()

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

    async def _come_back(self, request: Request) -> Response:
        query = request.query_params
        state, code = query.get("state", ""), query.get("code", "")
        browser, tokens = request.cookies.get(self._cookie, ""), self._callers.access_tokens
        # Before anything is awaited: it counts once, whoever comes with it.
        if not self._use(state) or tokens is None:
            raise _Failed("it was not begun here, or too long ago, or has come back before")
        if not self._states.is_derived(browser, "browser", state):
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
            "code_verifier": self._states.derived("verifier", state),
        }
        answer = await tokens.exchange(form, self._client)
        id_token, nonce = str(answer.get("id_token", "")), self._states.derived("nonce", state)
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
        return f"{begun}.{self._states.derived('state', begun)}"

    def _use(self, state: str) -> bool:
        """Uses a state up; whether it was made here, still counts, and has not been used before."""
        begun, _, proof = state.rpartition(".")
        if not self._states.is_derived(proof, "state", begun) or not self._states.use(state):
            return False
        return int(begun.partition(".")[0]) >= time.monotonic()
