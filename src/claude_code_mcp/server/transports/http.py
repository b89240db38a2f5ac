"""The MCP server over Streamable HTTP: where it listens, who may call it, and its routes.

`/mcp` and `/metrics` check the bearer token and the Host and Origin headers; `/health` answers anybody. Without a token
the server listens on loopback only. Other routes, such as those of the console, are given by whoever starts the server.
"""

import asyncio
import hmac
import ipaddress
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

import uvicorn
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ... import __version__
from ...config import Settings
from ...errors import InvalidArgument
from ...model.events import AuditEvent, AuditKind
from ..sdk import end_connections
from ..server import McpServer
from .callers import SCOPE, Callers, CallerTokens, TokenCaller
from .connection_limits import ConnectionLimits, report_accept_failures_sparingly
from .response_streams import response_streams

log = logging.getLogger(__name__)

PATH = "/mcp"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_MOST_CONNECTIONS = 2000
_MOST_OF_ONE_ADDRESS = 500
_ACCEPTED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def unspecified(self) -> bool:
        """Whether it stands for all addresses of this machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.netloc}{PATH}"


def read_address(text: str) -> Address:
    """`HOST:PORT`, `[IPv6]:PORT` or `:PORT`, which is loopback."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument(f"{text!r} is not HOST:PORT.", field="http")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    return Address(host, int(port))


def own_addresses(address: Address) -> list[str]:
    """Patterns of the URLs at which programs on this machine reach this server."""
    names = {address.netloc, *(f"{name}:{address.port}" for name in (*_LOCAL_NAMES, socket.gethostname()))}
    return [f"http://{name}/*" for name in sorted(names)]


def check_exposure(address: Address, callers: Callers) -> None:
    """InvalidArgument for a server that other machines can reach and that has no token."""
    if not address.loopback and not callers.required:
        raise InvalidArgument(
            f"Refusing to serve on {address.host} without a token: anybody who reaches it could run commands here. "
            "Set CLAUDE_CODE_MCP_TOKEN or CLAUDE_CODE_MCP_TOKENS_FILE, or listen on 127.0.0.1."
        )


# -- the server ---------------------------------------------------------------------------------------------


class HttpServer:
    """Listens at an address until it is stopped."""

    def __init__(
        self,
        address: Address,
        make_app: Callable[[Address], ASGIApp],
        *,
        proxies: Sequence[str] = (),
        serves: str = "MCP",
        without_token: bool = False,
    ) -> None:
        """Binds the socket; requests wait there until `serve`. `make_app` is given the address with the port that it
        has; what the server `serves` is for the log. Where a request is from is the peer's address, unless the peer is
        one of the `proxies`, which say so in a header. InvalidArgument if it cannot listen there."""
        self._serves = serves
        self._without_token = without_token
        self._socket = _listen(address)
        self.address = replace(address, port=self._socket.getsockname()[1])
        self.url = self.address.url
        self.own_addresses = own_addresses(self.address)
        self._server = _Uvicorn(
            uvicorn.Config(
                make_app(self.address),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=[*proxies],
                timeout_graceful_shutdown=1,
                ws="none",
                http=ConnectionLimits(_MOST_CONNECTIONS, _MOST_OF_ONE_ADDRESS, proxies).protocol(),  # type: ignore[arg-type]
                # asyncio goes on accepting so many times after a failure: more would hold up everything else.
                backlog=_ACCEPTED_AT_ONCE,
            )
        )

    async def serve(self) -> None:
        """Serves until `stop` is called; returns when the last connection is closed."""
        log.info("serving %s on %s", self._serves, self.url if self._serves == "MCP" else self.url.removesuffix(PATH))
        if self._without_token:
            log.warning(
                "serving without a token: every program and every user on this machine can run commands as this user; "
                "set CLAUDE_CODE_MCP_TOKEN or CLAUDE_CODE_MCP_TOKENS_FILE"
            )
        report_accept_failures_sparingly(asyncio.get_running_loop())
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Accepts no more connections; `serve` returns soon after."""
        self._server.should_exit = True


def _listen(address: Address) -> socket.socket:
    try:
        family, *_, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(sockaddr[:2], family=family, backlog=2048)
        # Inherited by every connection. asyncio does this only for sockets that were made with TCP by name, and with
        # Nagle's algorithm every call waits 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise InvalidArgument(f"Cannot listen on {address.netloc}: {error.strerror or error}.", field="http") from None


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the application: uvicorn would raise the one that ended it again, before the sessions are
    closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# -- the application ------------------------------------------------------------------------------------------


def http_app(
    mcp_server: McpServer,
    settings: Settings,
    address: Address,
    callers: Callers,
    metrics: Callable[[], bytes] | None = None,
    more: Sequence[BaseRoute] = (),
) -> Starlette:
    """The ASGI application; `metrics` renders what `/metrics` shows, `more` are routes that check their callers
    themselves. All that a caller has open here ends with its token."""
    security, server, service = _security(settings, address), mcp_server.server(), mcp_server.service

    def audit_refusal() -> None:
        service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))

    def end_caller(caller: TokenCaller, removed: bool) -> None:
        service.start_task(end_connections(server, caller.name, caller.credential))
        if removed:
            service.start_task(mcp_server.end_caller(caller.name, partial(callers.calls_over, caller.name)))

    async def health(_: Request) -> Response:
        return _health_of(callers.problem)

    callers.on_ended(end_caller)
    mcp_server.running_tool = callers.running_tool
    routes = [Route("/health", health), Route(f"{PATH}/", _without_slash, methods=["GET", "POST", "DELETE"])]
    if callers.required:
        routes.append(Route("/register", _no_registration, methods=["GET", "POST"]))
    if metrics is not None:
        routes.append(metrics_route(metrics, settings, callers, security, audit_refusal))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        transport_security=security,
        auth=_auth(address) if callers.required else None,
        token_verifier=CallerTokens(callers, address.url, audit_refusal) if callers.required else None,
        custom_starlette_routes=[*routes, *more],  # type: ignore[list-item]  # Starlette takes any route
    )
    app.add_middleware(mcp_server.streams.middleware)
    app.add_middleware(response_streams)
    app.add_middleware(callers.middleware)  # the outermost: it ends the others
    return _without_redirects(app)


def _auth(address: Address) -> AuthSettings:
    """Tokens are issued by the operator. There is no authorization server, so none is advertised: a client that was
    pointed to one would begin to sign in instead of reporting that its token is wrong. The SDK requires an issuer all
    the same; without a resource it does not publish it."""
    return AuthSettings(
        issuer_url=AnyHttpUrl(f"http://{address.netloc}"),
        resource_server_url=None,
        required_scopes=[SCOPE],
    )


def _security(settings: Settings, address: Address) -> TransportSecuritySettings:
    names = {address.netloc, *settings.http_allowed_hosts}
    if address.loopback:
        names |= {f"{name}:*" for name in _LOCAL_NAMES}
    origins = {f"http://{name}" for name in names} | set(settings.http_allowed_origins)
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=sorted(names), allowed_origins=sorted(origins)
    )


def host_check(settings: Settings, address: Address) -> Callable[[str], bool]:
    """Whether a browser may reach this server under the name in its Host header: the address itself, what the settings
    name and, where it is served on this machine, the names of this machine for itself."""
    public = [urlsplit(settings.web_url).netloc] if settings.web_url else []
    names = {address.netloc, *settings.http_allowed_hosts, *public}
    local = _LOCAL_NAMES if address.loopback or address.unspecified else ()

    def allowed(host: str) -> bool:
        name, _, port = host.rpartition(":")
        return host in names or (port.isascii() and port.isdigit() and (name in local or f"{name}:*" in names))

    return allowed


def plain_app(routes: Sequence[BaseRoute]) -> Starlette:
    """An application without MCP: `/health`, and routes that check their callers themselves."""
    return _without_redirects(Starlette(routes=[Route("/health", _health), *routes]))


def _without_redirects(app: Starlette) -> Starlette:
    """Starlette would lead from a path with a slash too many to the one without, at whatever Host the request names."""
    app.router.redirect_slashes = False
    return app


async def _without_slash(_: Request) -> Response:
    return RedirectResponse(PATH, 307)


async def _health(_: Request) -> Response:
    return _health_of(None)


def _health_of(problem: str | None) -> Response:
    """It runs, and has an answer of 200 even if nobody is let in: a restart would not help. What the problem is, with
    the names of files, is in the log."""
    if problem is None:
        return JSONResponse({"status": "ok", "version": __version__})
    reason = "the tokens file cannot be used"
    return JSONResponse({"status": "degraded", "version": __version__, "problem": reason})


async def _no_registration(_: Request) -> Response:
    """Clients that are refused try to register here, even if nothing points to it, and show people the answer."""
    text = "this server has no sign-in; send the header `Authorization: Bearer TOKEN` with a token from its operator"
    return PlainTextResponse(text, 404)


def metrics_route(
    render: Callable[[], bytes],
    settings: Settings,
    callers: Callers,
    security: TransportSecuritySettings,
    refused: Callable[[], None],
) -> Route:
    """The route of `/metrics`. It takes its own token if there is one, else that of any caller, and needs none where
    callers need none."""
    own = settings.metrics_token.get_secret_value().encode() if settings.metrics_token is not None else None
    origin_check = TransportSecurityMiddleware(security)

    async def is_allowed(token: str) -> bool:
        if own is not None:
            return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), own)
        return not callers.required or await callers.by_token(token) is not None

    async def metrics(request: Request) -> Response:
        rejection = await origin_check.validate_request(request)
        if rejection is not None:
            return rejection
        if not await is_allowed(_bearer(request)):
            refused()
            return PlainTextResponse("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})
        return Response(render(), media_type=_METRICS_TYPE)

    return Route("/metrics", metrics)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else ""
