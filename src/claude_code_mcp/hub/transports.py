"""Ways to reach a server: a program, streamable HTTP, SSE, this process; and why one failed. WebSockets have a file of
their own, `websocket.py`.

Streamable HTTP and SSE are the SDK's transports on an HTTP client of ours: it turns every way in which a request can
fail into a JSON-RPC error with a code of its own, which the SDK hands to the caller, and notes in `TransportFailure`
why it failed. So a refused or lost request ends with an error, and never with a call that waits for ever.

Messages to a program are written from the caller's own task and handed over from the reader's callback, so that no task
stands between the pipe and the session.

Between two ends in this process delivery is never re-entrant: each side receives in its own task, so that an exchange
of any length takes no more of the stack than one message.
"""

import json
import logging
import os
import re
import shutil
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from http import HTTPStatus
from typing import Any

import anyio
import httpx2
import mcp_types as types
from mcp.client.auth import OAuthFlowError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from ..core.processes.child import ChildProcess, Exit
from ..core.processes.environment import child_environment
from ..core.processes.line_splitter import MAX_LINE, LineSplitter, Oversized
from ..core.redaction import redact_url
from .auth.credentials import NeedsAuth
from .config_entry import HttpConfig, SseConfig, SseIdeConfig, StdioConfig, TlsConfig
from .streams import (
    BufferedInbox,
    CallbackOutbox,
    Inbox,
    Outbox,
    Streams,
    TransportFailure,
    parse_message,
    render_message,
)

MAX_BODY = 1 << 16
"""So many bytes of a refusal are read."""
_MAX_LENGTH = 280
_GROUP_BAR = re.compile(r"\A *\| ?")
_GROUP_RULE = re.compile(r" *\+[-+ 0-9.]*\Z")
_HEADINGS = ("Traceback (most recent call last):", "+ Exception Group Traceback (most recent call last):")
_NODE_VERSION = re.compile(r"Node\.js v[0-9.]+\Z")
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{0,300})", re.IGNORECASE)
_TAG = re.compile(r"<[^<>]{0,1000}>")
_MEANINGS = {
    401: "the server requires other credentials",
    400: "the server does not understand the request",
    403: "the server does not allow this with these credentials",
    404: "there is no MCP server at this address",
    405: "there is no MCP server at this address",
    429: "too many requests",
    500: "the server failed",
    502: "the server behind this address is unavailable",
    503: "the server is temporarily unavailable",
    504: "the server behind this address does not respond",
}


def stderr_summary(text: str) -> str:
    """The end of what a program wrote, without the frames of a traceback: its last line says what is wrong."""
    lines = [*_relevant_lines(text)]
    if not lines:
        return ""
    kept = deque([_shortened(lines[-1])])
    room = _MAX_LENGTH - len(kept[0])
    for line in reversed(lines[:-1]):
        room -= len(line) + 1
        if room < 0:
            kept[0] = f"… {kept[0]}"
            break
        kept.appendleft(line)
    return " ".join(kept)


def _relevant_lines(text: str) -> Iterator[str]:
    # Within a group of exceptions each line begins with a bar.
    lines = [_GROUP_BAR.sub("", line, count=1) for line in text.splitlines() if not _GROUP_RULE.match(line)]
    frames = ('File "', "at ")
    has_frames = any(line[:1].isspace() and line.lstrip().startswith(frames) for line in lines)
    for line in lines:
        plain = " ".join(line.split())
        is_frame = has_frames and (line[:1].isspace() or plain in _HEADINGS)
        if len(plain) > 1 and not is_frame and not _NODE_VERSION.match(plain):
            yield plain


def status_reason(status: int, headers: Mapping[str, str], body: bytes) -> str:
    """What an HTTP status of 400 or more says, with the server's own words and for how long it asks to wait."""
    meaning = _MEANINGS.get(status) or _phrase(status)
    pause = headers.get("retry-after", "").strip()
    if pause:
        meaning += f"; it asks to wait {pause[:40]}{' s' if pause.isdecimal() else ''}"
    detail = _detail(headers.get("content-type", ""), body[:MAX_BODY].decode("utf-8", "replace"))
    return _shortened(f"HTTP {status}: {meaning}{f' ({detail})' if detail else ''}")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase.lower()
    except ValueError:
        return "the server refused"


def _detail(content_type: str, text: str) -> str:
    """The server's own words in the body of a refusal."""
    if "json" in content_type.lower():
        try:
            return _shortened(_message(json.loads(text)))
        except (ValueError, RecursionError):
            return ""
    if "html" in content_type.lower():
        title = _TITLE.search(text)
        return _shortened(title[1]) if title else ""
    return _shortened(_TAG.sub(" ", text[: 4 * _MAX_LENGTH]))


def _message(value: Any) -> str:
    """The text of an error in any of the usual forms: `{"error": {"message": …}}`, `{"detail": …}`, a plain string."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for key in ("error_description", "message", "detail", "title", "error"):
            found = _message(value.get(key))
            if found:
                return found
    return ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LENGTH else line[: _MAX_LENGTH - 1] + "…"


# -- http -------------------------------------------------------------------------------------------------------------


UNREACHABLE = -32010
"""There was no answer; `data.sent` says whether the request can have arrived."""
UNAUTHORIZED = -32011
"""The credentials are of no use; `data.sign_in` says whether a person who signs in can change that."""
SESSION_GONE = -32012
"""The server has forgotten the session, since it was started anew: the request was not processed."""
_POST_TIMEOUT = 60.0
"""Seconds to the head of the answer to a POST. Its body, and whatever a GET streams, may take forever."""
_DELETE_TIMEOUT = 5.0
_BODY_TIMEOUT = 5.0
_CONNECT_TIMEOUT = 30.0
_TIMEOUTS = {"POST": _POST_TIMEOUT, "DELETE": _DELETE_TIMEOUT}
_MAX_EVENT = 64 << 20


@asynccontextmanager
async def http(
    config: HttpConfig, headers: Mapping[str, str], auth: httpx2.Auth | None, failure: TransportFailure
) -> AsyncIterator[Streams]:
    # Every request has an answer here: a server whose answer is long in coming is slow, and not mute.
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
    """Answers come on the one stream, so a refused POST would leave its call waiting: `give_up` ends all of it."""

    def make_client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> HttpClient:
        return HttpClient(failure, own_headers, config.tls, own_auth, on_refusal=give_up, needs_stream=True)

    async with sse_client(config.url, httpx_client_factory=make_client) as streams:
        yield streams


def _redact_addresses(record: logging.LogRecord) -> bool:
    """A log filter: httpx2 logs the address of each request, and the parameters of an address may be secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(redact_url(str(value)) if isinstance(value, httpx2.URL) else value for value in record.args)
    return True


logging.getLogger("httpx2").addFilter(_redact_addresses)


class HttpClient(httpx2.AsyncClient):
    """Raises for no refusal or failure of a request: returns a response with a JSON-RPC error instead.

    Once a sign-in is needed, nothing more is sent. `on_refusal` is called when a POST failed. `needs_stream` is for a
    server whose answers come on a GET: that it is refused is then the reason why there is no connection.
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
        """The response, or an error in its place where it says that the credentials or the session are of no use."""
        status = response.status_code
        if status < 400 or request.method == "DELETE":
            return response
        if status == 401:
            await response.aclose()
            return self._refused(request, 401, UNAUTHORIZED, status_reason(401, {}, b""))
        body = await _beginning(response)
        # Some servers say 400, and not 404, of a session that they have forgotten.
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
        # By this code the SDK knows that a probe was in vain, and begins with the handshake.
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
    """The beginning of a body, which may have no end; the response is closed then."""
    body = bytearray()
    try:
        with anyio.move_on_after(_BODY_TIMEOUT):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_BODY:
                    break
    except httpx2.HTTPError:
        pass  # what there is of it is enough
    finally:
        await response.aclose()
    return bytes(body)


def _is_answer(response: httpx2.Response, body: bytes) -> bool:
    """Whether a refusal is a JSON-RPC error, which is for the caller."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return False
    try:
        return isinstance(types.jsonrpc_message_adapter.validate_json(body, by_name=False), types.JSONRPCError)
    except ValueError:
        return False


def tls_context(tls: TlsConfig) -> ssl.SSLContext:
    """The TLS context of a server; those without settings of their own share one, since it is slow to make."""
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


# -- stdio ------------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

_LOGGED = 200

ChildEnvironment = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]
"""From the variables of a server to the environment of its program, and the mark in it."""


def unmarked(variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The variables without those that no child may have, and without a mark."""
    return child_environment(variables), ""


@asynccontextmanager
async def stdio(
    name: str,
    config: StdioConfig,
    environment: Mapping[str, str],
    child_environment_of: ChildEnvironment,
    failure: TransportFailure,
) -> AsyncIterator[Streams]:
    """Starts the program; on the way out stops it (end of input, SIGTERM, SIGKILL, each after `failure.grace` seconds)
    and everything that it started. Neither can be cancelled half way."""
    variables, mark = child_environment_of({**environment, **config.env})
    server = _Server(name, config.secrets_redactor().text, mark)
    argv = [_find_program(config.command, variables, config.cwd), *config.args]
    try:
        with anyio.CancelScope(shield=True):  # cancelled half way, the child would run on with nobody to end it
            await server.child.start(argv, cwd=config.cwd, environment=variables)
        failure.has_read_input = lambda: server.child.has_read_input
        yield server.inbox, CallbackOutbox(server.send)
    finally:
        # Shielded: the program must not outlive the connection.
        with anyio.CancelScope(shield=True):
            await server.stop(failure.grace)
        # Only now is it known how it ended.
        failure.reason = server.end_reason


def _find_program(command: str, environment: Mapping[str, str], cwd: str | None) -> str:
    if cwd is not None and os.path.dirname(command):  # a path leads from where the program runs
        command = os.path.join(cwd, command)
    program = shutil.which(command, path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(f"there is no program {command!r}")
    return program


class _Server:
    """The child process of a server: turns its lines into messages, and says how it ended."""

    def __init__(self, name: str, redact: Callable[[str], str], mark: str) -> None:
        self.child = ChildProcess(self, "the server", mark=mark, owner=f"MCP server {name}")
        self._name = name
        self.inbox = BufferedInbox(self.child.pause_reading)
        self._redact = redact
        self._lines = LineSplitter()
        self._ended_by_itself = False

    def output_received(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if isinstance(line, Oversized):
                log.warning("MCP server %s: a line of over %d bytes was skipped", self._name, MAX_LINE)
            else:
                self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        message = parse_message(line)
        if message is not None:
            self.inbox.put(message)
        elif line.strip() and log.isEnabledFor(logging.DEBUG):
            # Far more than is shown is looked at: a secret that is cut could not be recognised.
            text = self._redact(line[: 100 * _LOGGED].decode("utf-8", "replace"))
            log.debug("MCP server %s: not a message: %s", self._name, text[:_LOGGED])

    def output_ended(self) -> None:
        # Before its end is known: the connection stops what has closed its output.
        self._ended_by_itself = not self.child.stopping
        # Whichever of the three comes first: what was put in before is still read.
        self.inbox.end()

    def input_closed(self) -> None:
        self.inbox.end()

    def child_ended(self, exit_: Exit) -> None:
        self.inbox.end()

    async def send(self, message: SessionMessage) -> None:
        if not self.child.input_open:
            raise anyio.BrokenResourceError
        self.child.write(render_message(message).encode() + b"\n")
        await self.child.drained()

    @property
    def end_reason(self) -> str | None:
        """How the program ended, with the last of its stderr; None where it ended because we stopped it."""
        code = self.child.returncode
        summary = stderr_summary(self._redact(self.child.stderr))
        by_us = self.child.stopping and not self._ended_by_itself
        if code is None or (code <= 0 and by_us and not summary):
            return None
        how = self.child.cause or Exit(code, "").how
        return f"{how}: {summary}" if summary else how

    async def stop(self, grace: float) -> None:
        if self.child.started:
            await self.child.stop(grace)


# -- in process -------------------------------------------------------------------------------------------------------


ServeInProcess = Callable[[Inbox, Outbox], Awaitable[object]]
"""Serves one client on two streams until the first of them ends."""


def linked_pair() -> tuple[Streams, Streams]:
    """Two pairs of streams; what is written to one is read from the other."""
    to_left, left = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_right, right = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    return (left, to_right), (right, to_left)


_CLOSE_TIMEOUT = 2.0


@asynccontextmanager
async def in_process(serve: ServeInProcess) -> AsyncIterator[Streams]:
    """Runs the server for as long as the block lasts; then it has `_CLOSE_TIMEOUT` seconds to end by itself."""
    ours, theirs = linked_pair()
    ended = anyio.Event()

    async def run() -> None:
        try:
            await serve(*theirs)
        finally:
            # However it ended: our side has to see it.
            for stream in theirs:
                await stream.aclose()
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield ours
        finally:
            with anyio.CancelScope(shield=True):
                for stream in ours:
                    await stream.aclose()
                with anyio.move_on_after(_CLOSE_TIMEOUT):
                    await ended.wait()
            tasks.cancel_scope.cancel()
