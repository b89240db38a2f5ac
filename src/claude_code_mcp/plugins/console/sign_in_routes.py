"""The sign-in routes of the console: signing in and out, listing devices, and links for other devices, also as QR
codes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ...core.errors import InvalidArgument
from ...core.model.events import AuditEvent, AuditKind
from ...core.model.text import iso, one_line, visible
from ...server.api_parts import Handlers
from ...server.tools.arguments import Arguments
from ...server.web_answers import NoArguments, RequestRefused, answer, arguments_of
from .guard import Accounts, Guard, WebUser
from .page_routes import PageRoutes
from .sign_ins import SignIns

_BLOCKS = {("1", "1"): "█", ("1", "0"): "▀", ("0", "1"): "▄", ("0", "0"): " "}


def qr_rows(text: str) -> list[str] | None:
    """The rows of the QR code with a quiet zone, `1` for dark; None without the library."""
    try:
        import segno  # noqa: PLC0415 - optional
    except ImportError:
        return None
    code = segno.make(text, error="l", micro=False)
    return ["".join("1" if dark else "0" for dark in row) for row in code.matrix_iter(border=2)]


def qr_text(rows: Sequence[str]) -> str:
    """The QR code for a terminal, two rows per line. Draws the light parts, because most terminals are dark, and
    readers accept inverted codes only if the quiet zone matches the light parts."""
    inverted = ["".join("0" if part == "1" else "1" for part in row) for row in rows]
    if len(inverted) % 2:
        inverted.append("0" * len(inverted[0]))
    pairs = zip(inverted[::2], inverted[1::2], strict=True)
    return "\n".join("".join(_BLOCKS[parts] for parts in zip(upper, lower, strict=True)) for upper, lower in pairs)


_MAX_DEVICE = 60
_MAX_SIGN_IN = 16 << 10
"""Maximum bytes of an unauthenticated request."""


class SignInArguments(Arguments):
    ticket: str | None = None
    token: str | None = None
    device: str | None = None
    replace: bool | None = None
    """Whether another person's ticket may replace the browser's sign-in."""


class SignOutArguments(Arguments):
    everywhere: bool | None = None


class SignInRoutes:
    """The handlers. `link` creates the page's address for a ticket."""

    def __init__(
        self,
        routes: PageRoutes,
        audit: Callable[[AuditEvent], None],
        guard: Guard,
        sign_ins: SignIns,
        link: Callable[[str], str],
        accounts: Accounts,
    ) -> None:
        self._routes = routes
        self._write_audit = audit
        self._guard = guard
        self._sign_ins = sign_ins
        self._link = link
        self._accounts = accounts

    def handlers(self) -> Handlers:
        """All except the sign-in itself."""
        return [
            ("GET", "/me", self.me),
            ("POST", "/sign-out", self.sign_out),
            ("GET", "/sign-ins", self.list),
            ("DELETE", "/sign-ins/{sign_in}", self.end),
            ("POST", "/tickets", self.ticket),
        ]

    async def sign_in(self, request: Request) -> Response:
        """The only route without authentication."""
        arguments = await arguments_of(request, SignInArguments, _MAX_SIGN_IN)
        if arguments.ticket is not None and arguments.token is not None:
            raise InvalidArgument("token: pass a ticket or a token, not both.", field="token")
        device = one_line(visible(arguments.device or ""), _MAX_DEVICE)
        if arguments.ticket is not None and not arguments.replace:
            # Before the ticket is used: a person who declines can still use it elsewhere.
            await self._guard.refuse_ticket_of_another(request, arguments.ticket)
        made = await self._guard.sign_in(request, arguments.ticket, arguments.token, device)
        principal = made.sign_in.identity.principal
        by = "ticket" if arguments.ticket is not None else "token" if arguments.token is not None else "proxy"
        if by == "proxy" and not self._accounts.is_named_in(request):
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
        # After the sign-in has ended: the streams check the database for it.
        self._routes.check_sign_ins(user.principal)
        # Otherwise the next person at this browser could sign in again with one click.
        leaving = await self._accounts.sign_out_address(user.identity)
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
        if cookie:  # so that the browser keeps it as long as the server does
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
        await arguments_of(request, NoArguments)
        if user.sign_in is None and not user.identity.has_operator_token:
            # For the same reason as in `Guard.sign_in`: a link would turn an access token into a sign-in.
            raise RequestRefused(
                403, "FORBIDDEN", "An access token cannot create a link. Sign in to the console for one."
            )
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, user.identity)
        self._audit(AuditKind.TICKET_GIVEN, user.principal, device=user.device)
        url = self._link(ticket)
        return answer({"url": url, "expiresAt": iso(expires_at), "qr": await asyncio.to_thread(qr_rows, url)})

    def _audit(self, kind: AuditKind, principal: str, **details: Any) -> None:
        self._write_audit(AuditEvent(kind, principal, details=details))
