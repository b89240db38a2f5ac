"""Remote servers over HTTP: streamable, or with server-sent events as before 2025."""

import json
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ...redaction import redact_url
from ..auth.oauth import NeedsAuth
from ..config_entry import HttpConfig, IdeConfig, SseConfig, SseIdeConfig, TlsConfig
from ..streams import Streams, Trouble

_LARGEST_EVENT = 64 << 20


@asynccontextmanager
async def http(
    config: HttpConfig, headers: Mapping[str, str], auth: httpx2.Auth | None, trouble: Trouble
) -> AsyncIterator[Streams]:
    async with (
        HttpClient(trouble, headers, config.tls, auth) as carrier,
        streamable_http_client(config.url, http_client=carrier, max_sse_event_size=_LARGEST_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(
    config: SseConfig | SseIdeConfig,
    own_headers: Mapping[str, str],
    own_auth: httpx2.Auth | None,
    trouble: Trouble,
    lose: Callable[[], None],
) -> AsyncIterator[Streams]:
    """Answers come on the one stream, so a refused POST leaves its call waiting for ever unless all of it ends."""

    def carrier(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> HttpClient:
        return HttpClient(trouble, own_headers, config.tls, own_auth, on_refusal=lose)

    async with sse_client(config.url, httpx_client_factory=carrier) as streams:
        yield streams


POST_TIMEOUT = 60.0


"""Seconds to the head of the answer to a POST. Its body, and whatever a GET streams, may take forever."""


_CONNECT_TIMEOUT = 30.0


_FAREWELL = 5.0


UNREACHABLE = -32010


"""Nobody answered; `data.sent` tells whether the request can have arrived."""


UNAUTHORIZED = -32011


SESSION_GONE = -32012


"""The server has forgotten us: it was started anew."""


TERMINAL = frozenset({UNREACHABLE, SESSION_GONE})


def _without_parameters(record: logging.LogRecord) -> bool:
    """httpx2 logs every address that it asks for, and the parameters of an address may be secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(redact_url(str(one)) if isinstance(one, httpx2.URL) else one for one in record.args)
    return True


logging.getLogger("httpx2").addFilter(_without_parameters)


class HttpClient(httpx2.AsyncClient):
    """Sends requests, never raises for a refusal, and remembers the last one."""

    def __init__(
        self,
        trouble: Trouble,
        headers: Mapping[str, str],
        tls: TlsConfig,
        auth: httpx2.Auth | None = None,
        on_refusal: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            headers=dict(headers),
            auth=auth,
            verify=tls_context(tls),
            timeout=httpx2.Timeout(_CONNECT_TIMEOUT, read=None, pool=None),
        )
        self._trouble = trouble
        self._on_refusal = on_refusal or (lambda: None)

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._trouble.needs_auth:  # asking again changes nothing until somebody has signed in
            return self._refused(request, 401, UNAUTHORIZED, self._trouble.needs_auth)
        try:
            with anyio.fail_after(_limit(request.method)):
                response = await super().send(request, **options)
        except TimeoutError:
            return self._refused(request, 504, UNREACHABLE, "no answer in time", sent=True)
        except NeedsAuth as error:
            if not error.step_up:
                self._trouble.needs_auth = str(error)
            return self._refused(request, 401, UNAUTHORIZED, str(error))
        except OAuthFlowError as error:
            return self._refused(request, 401, UNAUTHORIZED, f"signing in failed: {error}")
        except httpx2.TransportError as error:
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return self._refused(request, 503, UNREACHABLE, str(error) or type(error).__name__, sent=sent)
        return await self._judged(request, response)

    async def _judged(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        status = response.status_code
        if status < 400 or request.method == "DELETE":
            return response
        if status == 401:
            await response.aclose()
            return self._refused(request, 401, UNAUTHORIZED, "HTTP 401: the server wants other credentials")
        if status in {400, 404} and "mcp-session-id" in request.headers:
            body = await response.aread()
            if status == 404 or b"session" in body.lower():
                return self._refused(request, 404, SESSION_GONE, "the server no longer knows the session", sent=False)
        if request.method == "POST":
            self._trouble.reason = f"HTTP {status}"
            self._on_refusal()
        return response

    def _refused(
        self, request: httpx2.Request, status: int, code: int, message: str, **data: object
    ) -> httpx2.Response:
        self._trouble.reason = message
        if request.method == "POST":
            self._on_refusal()
        error = {"code": code, "message": message, "data": data}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


def _limit(method: str) -> float | None:
    return {"POST": POST_TIMEOUT, "DELETE": _FAREWELL}.get(method)


def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """The context of a server; all that want nothing special share one, since it is slow to make."""
    return _usual_context() if tls == TlsConfig() else _own_context(tls)


@cache
def _usual_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _own_context(tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


HEADER = "X-Claude-Code-Ide-Authorization"


def ide_headers(config: IdeConfig, claude_directory: Path) -> dict[str, str]:
    """The headers for an IDE: those configured, and the token."""
    token = config.auth_token or _token_of_lock_file(config.url, claude_directory)
    return {**config.headers, HEADER: token} if token else dict(config.headers)


def _token_of_lock_file(url: str, claude_directory: Path) -> str | None:
    port = urlsplit(url).port
    try:
        lock = json.loads((claude_directory / "ide" / f"{port}.lock").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = lock.get("authToken") if isinstance(lock, dict) else None
    return token if isinstance(token, str) else None
