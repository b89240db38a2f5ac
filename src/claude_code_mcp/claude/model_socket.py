"""The way from a sandbox to the model and to nothing else, with the tokens counted that pass.

An answer says what it used in objects called `usage`: one when it is not streamed; when it is, one at its beginning and
one at its end, which repeats or raises the counts. Of each count the largest is taken, so that nothing in between can
lower it. Text of the model cannot be mistaken for such an object: its quotes are escaped.

The credentials stay here. Claude Code is given placeholders, and the forwarder puts the real ones in their place, in
the head of each request and only where the placeholder was the whole of it. Headers of the operator's own
(`ANTHROPIC_CUSTOM_HEADERS`) and a name with a password in the address are put in here too, and Claude Code is not told
of them. So a session can use the API as long as it runs, but cannot learn the key.

Every connection carries one request. It is read and written anew by h11, and so is its answer: nothing that was not
understood is passed on, so that no second request can hide in a first one. A session has a limited number of
connections, each of which has to come to its request.

What the API says that each answer used is counted here (`ModelTraffic`), whoever in the sandbox has asked: a report of
Claude Code is not needed for it. Other requests than those that Claude Code needs, such as a batch, are refused.
"""

import asyncio
import base64
import contextlib
import json
import logging
import re
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

import h11

from ..model.outcome import ModelUsage, Usage, read_number
from ..network.http_exchange import ClientGone, ExchangeFailed, HttpPeer, end_to_end, pass_answer, send_body
from ..private_files import bind_below

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_LONGEST_USAGE = 4096
_OVERLAP = 256
"""Bytes that are looked at again with the next ones, so that nothing is missed between two pieces."""
_LAST_EVENT = re.compile(rb'\n(?:event: ?message_stop\r?\n|data: ?\{"type": ?"message_stop")')
"""Only at the beginning of a line of the stream: what a model or a search has written may have the word in it too, but
no line end, which JSON has as an escape."""
_BYTES_PER_TOKEN = 30
"""Of a stream that was cut off before it said what its output was: most of it is the wrapping of the events."""
_read_value = json.JSONDecoder().raw_decode


class ResponseMeter:
    """Fed the body of an answer, as it comes over the line and without what frames it."""

    def __init__(self, status: int) -> None:
        self._succeeded = status == 200
        self._kept = b""
        self._model = b""
        self._used = ModelUsage()
        self._size = 0
        self.complete = False
        """Whether the whole answer has passed; the connection may stay open behind it."""

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
        """Takes every whole usage in the text; returns what is to be looked at again."""
        at = 0
        while (found := _USAGE.search(text, at)) is not None:
            start = found.end() - 1
            try:
                value, length = _read_value(text[start : start + _LONGEST_USAGE].decode("latin-1"))
            except (ValueError, RecursionError):
                if len(text) - start < _LONGEST_USAGE:
                    return text[found.start() :]  # the rest of it is still to come
                at = found.end()
                continue
            self._used |= _tokens(value)
            at = start + length
        return text[max(at, len(text) - _OVERLAP) :]

    @property
    def usage(self) -> Usage:
        """What the answer has used so far; nothing if it used none. Of one that ended in the middle, the output is
        estimated from its size."""
        if self._used == ModelUsage():
            return Usage()
        used = self._used if self.complete else self._used | ModelUsage(output_tokens=self._size // _BYTES_PER_TOKEN)
        return Usage({self._model.decode("ascii", "replace") or "unknown": used})


def _tokens(value: object) -> ModelUsage:
    if not isinstance(value, dict):
        return ModelUsage()
    return ModelUsage(
        int(read_number(value, "input_tokens")),
        int(read_number(value, "output_tokens")),
        int(read_number(value, "cache_read_input_tokens")),
        int(read_number(value, "cache_creation_input_tokens")),
    )


# -- model socket -----------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

INSIDE = "/run/model.sock"
"""Where a sandbox finds the socket."""
_ENDPOINT = "https://api.anthropic.com"
_CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
"""Lines of `Name: value` that Claude Code would send with every request."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEAD_SECONDS = 30.0
_MOST_CONNECTIONS = 64
"""Requests at once, with those that have not come yet."""
_SILENT_SECONDS = 1200.0
"""How long the model may think without a word."""
_CONNECT_SECONDS = 30.0
_REFUSED_SECONDS = 10.0
"""How long a client that was refused may go on sending."""
_PIECE = 64 << 10
_SPENDING = "messages"
_FREE = frozenset({"messages/count_tokens"})
"""What Claude Code posts to the API below `/v1/`: the first is counted, the others cost nothing."""
_MODELS = re.compile(r"/v1/models(?:/[\w.:-]{1,200})?", re.ASCII)


class ModelTraffic:
    """What went over one socket. Whoever has the process sets the two calls; they come from the event loop."""

    def __init__(self) -> None:
        self.open_requests = 0
        """Requests to the model that have no answer yet, or not all of it."""
        self.meters: set[ResponseMeter] = set()
        """Those of answers that have begun and not ended."""
        self.why_refused: Callable[[], str | None] = lambda: None
        """Asked before a request that costs something; a reason keeps it from being sent."""
        self.counted: Callable[[Usage], None] = lambda _: None
        """Called with what an answer has used, when all of it has passed, or no more will."""

    @property
    def unfinished(self) -> Usage:
        """What answers have used so far that have not ended."""
        return sum((meter.usage for meter in self.meters), Usage())

    def finish(self, meter: ResponseMeter) -> None:
        """To be called when all of an answer has passed, or no more of it will. Counts what it has used; a second call
        for the same answer does nothing."""
        if meter in self.meters:
            self.meters.discard(meter)
            if meter.usage.models:
                self.counted(meter.usage)


class ModelSocket:
    """Forwards to the API that an environment names, with the credentials that it has."""

    def __init__(self, environment: Mapping[str, str], owner: str = "a session") -> None:
        """`owner` says in the log whose requests it forwards."""
        self.traffic = ModelTraffic()
        self._owner = owner
        self._endpoint = urlsplit(environment.get("ANTHROPIC_BASE_URL") or _ENDPOINT)
        self._secrets = {_placeholder(name): environment[name] for name in _CREDENTIALS if environment.get(name)}
        self._names = frozenset(name for name in _CREDENTIALS if environment.get(name))
        # A header of the operator's own stands above the password in the address.
        self._added = {**_basic(self._endpoint), **_custom_headers(environment.get(_HEADERS, ""))}
        self._tls: ssl.SSLContext | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def replaced(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables that Claude Code is started with: the way to the socket in place of the address, placeholders
        in place of the credentials, and no header of the operator's."""
        kept = {name: value for name, value in variables.items() if name != _HEADERS}
        inside = self._endpoint._replace(scheme="http", netloc=self._endpoint.netloc.rpartition("@")[2]).geturl()
        placeholders = {name: _placeholder(name) for name in self._names}
        return {**kept, **placeholders, "ANTHROPIC_BASE_URL": inside, "ANTHROPIC_UNIX_SOCKET": INSIDE}

    @property
    def has_credentials(self) -> bool:
        """Whether it puts credentials in, so that Claude Code needs no login of its own."""
        return bool(self._secrets)

    async def open(self, directory: Path) -> Path:
        """Listens in this directory, until `close`; returns the path of the socket. OSError if that is not possible."""
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
        """Takes no more requests, and drops those that run."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        client = HttpPeer(reader, writer, h11.SERVER)
        try:
            if len(self._connections) > _MOST_CONNECTIONS:  # they are descriptors of the server
                await client.answer(
                    503, f"claude-code-mcp: a session may have {_MOST_CONNECTIONS} connections at once."
                )
            else:
                await self._forward(client)
        except ClientGone:
            pass  # a turn that was interrupted, for one
        except (OSError, TimeoutError, ExchangeFailed) as error:
            reason = error or type(error).__name__
            log.warning(
                "a request of %s to %s could not be forwarded: %s", self._owner, self._endpoint.hostname, reason
            )
        except asyncio.CancelledError:
            pass  # the session is gone
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, client: HttpPeer) -> None:
        request = await client.event(_HEAD_SECONDS)
        if not isinstance(request, h11.Request):
            return  # closed without one
        costs = costs_something(request.method, request.target, self._endpoint.path)
        refusal = _NOT_ALLOWED if costs is None else self.traffic.why_refused() if costs else None
        if refusal is not None:
            await _refuse(client, refusal)
            return
        if not costs:
            await self._exchange(client, request, None)
            return
        self.traffic.open_requests += 1
        try:
            await self._exchange(client, request, self.traffic)
        finally:
            self.traffic.open_requests -= 1

    async def _exchange(self, client: HttpPeer, request: h11.Request, traffic: ModelTraffic | None) -> None:
        """Sends a request on and its answer back, until the answer has ended or the client has gone; counts it, if it
        costs."""
        port = self._endpoint.port or (443 if self._tls is not None else 80)
        # One connection for each request: none is shared by two of them, so that an answer cannot reach the wrong one.
        connecting = asyncio.open_connection(self._endpoint.hostname, port, ssl=self._tls)
        remote_reader, remote_writer = await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        remote = HttpPeer(remote_reader, remote_writer, h11.CLIENT)
        try:
            authority = self._endpoint.netloc.rpartition("@")[2]
            await remote.send(forwarded_request(request, authority, self._secrets, self._added))
            metered = _Metered(traffic)
            sending = asyncio.ensure_future(_send_until_gone(client, remote))
            answering = asyncio.ensure_future(pass_answer(client, remote, metered, last=True, seconds=_SILENT_SECONDS))
            try:
                # The client may leave at any time, and what nobody waits for any more is not to cost anything.
                await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, answering):
                    task.cancel()
                await asyncio.wait([sending, answering])
                metered.finish()  # also when the session has hung up in the middle
            # Cancelled means that the client left, which is no failure.
            # Anything else that went wrong is for the caller's log.
            if not answering.cancelled():
                answering.result()
        finally:
            remote_writer.close()


async def _send_until_gone(client: HttpPeer, remote: HttpPeer) -> None:
    """Sends the body, then waits until the client closes its end; one that sends more is not listened to."""
    with contextlib.suppress(ExchangeFailed, OSError):
        await send_body(client, remote)
        while await client.reader.read(_PIECE):
            pass


class _Metered:
    """Counts an answer of the model on its way, before anybody reads it: who does may end the turn with it. Of one that
    costs nothing it counts nothing."""

    def __init__(self, traffic: ModelTraffic | None) -> None:
        self._traffic = traffic
        self._meter: ResponseMeter | None = None
        self._framed = False

    def begin(self, answer: h11.Response) -> None:
        self._framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in answer.headers)
        if self._traffic is not None:
            self._meter = ResponseMeter(answer.status_code)
            self._traffic.meters.add(self._meter)

    def text(self, data: bytes) -> bytes:
        return data

    def feed(self, data: bytes) -> bytes:
        if self._meter is not None:
            self._meter.feed(data)
            if self._meter.complete:  # the session may keep the connection open for as long as it likes
                self.finish()
        return data

    def end(self) -> bytes:
        if self._meter is not None:
            self._meter.complete = self._meter.complete or self._framed  # else it may have been cut off
            self.finish()
        return b""

    def finish(self) -> None:
        """No more of it will pass: what has passed until now was used."""
        if self._meter is not None and self._traffic is not None:
            self._traffic.finish(self._meter)


def costs_something(method: bytes, target: bytes, base: str = "") -> bool | None:
    """Whether a request to the API costs something that its answer tells; None for one that is not sent. Sent is only
    what is listed, since the key goes with it. `base` is the path of the API's address."""
    path = target.partition(b"?")[0].decode("latin-1")
    base = base.rstrip("/")
    if method == b"POST":
        posted = path.removeprefix(f"{base}/v1/") if path.startswith(f"{base}/v1/") else ""
        return True if posted == _SPENDING else False if posted in _FREE else None
    if method in (b"GET", b"HEAD") and path.startswith(base):
        below = path.removeprefix(base)
        return False if below in ("", "/") or _MODELS.fullmatch(below) else None
    return None


_NOT_ALLOWED = "This is not forwarded from a sandbox: only messages are, and the counting of their tokens."


async def _refuse(client: HttpPeer, reason: str) -> None:
    """Answers in a way that Claude Code does not try again, and shows; then takes the rest of the request: a client
    that is still sending would see a broken connection."""
    body = json.dumps({"type": "error", "error": {"type": "billing_error", "message": reason}}).encode()
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


def forwarded_request(
    request: h11.Request, authority: str, secrets: Mapping[str, str], added: Mapping[str, str] | None = None
) -> h11.Request:
    """The request with the credentials in place of their placeholders, the connection to be closed, and the answer to
    come uncompressed: it is read on its way. Headers that are `added` take the place of those that came with the
    request; an authorization only where no credential has one."""
    own = {b"host": (b"Host", authority.encode()), b"accept-encoding": (b"Accept-Encoding", b"identity")}
    own |= {name.lower().encode(): (name.encode(), value.encode()) for name, value in (added or {}).items()}
    headers = [(name, _with_secret(name, value, secrets)) for name, value in end_to_end(request.headers)]
    if any(name == b"authorization" and _is_secret(value, secrets) for name, value in headers):
        own.pop(b"authorization", None)
    kept = [(name, value) for name, value in headers if name not in own]
    headers = [*own.values(), *kept, (b"Connection", b"close")]
    return h11.Request(method=request.method, target=request.target, headers=headers)


def _is_secret(value: bytes, secrets: Mapping[str, str]) -> bool:
    return value.removeprefix(b"Bearer ") in {secret.encode() for secret in secrets.values()}


def _custom_headers(text: str) -> dict[str, str]:
    """The headers in the form that Claude Code reads them: one on each line. What is none is left out, as there."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {
        name.strip(): value.strip() for name, colon, value in pairs if colon and _HEADER_NAME.fullmatch(name.strip())
    }


def _basic(address: SplitResult) -> dict[str, str]:
    """What an address with a name and a password in it says in a header."""
    if address.username is None:
        return {}
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def _with_secret(name: bytes, value: bytes, secrets: Mapping[str, str]) -> bytes:
    """The credential, where a placeholder was the whole of a header that is for one."""
    for placeholder, secret in secrets.items():
        if name == b"x-api-key" and value == placeholder.encode():
            return secret.encode()
        if name == b"authorization" and value == b"Bearer " + placeholder.encode():
            return b"Bearer " + secret.encode()
    return value


def _placeholder(name: str) -> str:
    return f"sk-ant-placeholder-{name.lower().replace('_', '-')}"
