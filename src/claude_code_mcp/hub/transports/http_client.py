"""Streamable HTTP and SSE: the SDK's transports on our own HTTP client.

The client turns every failure of a request into a JSON-RPC error with a distinct code, which the SDK passes to the
caller, and records the reason in `TransportFailure`. So a refused or lost request ends with an error instead of waiting
forever.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client.auth import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from ...core.redaction import redact_url
from ..auth.stored_oauth import NeedsAuth
from ..config_entry import HttpConfig, SseConfig, SseIdeConfig, TlsConfig
from ..streams import Streams, TransportFailure
from .failure_reasons import MAX_BODY, status_reason

UNREACHABLE = -32010
"""There was no answer; `data.sent` says whether the request may have arrived."""
UNAUTHORIZED = -32011
"""The credentials were rejected; `data.sign_in` says whether signing in can help."""
SESSION_GONE = -32012
"""The server has forgotten the session, because it was restarted: the request was not processed."""
_POST_TIMEOUT = 60.0
"""Seconds until the head of the response to a POST. Its body, and the stream of a GET, have no limit."""
_DELETE_TIMEOUT = 5.0
_BODY_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 30.0
_TIMEOUTS = {"POST": _POST_TIMEOUT, "DELETE": _DELETE_TIMEOUT}
_MAX_EVENT = 64 << 20


@asynccontextmanager
async def http(
    config: HttpConfig, headers: Mapping[str, str], auth: httpx2.Auth | None, failure: TransportFailure
) -> AsyncIterator[Streams]:
    # Over HTTP every request gets a response: a server that takes long is slow, not silent.
    failure.has_read_input = lambda: False
    async with (
        HttpClient(failure, headers, config.tls, auth) as client,
        streamable_http_client(config.url, http_client=client, max_sse_event_size=_MAX_EVENT) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse(
    config: SseConfig | SseIdeConfig,
    own_headers: Mapping[str, str],
    own_auth: httpx2.Auth | None,
    failure: TransportFailure,
    give_up: Callable[[], None],
) -> AsyncIterator[Streams]:
    """The SSE transport. Answers arrive on a single stream, so a refused POST would leave its call waiting: `give_up`
    ends the connection."""

    def make_client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> HttpClient:
        return HttpClient(failure, own_headers, config.tls, own_auth, on_refusal=give_up, needs_stream=True)

    async with sse_client(config.url, httpx_client_factory=make_client) as streams:
        yield streams


def _redact_addresses(record: logging.LogRecord) -> bool:
    """Log filter that redacts addresses: httpx2 logs the address of each request, whose parameters may be secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(redact_url(str(value)) if isinstance(value, httpx2.URL) else value for value in record.args)
    return True


logging.getLogger("httpx2").addFilter(_redact_addresses)


class HttpClient(httpx2.AsyncClient):
    """An HTTP client that never raises for a refused or failed request: it returns a response with a JSON-RPC error.

    Once a sign-in is needed, no more requests are sent. `on_refusal` is called when a POST has failed. `needs_stream`
    is for a server whose answers arrive on a GET: if that is refused, it is the reason why there is no connection.
    """

    def __init__(
        self,
        failure: TransportFailure,
        headers: Mapping[str, str],
        tls: TlsConfig,
        auth: httpx2.Auth | None = None,
        on_refusal: Callable[[], None] | None = None,
        needs_stream: bool = False,
    ) -> None:
        super().__init__(
            headers=dict(headers),
            auth=auth,
            verify=tls_context(tls),
            timeout=httpx2.Timeout(_CONNECT_TIMEOUT, read=None, pool=None),
        )
        self._failure = failure
        self._on_refusal = on_refusal or (lambda: None)
        self._needs_stream = needs_stream

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if self._failure.needs_auth:  # the answer stays the same until a person has signed in
            return self._refused(request, 401, UNAUTHORIZED, self._failure.needs_auth, sign_in=True)
        try:
            with anyio.fail_after(_TIMEOUTS.get(request.method)):
                response = await super().send(request, **options)
        except TimeoutError:
            return self._refused(request, 504, UNREACHABLE, "timed out", sent=True)
        except NeedsAuth as error:
            if not error.step_up:
                self._failure.needs_auth, self._failure.refused_token = str(error), error.token
            return self._refused(request, 401, UNAUTHORIZED, str(error), sign_in=True)
        except OAuthFlowError as error:
            return self._refused(request, 401, UNAUTHORIZED, f"signing in failed: {error}")
        except httpx2.TransportError as error:
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout)
            return self._refused(request, 503, UNREACHABLE, str(error) or type(error).__name__, sent=sent)
        return await self._checked(request, response)

    async def _checked(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, or an error instead if it rejects the credentials or the session."""
        status = response.status_code
        if status < 400 or request.method == "DELETE":
            return response
        if status == 401:
            await response.aclose()
            return self._refused(request, 401, UNAUTHORIZED, status_reason(401, {}, b""))
        body = await _beginning(response)
        # Some servers answer 400 instead of 404 for a session that they have forgotten.
        may_be_gone = status == 404 or (status == 400 and b"session" in body.lower())
        if may_be_gone and "mcp-session-id" in request.headers:
            return self._refused(request, 404, SESSION_GONE, "the server no longer knows the session", sent=False)
        reason = status_reason(status, response.headers, body)
        if request.method == "POST" or self._needs_stream:
            self._failure.reason = reason
        if request.method == "POST":
            self._on_refusal()
        if _is_answer(response, body):
            headers = {"content-type": response.headers.get("content-type", "")}
            return httpx2.Response(status, content=body, headers=headers, request=request)
        # From this code the SDK learns that the probe failed, and begins with the handshake.
        code = types.METHOD_NOT_FOUND if status == 404 else types.INTERNAL_ERROR
        return _error_response(request, status, code, reason)

    def _refused(
        self, request: httpx2.Request, status: int, code: int, message: str, **data: object
    ) -> httpx2.Response:
        self._failure.reason = message
        if request.method == "POST":
            self._on_refusal()
        return _error_response(request, status, code, message, **data)


def _error_response(request: httpx2.Request, status: int, code: int, message: str, **data: object) -> httpx2.Response:
    error = {"code": code, "message": message, "data": data}
    return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


async def _beginning(response: httpx2.Response) -> bytes:
    """The beginning of a body, which may be endless; then the response is closed."""
    body = bytearray()
    try:
        with anyio.move_on_after(_BODY_TIMEOUT):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    break
    except httpx2.HTTPError:
        pass  # the part received so far is enough
    finally:
        await response.aclose()
    return bytes(body)


def _is_answer(response: httpx2.Response, body: bytes) -> bool:
    """Whether a refusal is a JSON-RPC error, which is passed to the caller."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return False
    try:
        return isinstance(types.jsonrpc_message_adapter.validate_json(body, by_name=False), types.JSONRPCError)
    except ValueError:
        return False


def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a server; servers without TLS settings share one, since creating it is slow."""
    if tls == TlsConfig():
        return _default_context()
    context = ssl.create_default_context(cafile=tls.ca_file)
    if tls.cert_file:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@cache
def _default_context() -> ssl.SSLContext:
    return ssl.create_default_context()
