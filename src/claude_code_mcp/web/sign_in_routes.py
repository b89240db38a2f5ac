"""The routes around the sign-in: begin, end, look at the devices, and make a link for another one."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .. import __version__
from ..errors import InvalidArgument
from ..model.events import AuditEvent, AuditKind
from ..model.text import iso, one_line, visible
from ..server.tools.base import Arguments
from ..service import Service
from ..state.sign_ins import SignIns
from .answers import answer, arguments_of
from .guard import Guard, WebCaller
from .qr_code import qr_rows
from .session_routes import Nothing
from .stream import Streams

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
        service: Service,
        guard: Guard,
        sign_ins: SignIns,
        streams: Streams,
        link: Callable[[str], str],
        server_facts: Callable[[], dict[str, Any]],
    ) -> None:
        """`server_facts` is what `/api/me` says of the server."""
        self._service = service
        self._guard = guard
        self._sign_ins = sign_ins
        self._streams = streams
        self._link = link
        self._server_facts = server_facts

    async def sign_in(self, request: Request) -> Response:
        """The one route that needs no sign-in."""
        arguments = await arguments_of(request, SignInArguments, _LARGEST_SIGN_IN)
        if arguments.ticket is not None and arguments.token is not None:
            raise InvalidArgument("token: give a ticket or a token, not both.", field="token")
        device = one_line(visible(arguments.device or ""), _LONGEST_DEVICE)
        if arguments.ticket is not None and not arguments.replace:
            await self._guard.refuse_ticket_of_another(request, arguments.ticket)
        made = await self._guard.sign_in(request, arguments.ticket, arguments.token, device)
        principal, by = made.sign_in.identity.principal, "ticket" if arguments.ticket is not None else "token"
        self._audit(AuditKind.SIGNED_IN, principal, device=device, by=by)
        response = answer({"principal": principal, "csrf": made.csrf, "expiresAt": iso(made.sign_in.expires_at)})
        self._guard.set_cookie(request, response, made.cookie)
        return response

    async def sign_out(self, request: Request, caller: WebCaller) -> Response:
        arguments = await arguments_of(request, SignOutArguments)
        if arguments.everywhere:
            await asyncio.to_thread(self._sign_ins.end_all, caller.principal)
        elif caller.sign_in is not None:
            await asyncio.to_thread(self._sign_ins.end, caller.sign_in.id, caller.principal)
        self._audit(AuditKind.SIGNED_OUT, caller.principal, device=caller.device, everywhere=bool(arguments.everywhere))
        self._streams.check_sign_ins(caller.principal)
        response = answer({})
        self._guard.clear_cookie(request, response)
        return response

    async def me(self, request: Request, caller: WebCaller) -> Response:
        service, principal = self._service, caller.principal
        directories = await asyncio.to_thread(service.directories, principal)
        fields = {
            "principal": principal,
            "version": __version__,
            "device": caller.device,
            "expiresAt": iso(caller.sign_in.expires_at) if caller.sign_in is not None else None,
            "modes": [*service.modes(principal)],
            "directories": directories,
            "bypassPossible": service.bypass_possible(principal),
            **await asyncio.to_thread(self._server_facts),
        }
        response = answer(fields)
        cookie = self._guard.cookie_of(request) if caller.sign_in is not None else None
        if cookie:  # so that the browser keeps it as long as we do
            self._guard.set_cookie(request, response, cookie)
        return response

    async def list(self, _: Request, caller: WebCaller) -> Response:
        found = await asyncio.to_thread(self._sign_ins.of, caller.principal)
        current = caller.sign_in.id if caller.sign_in is not None else None
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

    async def end(self, request: Request, caller: WebCaller) -> Response:
        wanted = str(request.path_params["sign_in"])
        if not await asyncio.to_thread(self._sign_ins.end, wanted, caller.principal):
            raise InvalidArgument("There is no such sign-in.", field="id")
        self._audit(AuditKind.SIGNED_OUT, caller.principal, device=caller.device, other=wanted[:8])
        self._streams.check_sign_ins(caller.principal)
        return answer({})

    async def ticket(self, request: Request, caller: WebCaller) -> Response:
        await arguments_of(request, Nothing)
        ticket, expires_at = await asyncio.to_thread(self._sign_ins.new_ticket, caller.identity)
        self._audit(AuditKind.TICKET_GIVEN, caller.principal, device=caller.device)
        url = self._link(ticket)
        return answer({"url": url, "expiresAt": iso(expires_at), "qr": await asyncio.to_thread(qr_rows, url)})

    def _audit(self, kind: AuditKind, principal: str, **details: Any) -> None:
        self._service.audit(AuditEvent(kind, principal, details=details))
