"""Forwards requests from a sandbox to the model's API, and to nothing else, and counts their tokens.

**Credentials** stay in the server. Claude Code gets placeholders. The forwarder replaces a placeholder in the head of
a request, and only where it is the complete value of a header. It also adds the operator's own headers
(`ANTHROPIC_CUSTOM_HEADERS`) and a user name and password in the address, which Claude Code does not see. A session can
therefore use the API while it runs, but cannot learn the key.

**Requests.** Every connection carries one request. It is rebuilt from known headers and fields (`model_request.py`),
so that the API fetches nothing for it and no second request can hide in it. Requests that Claude Code does not need,
such as batches, are refused. The number of connections of a session and the bytes that they hold are limited.

**Tokens.** An answer reports its tokens in objects called `usage`: one if it is not streamed; otherwise one at the
beginning and one at the end, which repeats or raises the counts. The largest value of each count is used, so that
nothing in between can lower it. Text of the model cannot be mistaken for such an object, because its quotes are
escaped. `SocketTraffic` counts every answer, whichever program in the sandbox asked for it and whatever Claude Code
reports. If the session disconnects, its answer is read to the end, because it is paid for. If the process ends first,
the unknown part is estimated.
"""

import asyncio
import base64
import contextlib
import json
import logging
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import h11

from ...core.claude.model_traffic import ModelTraffic
from ...core.log_limit import FoldedLog
from ...core.model.usage import ModelUsage, Usage, read_number
from ...core.private_files import bind_below, read_regular
from .model_request import (
    CREDENTIAL_HEADERS,
    MAX_BODY,
    NOTHING_MORE,
    ModelAccess,
    ModelRequest,
    RequestNotAllowed,
    allowed_headers,
    rebuilt_request,
)
from .network.http_exchange import ClientGone, ExchangeFailed, Headers, HttpPeer, end_to_end

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_MAX_USAGE = 16 << 10
"""Bytes; an answer that was sampled several times lists each sample."""
_OVERLAP = 256
"""Bytes that are scanned again with the next ones, so that nothing between two pieces is missed."""
_LAST_EVENT = re.compile(rb'\n(?:event: ?message_stop\r?\n|data: ?\{"type": ?"message_stop")')
"""Only at the start of a stream line: text of a model or search result may contain the word, but no line break, which
JSON escapes."""
_BYTES_PER_TOKEN = 30
"""For a stream that was cut off before it reported its output: most of it is event framing."""
_read_value = json.JSONDecoder().raw_decode


class ResponseMeter:
    """Meters the body of an answer as it arrives, without its framing."""

    def __init__(self, status: int) -> None:
        self._succeeded = status == 200
        self._kept = b""
        self._model = b""
        self._used = ModelUsage()
        self._size = 0
        self.complete = False
        """Whether the whole answer has passed; the connection may stay open."""

    def feed(self, data: bytes) -> None:
        if not self._succeeded:
            return
        self._size += len(data)
        text = self._kept + data
        if not self._model and (found := _MODEL.search(text)) is not None:
            self._model = found[1]
        self._kept = self._read(text)
        self.complete = self.complete or _LAST_EVENT.search(text) is not None

    def _read(self, text: bytes) -> bytes:
        """Processes every complete usage in the text; returns the part to scan again."""
        at = 0
        while (found := _USAGE.search(text, at)) is not None:
            start = found.end() - 1
            try:
                value, length = _read_value(text[start : start + _MAX_USAGE].decode("latin-1"))
            except (ValueError, RecursionError):
                if len(text) - start < _MAX_USAGE:
                    return text[found.start() :]  # the rest of it has not arrived yet
                at = found.end()
                continue
            self._used |= _tokens(value)
            at = start + length
        return text[max(at, len(text) - _OVERLAP) :]

    @property
    def usage(self) -> Usage:
        """The usage of the answer so far. If the answer ended early, its output is estimated from its size."""
        if self._used == ModelUsage():
            return Usage()
        used = self._used if self.complete else self._used | ModelUsage(output_tokens=self._size // _BYTES_PER_TOKEN)
        return Usage({self._model.decode("ascii", "replace") or "unknown": used})


def _tokens(value: object) -> ModelUsage:
    """The tokens in a usage object. If the API sampled several times for one answer, to compact or to fall back, its
    totals may omit some of them."""
    iterations = value.get("iterations") if isinstance(value, dict) else None
    return _counts(value) | sum(map(_counts, iterations if isinstance(iterations, list) else ()), ModelUsage())


def _counts(value: object) -> ModelUsage:
    if not isinstance(value, dict):
        return ModelUsage()
    return ModelUsage(
        int(read_number(value, "input_tokens")),
        int(read_number(value, "output_tokens")),
        int(read_number(value, "cache_read_input_tokens")),
        int(read_number(value, "cache_creation_input_tokens")),
    )


log = logging.getLogger(__name__)

INSIDE = "/run/model.sock"
"""The path of the socket in a sandbox."""
_ENDPOINT = "https://api.anthropic.com"
_CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_LOGIN = "CLAUDE_CODE_OAUTH_TOKEN"
"""The variable that represents a login."""
_MAX_LOGIN = 1 << 20
_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
"""Lines of `Name: value` that Claude Code sends with every request."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEAD_SECONDS = 30.0
_MAX_CONNECTIONS = 64
"""Concurrent requests, including connections without a request yet."""
_SILENT_SECONDS = 1200.0
"""How long the model may be silent."""
_CONNECT_SECONDS = 30.0
_REFUSED_SECONDS = 10.0
"""How long a refused client may continue to send."""
_PIECE = 64 << 10
_MAX_HELD = 2 * MAX_BODY
"""Bytes of all of a session's requests that are being read."""
_LONG_CHECK = 0.1
"""Seconds; only bodies of several megabytes take longer."""
_BYTES_PER_INPUT_TOKEN = 4
_MAX_TOKENS_PER_SECOND = 300
"""No model writes faster."""
_SPENDING = "messages"
_FREE = frozenset({"messages/count_tokens"})
"""Claude Code's POST requests below `/v1/`: the first is counted, the others are free."""
_MODELS = re.compile(r"/v1/models(?:/[\w:-][\w.:-]{0,199})?", re.ASCII)


class SocketTraffic(ModelTraffic):
    """The meter of one socket."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: set[AnswerCount] = set()
        """Unfinished answers, including those whose client disconnected."""

    @property
    def unfinished(self) -> Usage:
        return sum((answer.usage for answer in self.answers), Usage())


class AnswerCount:
    """Counts one answer before the client reads it, because the client may end the turn with it."""

    def __init__(self, traffic: SocketTraffic, request: ModelRequest, clock: Callable[[], float]) -> None:
        self._traffic = traffic
        self._request = request
        self._clock = clock
        self._sent_at = clock()
        self._meter: ResponseMeter | None = None
        self._framed = False
        traffic.answers.add(self)

    @property
    def usage(self) -> Usage:
        """Its usage so far; the input is estimated until the API reports it."""
        return self._meter.usage if self._meter is not None else self._estimate(0)

    @property
    def is_complete(self) -> bool:
        return self._meter is not None and self._meter.complete

    def begin(self, answer: h11.Response) -> None:
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in answer.headers)
        self._meter = ResponseMeter(answer.status_code)

    def feed(self, data: bytes) -> None:
        assert self._meter is not None
        self._meter.feed(data)
        if self._meter.complete:  # the session may keep the connection open indefinitely
            self.finish()

    def end(self) -> None:
        """The answer ended as announced, or with the connection."""
        assert self._meter is not None
        self._meter.complete = self._meter.complete or self._framed  # otherwise it may have been cut off
        self.finish()

    def finish(self) -> None:
        """No more of it will arrive: counts its usage so far. A second call does nothing."""
        self._count(self._meter.usage if self._meter is not None else Usage())

    def abandon(self) -> None:
        """Counts an answer that is not read to its end. If it has not begun, its output is estimated from the time
        since the request."""
        seconds = self._clock() - self._sent_at
        most = min(self._request.max_tokens, int(seconds * _MAX_TOKENS_PER_SECOND))
        self._count(self._meter.usage if self._meter is not None else self._estimate(most))

    def _estimate(self, output: int) -> Usage:
        tokens = ModelUsage(len(self._request.body) // _BYTES_PER_INPUT_TOKEN, output)
        return Usage({self._request.model or "unknown": tokens})

    def _count(self, usage: Usage) -> None:
        if self in self._traffic.answers:
            self._traffic.answers.discard(self)
            if usage.models:
                self._traffic.counted(usage)


class ModelSocket:
    """Forwards to the API in an environment, with the environment's credentials."""

    def __init__(
        self,
        environment: Mapping[str, str],
        owner: str = "a session",
        access: ModelAccess = NOTHING_MORE,
        login: Path | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owner` identifies the requests' owner in the log. `login` is Claude Code's login file, used if the
        environment has no credentials."""
        self.traffic = SocketTraffic()
        self._log = FoldedLog(log, owner)
        self._access = access
        self._clock = clock
        self._endpoint = urlsplit(environment.get("ANTHROPIC_BASE_URL") or _ENDPOINT)
        self._environment = {name: environment[name] for name in _CREDENTIALS if environment.get(name)}
        self._login = login
        # A header from the operator takes precedence over the password in the address.
        self._added = {**_basic(self._endpoint), **_custom_headers(environment.get(_HEADERS, ""))}
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._held = 0
        """Bytes of requests that are being read."""
        self._checking = asyncio.Lock()

    def replaced(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables for Claude Code: the socket instead of the address, placeholders instead of credentials, and
        none of the operator's headers. Blocks on the disk."""
        kept = {name: value for name, value in variables.items() if name != _HEADERS}
        inside = self._endpoint._replace(scheme="http", netloc=self._endpoint.netloc.rpartition("@")[2]).geturl()
        names = [*self._environment] or ([_LOGIN] if self._login is not None and self._login.is_file() else [])
        placeholders = {name: _placeholder(name) for name in names}
        return {**kept, **placeholders, "ANTHROPIC_BASE_URL": inside, "ANTHROPIC_UNIX_SOCKET": INSIDE}

    def _secrets(self) -> dict[str, str]:
        """The credentials by placeholder. A login is read for every request, because Claude Code renews it. Raises
        RequestNotAllowed if it has expired. Blocks on the disk."""
        if self._environment or self._login is None:
            return {_placeholder(name): value for name, value in self._environment.items()}
        token = read_login(self._login, time.time())
        return {_placeholder(_LOGIN): token} if token is not None else {}

    async def open(self, directory: Path) -> Path:
        """Listens in this directory until `close`; returns the socket's path. Raises OSError."""
        if self._endpoint.scheme == "https":
            self._tls = await asyncio.to_thread(ssl.create_default_context)  # reads all certificates of the system
        listening = socket.socket(socket.AF_UNIX)
        try:
            bind_below(listening, directory, "model.sock")
            self._server = await asyncio.start_unix_server(self._connected, sock=listening)
        except BaseException:
            listening.close()
            raise
        return directory / "model.sock"

    def close(self) -> None:
        """Accepts no more requests and drops running ones. Their usage is counted on return."""
        if self._server is not None:
            self._server.close()
        for answer in [*self.traffic.answers]:
            answer.abandon()
        for connection in self._connections:
            connection.cancel()
        self._log.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        client = HttpPeer(reader, writer, h11.SERVER)
        try:
            if len(self._connections) > _MAX_CONNECTIONS:  # they use the server's descriptors
                await client.answer(503, f"claude-code-mcp: a session may have at most {_MAX_CONNECTIONS} connections.")
            else:
                await self._forward(client)
        except ClientGone:
            pass  # for example an interrupted turn
        except (OSError, TimeoutError, ExchangeFailed) as error:
            self._log.warning(
                "a request of %s to %s could not be forwarded: %s",
                self._endpoint.hostname,
                error or type(error).__name__,
            )
        except asyncio.CancelledError:
            pass  # the session is gone
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, client: HttpPeer) -> None:
        head = await client.event(_HEAD_SECONDS)
        if not isinstance(head, h11.Request):
            return  # closed without one
        costs = is_billed(head.method, head.target, self._endpoint.path)
        if costs is None:
            await _refuse(client, "not_found_error", _NOT_ALLOWED)
            return
        try:
            headers = allowed_headers(end_to_end(head.headers), self._access)
            request = await self._read(client, head)
            secrets = await asyncio.to_thread(self._secrets)
        except RequestNotAllowed as error:
            self._log.warning("a request of %s to the model was refused: %s", error)
            await _refuse(client, "invalid_request_error", str(error))
            return
        # After the body arrived: other requests may have used the rest of the budget meanwhile. No await from here to
        # the count.
        refusal = self.traffic.why_refused() if costs else None
        if refusal is not None:
            await _refuse(client, "billing_error", refusal)
            return
        count = AnswerCount(self.traffic, request, self._clock) if costs else None
        try:
            await self._exchange(client, self._sent_head(head, headers, secrets, request), request, count)
        finally:
            if count is not None:
                count.finish()

    async def _read(self, client: HttpPeer, head: h11.Request) -> ModelRequest:
        """Reads the body and returns the rebuilt request. Raises RequestNotAllowed, ClientGone."""
        if head.method != b"POST":
            return ModelRequest(b"")
        parts, size = [], 0
        try:
            if client.http.they_are_waiting_for_100_continue:
                await client.send(h11.InformationalResponse(status_code=100, headers=[]))
            while isinstance(event := await client.event(), h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                self._held += len(event.data)
                if size > MAX_BODY or self._held > _MAX_HELD:
                    raise RequestNotAllowed("The body is too large, or the session sends too many requests at once.")
            if not isinstance(event, h11.EndOfMessage):
                raise ClientGone("the client went away")
            # One at a time, with a pause after a long one: a session cannot keep the server busy with parsing.
            async with self._checking:
                begun = time.monotonic()
                try:
                    return await asyncio.to_thread(rebuilt_request, b"".join(parts), self._access)
                finally:
                    seconds = time.monotonic() - begun
                    if seconds > _LONG_CHECK:
                        await asyncio.sleep(min(seconds, 2.0))
        except ExchangeFailed as error:
            raise ClientGone(str(error)) from None
        finally:
            self._held -= size

    def _sent_head(
        self, head: h11.Request, headers: Headers, secrets: Mapping[str, str], request: ModelRequest
    ) -> h11.Request:
        authority = self._endpoint.netloc.rpartition("@")[2]
        sent = forwarded_headers(headers, authority, secrets, self._added)
        path, _, query = head.target.partition(b"?")
        if head.method == b"POST":
            sent += [(b"Content-Type", b"application/json"), (b"Content-Length", b"%d" % len(request.body))]
        target = path + (b"?beta=true" if b"beta=true" in query.split(b"&") else b"")
        return h11.Request(method=head.method, target=target, headers=sent)

    async def _exchange(
        self, client: HttpPeer, head: h11.Request, request: ModelRequest, count: AnswerCount | None
    ) -> None:
        """Sends a request and forwards the answer. One with a cost is read to its end even if the client
        disconnected."""
        leaving = asyncio.ensure_future(_until_closed(client.reader))
        if count is not None:
            self.traffic.open_requests += 1
            leaving.add_done_callback(lambda _: self._request_closed())
        writer: asyncio.StreamWriter | None = None
        try:
            port = self._endpoint.port or (443 if self._tls is not None else 80)
            # One connection for each request: a shared connection could deliver an answer to the wrong request.
            connecting = asyncio.open_connection(self._endpoint.hostname, port, ssl=self._tls)
            reader, opened = await asyncio.wait_for(connecting, _CONNECT_SECONDS)
            writer, remote = opened, HttpPeer(reader, opened, h11.CLIENT)
            await remote.send(head)
            if request.body:
                await remote.send(h11.Data(data=request.body))
            await remote.send(h11.EndOfMessage())
            try:
                await _pass_answer(client, remote, count)
            except ExchangeFailed:
                if count is not None and leaving.done():  # the client will not retry, and the API may have answered
                    count.abandon()
                raise
        finally:
            leaving.cancel()
            if writer is not None:
                writer.close()

    def _request_closed(self) -> None:
        self.traffic.open_requests -= 1


async def _until_closed(reader: asyncio.StreamReader) -> None:
    """Waits until the client closes its end, ignoring its data."""
    with contextlib.suppress(OSError):
        while await reader.read(_PIECE):
            pass


async def _pass_answer(client: HttpPeer, remote: HttpPeer, count: AnswerCount | None) -> None:
    """Forwards one whole answer. Raises ExchangeFailed if the API fails, ClientGone if the client disconnected."""
    gone: ClientGone | None = None
    while True:
        event = await remote.event(_SILENT_SECONDS)
        if isinstance(event, h11.InformationalResponse) and event.status_code != 101:
            continue  # the answer itself follows
        if not isinstance(event, h11.Response | h11.Data | h11.EndOfMessage):
            raise ExchangeFailed("it closed the connection without an answer")
        sent: h11.Event = event
        if isinstance(event, h11.Response):
            headers = [*end_to_end(event.headers), (b"Connection", b"close")]
            sent = h11.Response(status_code=event.status_code, reason=event.reason, headers=headers)
        if count is not None:
            _count(count, event)
        if gone is None:
            try:
                await client.send(sent)
            except ExchangeFailed as error:
                gone = ClientGone(str(error))
        if gone is not None and (count is None or count.is_complete):
            raise gone
        if isinstance(event, h11.EndOfMessage):
            return


def _count(count: AnswerCount, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
    if isinstance(event, h11.Response):
        count.begin(event)
    elif isinstance(event, h11.Data):
        count.feed(bytes(event.data))
    else:
        count.end()


def is_billed(method: bytes, target: bytes, base: str = "") -> bool | None:
    """Whether a request has a cost, which its answer reports; None for a request that must not be sent. Only listed
    requests are sent, because the key goes with them. `base` is the path of the API's address."""
    path = target.partition(b"?")[0].decode("latin-1")
    base = base.rstrip("/")
    if method == b"POST":
        posted = path.removeprefix(f"{base}/v1/") if path.startswith(f"{base}/v1/") else ""
        return True if posted == _SPENDING else False if posted in _FREE else None
    if method in (b"GET", b"HEAD") and path.startswith(base):
        below = path.removeprefix(base)
        return False if below in ("", "/") or _MODELS.fullmatch(below) else None
    return None


_NOT_ALLOWED = "This request is not forwarded from a sandbox: only messages and token counts are."


async def _refuse(client: HttpPeer, kind: str, reason: str) -> None:
    """Answers in the API's format, in a way that Claude Code shows and does not retry; then reads the rest of the
    request, because a client that is still sending would see a broken connection."""
    body = json.dumps({"type": "error", "error": {"type": kind, "message": reason}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Connection", "close")]
    for event in (
        h11.Response(status_code=400, reason=b"Bad Request", headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    ):
        await client.send(event)
    client.writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_SECONDS):
            while await client.reader.read(_PIECE):
                pass


def forwarded_headers(
    headers: Headers, authority: str, secrets: Mapping[str, str], added: Mapping[str, str] | None = None
) -> Headers:
    """The headers with credentials instead of placeholders, asking for an uncompressed answer, because it is read on
    its way, and to close the connection. With credentials, the session cannot send its own: another key would use
    another account. `added` headers replace the request's; an authorization only if no credential provides one."""
    own = {b"host": (b"Host", authority.encode()), b"accept-encoding": (b"Accept-Encoding", b"identity")}
    own |= {name.lower().encode(): (name.encode(), value.encode()) for name, value in (added or {}).items()}
    headers = [(name, _with_secret(name, value, secrets)) for name, value in headers]
    if secrets:
        headers = [
            (name, value) for name, value in headers if name not in CREDENTIAL_HEADERS or _is_secret(value, secrets)
        ]
    if any(name == b"authorization" and _is_secret(value, secrets) for name, value in headers):
        own.pop(b"authorization", None)
    kept = [(name, value) for name, value in headers if name not in own]
    return [*own.values(), *kept, (b"Connection", b"close")]


def _is_secret(value: bytes, secrets: Mapping[str, str]) -> bool:
    return value.removeprefix(b"Bearer ") in {secret.encode() for secret in secrets.values()}


def read_login(file: Path, now: float) -> str | None:
    """The access token in a login file; None if it has none. Raises RequestNotAllowed if it has expired."""
    try:
        login = json.loads(read_regular(file, _MAX_LOGIN))["claudeAiOauth"]
        token, expires = login["accessToken"], login.get("expiresAt")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(expires, int | float) and expires / 1000 <= now:
        raise RequestNotAllowed(
            "The login of this server has expired. To renew it, its user starts `claude` once outside a sandbox, or "
            "sets ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN (`claude setup-token`)."
        )
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else None


def _custom_headers(text: str) -> dict[str, str]:
    """The headers in Claude Code's notation, one per line. Invalid lines are skipped, as there."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {
        name.strip(): value.strip() for name, colon, value in pairs if colon and _HEADER_NAME.fullmatch(name.strip())
    }


def _basic(address: SplitResult) -> dict[str, str]:
    """The Authorization header for a user name and password in an address."""
    if address.username is None:
        return {}
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _with_secret(name: bytes, value: bytes, secrets: Mapping[str, str]) -> bytes:
    """The credential, if the placeholder was the complete value of a header for one."""
    for placeholder, secret in secrets.items():
        if name == b"x-api-key" and value == placeholder.encode():
            return secret.encode()
        if name == b"authorization" and value == b"Bearer " + placeholder.encode():
            return b"Bearer " + secret.encode()
    return value


def _placeholder(name: str) -> str:
    return f"sk-ant-placeholder-{name.lower().replace('_', '-')}"
