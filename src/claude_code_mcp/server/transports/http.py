"""Serves MCP over Streamable HTTP: listening, limits, authentication and routes.

Without limits, a few hundred silent connections would use up all descriptors and block everyone. A connection beyond
the total or per-address limit gets a 503 response and is closed; so is one that does not send its request head in time.
The per-address limit does not apply to trusted proxies, which represent many people.

`/mcp` and `/metrics` check the bearer token and the Host and Origin headers; `/health` and `/ready` do not. Without a
token the server listens on loopback only. Other routes, such as the console's, come from the caller of `http_app`.
"""

import asyncio
import hmac
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

import uvicorn
from mcp import types
from mcp.server.auth.settings import AuthSettings
from mcp.server.lowlevel import Server
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from ... import __version__
from ...core.config import Settings
from ...core.errors import InvalidArgument
from ...core.model.events import AuditEvent, AuditKind
from ..http_streams import OpenStreams, response_streams
from ..sdk import end_connections
from .authenticator import Challenge, HttpService
from .callers import SCOPE, Callers, CallerTokens
from .identity import Identity
from .running_calls import RunningCalls

log = logging.getLogger(__name__)

PATH = "/mcp"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_CONNECTIONS = 2000
_MAX_PER_ADDRESS = 500
_ACCEPTED_AT_ONCE = 32
_HEAD_SECONDS = 20.0
_KEPT_FREE = 128
"""Descriptors reserved for files, sessions and MCP servers."""
_WANTED_DESCRIPTORS = 65_536
_ACCEPT_FAILED = "socket.accept() out of system resource"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\nContent-Length: 21\r\n"
    b"Connection: close\r\n\r\ntoo many connections\r\n"
)


class ConnectionLimits:
    """The connections of one server, counted by address."""

    def __init__(self, most: int, most_of_one: int, proxies: Collection[str] = ()) -> None:
        self._most = min(most, max(8, (raise_descriptor_limit() - _KEPT_FREE) // 2))
        self._most_of_one = most_of_one
        self._proxies = frozenset(proxies)
        self._open: Counter[str] = Counter()

    def admit(self, host: str) -> bool:
        """Count a connection and return True, or return False if there are too many. Each admitted one must be
        released."""
        own = self._open[host]
        if self._open.total() >= self._most or (own >= self._most_of_one and host not in self._proxies):
            return False
        self._open[host] += 1
        return True

    def release(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]

    def protocol(self, head_seconds: float = _HEAD_SECONDS) -> Callable[..., asyncio.Protocol]:
        """The factory of the uvicorn protocol for every connection, which enforces these limits."""

        def make(*arguments: Any, **named: Any) -> asyncio.Protocol:
            return _LimitedProtocol(self, head_seconds, *arguments, **named)

        return make


class _LimitedProtocol(H11Protocol):
    def __init__(self, limits: ConnectionLimits, head_seconds: float, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._head_seconds = head_seconds
        self._admitted: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._limits.admit(host):
            # Not passed on to uvicorn, which would serve it; data that still arrives is dropped below.
            transport.write(_REFUSAL)
            transport.close()
            return
        self._admitted = host
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._admitted is None:
            return
        super().data_received(data)
        # uvicorn waits for the next request of a connection; our time limit starts with its first byte.
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        # Uvicorn does not know refused connections.
        if self._admitted is not None:
            self._limits.release(self._admitted)
            self._admitted = None
            super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        # A request with a complete head has its own time limit.
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def raise_descriptor_limit() -> int:
    """Raise this process's soft descriptor limit as far as possible; return the limit."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return _WANTED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return _WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def report_accept_failures_sparingly(
    loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
) -> None:
    """Log connections that cannot be accepted at most once a second: asyncio would report thousands of them."""
    before, last = loop.get_exception_handler(), float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last
        if context.get("message") != _ACCEPT_FAILED:
            (before or type(loop).default_exception_handler)(loop, context)
        elif clock() - last >= 1.0:
            last = clock()
            log.error("connections cannot be accepted: %s", context.get("exception"))

    loop.set_exception_handler(handle)


@dataclass(frozen=True, slots=True)
class Address:
    """An address to listen at."""

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
        """Whether it means all addresses of this machine."""
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


def check_exposure(address: Address, callers: Callers, settings: Settings) -> None:
    """Raise InvalidArgument for a server without a token that other machines can reach, or whose authenticators cannot
    work there."""
    callers.check(address)
    if not address.loopback and not callers.required:
        raise InvalidArgument(
            f"Refusing to serve on {address.host} without a token: anyone who can reach it could run commands here. "
            "Set CLAUDE_CODE_MCP_TOKEN, CLAUDE_CODE_MCP_TOKENS_FILE or CLAUDE_CODE_MCP_OAUTH_ISSUER, or listen on "
            "127.0.0.1."
        )
    if not address.loopback and not (settings.web_url or "").startswith("https://"):
        log.warning(
            "serving on %s without TLS: others on the network can read tokens and conversations. Put a proxy with TLS "
            "in front and set CLAUDE_CODE_MCP_WEB_URL to its https address, or listen on 127.0.0.1.",
            address.host,
        )


def endpoint_url(settings: Settings, address: Address) -> str:
    """The URL of the MCP endpoint of a server that listens there."""
    return f"{settings.web_url}{PATH}" if settings.web_url is not None else address.url


# -- the server --------------------------------------------------------------------------------------------------------


class HttpServer:
    """Listens at an address until it is stopped."""

    def __init__(
        self,
        address: Address,
        make_app: Callable[[Address], ASGIApp],
        *,
        settings: Settings,
        serves: str = "MCP",
        callers: Callers | None = None,
        listener: socket.socket | None = None,
    ) -> None:
        """Bind the socket, or use a `listener` that is already bound to the address; requests wait there until `serve`.
        `make_app` is called with the address and the actual port; `serves` is for the log; `callers` are the admitted
        callers. A request's origin is the peer's address or, if the peer is a configured proxy, the address in its
        header. InvalidArgument if it cannot listen there; if `make_app` raises, the socket is closed."""
        self._serves = serves
        self._without_token = callers is not None and not callers.required
        self._socket = listener if listener is not None else _listen(address)
        self.address = replace(address, port=self._socket.getsockname()[1])
        self.url = self.address.url
        self.own_addresses = own_addresses(self.address)
        try:
            # Inside the middleware of authenticators, which uses the peer's own address.
            app: Any = ProxyHeadersMiddleware(make_app(self.address), [*settings.http_proxies])  # type: ignore[arg-type]
            app = app if callers is None else callers.wrap(app)
        except BaseException:
            self._socket.close()
            raise
        self._server = _Uvicorn(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # `ProxyHeadersMiddleware` reads them, see above
                timeout_graceful_shutdown=1,
                ws="none",
                http=ConnectionLimits(_MAX_CONNECTIONS, _MAX_PER_ADDRESS, settings.http_proxies).protocol(),  # type: ignore[arg-type]
                # asyncio keeps accepting this many times after a failure: more would block everything else.
                backlog=_ACCEPTED_AT_ONCE,
            )
        )

    async def serve(self) -> None:
        """Serve until `stop` is called; return when the last connection is closed."""
        log.info("serving %s on %s", self._serves, self.url if self._serves == "MCP" else self.url.removesuffix(PATH))
        if self._without_token:
            log.warning(
                "serving without a token: every program and every user on this machine can run commands as this user; "
                "set CLAUDE_CODE_MCP_TOKEN or CLAUDE_CODE_MCP_TOKENS_FILE"
            )
        report_accept_failures_sparingly(asyncio.get_running_loop())
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Accept no more connections; `serve` returns soon after."""
        self._server.should_exit = True


def _listen(address: Address) -> socket.socket:
    try:
        family, *_, sockaddr = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(sockaddr[:2], family=family, backlog=2048)
        # Inherited by every connection. asyncio does this only for sockets that were made with TCP by name, and with
        # Nagle's algorithm every call waits 40 ms for an acknowledgment.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        raise InvalidArgument(f"Cannot listen on {address.netloc}: {error.strerror or error}.", field="http") from None


class _Uvicorn(uvicorn.Server):
    """Leaves signals to the application: uvicorn would re-raise the signal that stopped it before the sessions are
    closed."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


# -- the application ---------------------------------------------------------------------------------------------------


class HttpBackend(Protocol):
    """The server behind HTTP: an `McpServer`, or a substitute for one."""

    def join_calls(self, running: RunningCalls, /) -> None:
        """Called before the first call with the running calls of all callers."""

    @property
    def service(self) -> HttpService: ...

    @property
    def streams(self) -> OpenStreams: ...

    def server(self) -> Server[Any]: ...

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None: ...


async def _no_problem() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Probes:
    """Checks of `/health` and `/ready` in addition to the server's own; each returns a problem, or None."""

    health: Callable[[], Awaitable[str | None]] = _no_problem
    """A problem that restarting this process may solve."""
    ready: Callable[[], Awaitable[str | None]] = _no_problem
    """A problem that keeps this process from serving its clients now."""


def http_app(
    mcp_server: HttpBackend,
    settings: Settings,
    address: Address,
    callers: Callers,
    more: Callable[[], Sequence[BaseRoute]] = tuple,
    probes: Probes = Probes(),  # noqa: B008 - it cannot be changed
) -> Starlette:
    """The ASGI application; `more` creates routes that check their callers themselves. A caller's open streams end with
    its token."""
    security, server, service = _security(settings, address), mcp_server.server(), mcp_server.service

    def audit_refusal() -> None:
        service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))

    async def remove(name: str) -> None:
        await mcp_server.end_caller(name, partial(callers.running.calls_over, name))

    def end_caller(identity: Identity, removed: bool) -> None:
        # In tasks: this is called while the list of callers is replaced, without an await.
        service.start_task(end_connections(server, identity.principal, identity.credential))
        if removed:
            service.start_task(remove(identity.principal))

    def answer_of(probe: Callable[[], Awaitable[str | None]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(_: Request) -> Response:
            problem = await probe()
            return _health(callers.problem, problem)

        return answer

    callers.serve(service, address)
    challenge = callers.challenge
    resource = challenge.resource if challenge is not None else endpoint_url(settings, address)
    callers.on_ended(end_caller)
    callers.remove = remove
    mcp_server.join_calls(callers.running)
    routes = [Route("/health", answer_of(probes.health)), Route("/ready", answer_of(probes.ready))]
    routes.append(Route(f"{PATH}/", _without_slash, methods=["GET", "POST", "DELETE"]))
    if callers.required and challenge is None:
        routes.append(Route("/register", _no_registration, methods=["GET", "POST"]))
    auth = _auth(challenge, address) if callers.required else None
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        host=address.host,
        transport_security=security,
        auth=auth,
        token_verifier=CallerTokens(callers, resource, audit_refusal, challenge.scopes if challenge is not None else ())
        if callers.required
        else None,
        custom_starlette_routes=[*routes, *more()],  # type: ignore[list-item]  # Starlette takes any route
    )
    app.add_middleware(_JsonTooLarge)
    app.add_middleware(mcp_server.streams.middleware)
    app.add_middleware(response_streams)
    app.add_middleware(callers.running.middleware)  # the outermost: it ends the others
    return _without_redirects(app)


def _auth(challenge: Challenge | None, address: Address) -> AuthSettings:
    """The SDK's settings for authentication.

    If clients get access tokens from an issuer, the issuer is published, and refused clients are pointed to it
    (RFC 9728). The verifier checks the audience itself.

    Otherwise the operator issues tokens and there is no authorization server. None is advertised: a client would begin
    a sign-in instead of reporting that its token is wrong. The SDK requires an issuer anyway, but does not publish it
    if there is no resource."""
    if challenge is not None:
        # As strings: clients compare issuers literally, and parsing would add a trailing slash.
        return AuthSettings.model_validate(
            {
                "issuer_url": challenge.issuer,
                "resource_server_url": challenge.resource,
                # None and not an empty list: with an empty one clients ask for an empty scope, which providers refuse.
                "required_scopes": [*challenge.scopes] or None,
                "validate_token_resource": False,
            }
        )
    return AuthSettings(
        issuer_url=AnyHttpUrl(f"http://{address.netloc}"),
        resource_server_url=None,
        required_scopes=[SCOPE],
    )


def _security(settings: Settings, address: Address) -> TransportSecuritySettings:
    public = [urlsplit(settings.web_url).netloc] if settings.web_url else []
    names = {address.netloc, *settings.http_allowed_hosts, *public}
    if address.loopback:
        names |= {f"{name}:*" for name in _LOCAL_NAMES}
    origins = {f"http://{name}" for name in names} | {*settings.http_allowed_origins}
    if settings.web_url is not None:
        origins.add(settings.web_url)
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=sorted(names), allowed_origins=sorted(origins)
    )


def host_check(settings: Settings, address: Address) -> Callable[[str], bool]:
    """Returns a check whether a browser may reach this server under a Host header: the address itself, the names in the
    settings and, if served locally, this machine's own names."""
    public = [urlsplit(settings.web_url).netloc] if settings.web_url else []
    names = {address.netloc, *settings.http_allowed_hosts, *public}
    local = _LOCAL_NAMES if address.loopback or address.unspecified else ()

    def allowed(host: str) -> bool:
        name, _, port = host.rpartition(":")
        return host in names or (port.isascii() and port.isdigit() and (name in local or f"{name}:*" in names))

    return allowed


def plain_app(routes: Sequence[BaseRoute]) -> Starlette:
    """An application without MCP: `/health`, and routes that check their callers themselves."""

    async def health(_: Request) -> Response:
        return _health()

    return _without_redirects(Starlette(routes=[Route("/health", health), *routes]))


def _without_redirects(app: Starlette) -> Starlette:
    """Disable redirects: Starlette would redirect a path with a trailing slash, to whatever Host the request names."""
    app.router.redirect_slashes = False
    return app


async def _without_slash(_: Request) -> Response:
    return RedirectResponse(PATH, 307)


def _health(tokens_problem: str | None = None, problem: str | None = None) -> Response:
    """The response of `/health` and `/ready`. The status is 200 even if no caller can be admitted, because a restart
    would not help. The log has that problem with file names."""
    if problem is not None:
        return JSONResponse({"status": "unavailable", "version": __version__, "problem": problem}, 503)
    if tokens_problem is not None:
        reason = "the tokens file cannot be used"
        return JSONResponse({"status": "degraded", "version": __version__, "problem": reason})
    return JSONResponse({"status": "ok", "version": __version__})


class _JsonTooLarge:
    """Replaces the plain text with which the MCP SDK refuses a large body: clients expect JSON."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        replaced = False

        async def send_json(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and message["status"] == 413:
                replaced = b"json" not in dict(message["headers"]).get(b"content-type", b"")
                if replaced:
                    error = {"code": types.INVALID_REQUEST, "message": "The request body is too large."}
                    answer = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 413)
                    await answer(scope, receive, send)
            if not replaced:
                await send(message)

        await self._app(scope, receive, send_json)


async def _no_registration(_: Request) -> Response:
    """Refused clients try to register here even without being pointed to it, and show the answer to people."""
    text = "this server has no sign-in; send the header `Authorization: Bearer TOKEN` with a token from its operator"
    return PlainTextResponse(text, 404)


def metrics_route(
    render: Callable[[str | None], bytes], service: HttpService, address: Address, callers: Callers
) -> Route:
    """The route of `/metrics`. It requires its own token if there is one, otherwise any caller's token, or none if
    callers need none. `render` gets the caller who reads it; None for the operator."""
    settings = service.settings
    own = settings.metrics_token.get_secret_value().encode() if settings.metrics_token is not None else None
    origin_check = TransportSecurityMiddleware(_security(settings, address))

    async def viewer(token: str) -> tuple[bool, str | None]:
        """Whether the holder of this token may read metrics, and which caller that is."""
        if own is not None:
            return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), own), None
        if not callers.required:
            return True, None
        found = await callers.by_token(token)
        return found is not None, found.principal if found is not None else None

    async def metrics(request: Request) -> Response:
        rejection = await origin_check.validate_request(request)
        if rejection is not None:
            return rejection
        allowed, caller = await viewer(_bearer(request))
        if not allowed:
            service.audit(AuditEvent(AuditKind.AUTH_FAILED, "unknown"))
            return PlainTextResponse("Unauthorized", 401, {"WWW-Authenticate": "Bearer"})
        return Response(render(caller), media_type=_METRICS_TYPE)

    return Route("/metrics", metrics)


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.casefold() == "bearer" else ""
