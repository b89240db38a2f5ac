"""Requests of a gateway's console to a machine: one NATS connection for each request, with a streamed answer.

A gateway names the user of a request, and whether a person signed in for it, in the same way as for calls
(`machine_server.py`). The machine answers with the routes of its own console (`plugins/console/page_routes.py`).

The gateway sends two lines: the head, and the JSON of the body, empty if there is none. The machine sends the head, the
parts of the body as JSON strings, and `null` at the end, so that a truncated answer is not mistaken for a complete one.
Only a few of the machine's headers are passed on, and only content types that no browser executes: the page belongs to
the gateway.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Message, Scope

from ...server.server import McpServer
from ...server.transports.identity import Identity
from ...server.transports.running_calls import RunningCalls
from ...server.web_answers import answer
from ..console.interface import ServiceRoutes, SignIn, WebUser, api_routes
from .machine_link import MachineUnavailable, open_connection
from .machine_server import page_request
from .nats_client import Client
from .routing import MachineIdentity
from .wire import Wire, WireBroken

if TYPE_CHECKING:
    from ...hub.hub import Hub

log = logging.getLogger(__name__)

FACTS = "/facts"
"""Below `/api`: what a machine reports about itself to a gateway's console."""
_CREDENTIAL = "fleet"
_USER = "claude_code_mcp.user"
_CONTENT = frozenset({"application/json", "text/event-stream", "text/csv; charset=utf-8"})
_HEADERS = frozenset({"content-disposition", "retry-after"})
_MAX_ANSWER = 64 << 20


# -- at the machine ---------------------------------------------------------------------------------------------------


def machine_pages(server: McpServer, find_hub: "Callable[[], Hub | None]") -> ASGIApp:
    """The routes that a machine serves to the consoles of gateways; each request has its user in its scope."""

    async def signed_in(_: WebUser) -> bool:
        return True  # the gateway checks the sign-in and ends the request

    routes, running = ServiceRoutes(server.service, find_hub, signed_in), RunningCalls()
    # This machine enforces rate limits and ends streams of sessions that are no longer shared.
    server.join_calls(running)

    async def user_of(request: Request) -> WebUser:
        user: WebUser = request.scope[_USER]
        running.claim(user.identity)
        return user

    async def facts(_: Request, user: WebUser) -> Response:
        return answer(await routes.facts(user))

    handlers = [*routes.handlers(), ("GET", FACTS, facts)]
    return running.middleware(Router(api_routes(handlers, user_of, routes.clean)))


async def answer_page(wire: Wire, principal: str, pages: ASGIApp) -> None:
    """Answers the single request of a connection."""
    try:
        head, body = await wire.line(), await wire.line()
        if head is None or body is None:
            return
        asked = from_json(head)
        await pages(_scope(asked, principal, bool(body)), partial(_received, wire, [body]), partial(_sent, wire))
        wire.write(b"null\n")
        await wire.drain()
    except* WireBroken as broken:  # a stream is written in a task group
        log.info("a request of a gateway's console ended: %s", broken.exceptions[0])


def _scope(asked: Mapping[str, Any], principal: str, has_body: bool) -> Scope:
    identity = Identity(principal, _CREDENTIAL)
    device = asked.get("device")
    sign_in = SignIn("", identity, str(device), 0.0, 0.0) if device is not None else None
    headers = [(b"last-event-id", str(asked["after"]).encode())] if asked.get("after") else []
    if has_body:
        headers.append((b"content-type", b"application/json"))
    return {
        "type": "http",
        "method": str(asked["method"]),
        "path": str(asked["path"]),
        "query_string": str(asked.get("query") or "").encode(),
        "headers": headers,
        _USER: WebUser(identity, sign_in),
    }


async def _received(wire: Wire, body: list[bytes]) -> Message:
    """The body, once; then the gateway's disconnection when it happens."""
    if body:
        return {"type": "http.request", "body": body.pop(), "more_body": False}
    try:
        while await wire.line() is not None:
            pass
    except WireBroken:
        pass
    return {"type": "http.disconnect"}


async def _sent(wire: Wire, message: Message) -> None:
    if message["type"] == "http.response.start":
        headers = {name.decode(): value.decode() for name, value in message["headers"]}
        wire.write(to_json({"status": message["status"], "headers": headers}) + b"\n")
    elif message.get("body"):
        wire.write(to_json(message["body"].decode()) + b"\n")
    await wire.drain()


# -- at the gateway ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PageRequest:
    """A request to a machine. `body` is None without one."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    after: str | None = None
    """The last event that a stream has received."""


class PageAnswer:
    """A machine's answer while it arrives."""

    def __init__(self, wire: Wire, status: int, headers: Mapping[str, str], lost: Callable[[str], Exception]) -> None:
        self._wire = wire
        self._lost = lost
        self.status = status
        self.headers = {name: value for name, value in headers.items() if name in _HEADERS}
        content = headers.get("content-type", "")
        self.media_type = content if content in _CONTENT else "application/json"

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises MachineUnavailable if the answer is cut off."""
        try:
            while (line := await self._wire.line()) is not None:
                part = from_json(line)
                if part is None:
                    return
                yield str(part).encode()
        except (WireBroken, ValueError) as error:
            raise self._lost(str(error)) from None
        raise self._lost("The response was cut off.")

    async def whole(self) -> bytes:
        parts, size = [], 0
        async for part in self.parts():
            size += len(part)
            if size > _MAX_ANSWER:
                raise self._lost("Its response is too long.")
            parts.append(part)
        return b"".join(parts)


@asynccontextmanager
async def ask_page(
    nats: Client, machine: MachineIdentity, user: WebUser, groups: Collection[str], asked: PageRequest
) -> AsyncIterator[PageAnswer]:
    """A machine's answer to a user's request, until the end of the block. Raises MachineUnavailable if it does not
    answer or refuses to serve the user."""

    def lost(reason: str) -> MachineUnavailable:
        return MachineUnavailable(
            f"Machine {machine.name} was lost during this call; it is not known whether it was carried out. {reason}",
            machine=machine.name,
        )

    opening = partial(page_request, principal=user.principal, groups=groups)
    async with open_connection(nats, machine.id, machine.name, opening) as (wire, _):
        head = {"method": asked.method, "path": asked.path, "query": urlencode(asked.query), "after": asked.after}
        # A person has signed in with a browser and has a device; a token alone belongs to a program.
        head["device"] = user.device if user.sign_in is not None else None
        body = to_json(asked.body) if asked.body is not None else b""
        wire.write(to_json(head) + b"\n" + body + b"\n")
        try:
            await wire.drain()
            line = await wire.line()
            answered = from_json(line or b"")
            status, headers = int(answered["status"]), dict(answered["headers"])
        except (WireBroken, ValueError, KeyError, TypeError) as error:
            raise lost(str(error)) from None
        yield PageAnswer(wire, status, headers, lost)
