"""The way from a sandbox without network to the model, and to nothing else: a Unix socket that Claude Code speaks HTTP
to, and that this server forwards to the model's API.

The credentials stay here. Claude Code is given placeholders, and the forwarder puts the real ones in their place, in
the head of each request and only where the placeholder was the whole of it. Headers of the operator's own
(`ANTHROPIC_CUSTOM_HEADERS`) and a name with a password in the address are put in here too, and Claude Code is not told
of them. So a session can use the API as long as it runs, but cannot learn the key.

Every connection carries one request: the heads of request and answer say that it is the last one, and the rest is
passed on as it comes. A connection ends when either side closes it.

What the API says that each answer used is counted here (`ModelTraffic`), whoever in the sandbox has asked: a report of
Claude Code is not needed for it. Requests that would spend something in another way, such as a batch, are refused.
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
from functools import partial
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ..model.usage import Usage
from ..private_files import bind_below
from .response_meter import ResponseMeter

log = logging.getLogger(__name__)

INSIDE = "/run/model.sock"
"""Where a sandbox finds the socket."""
_ENDPOINT = "https://api.anthropic.com"
_CREDENTIALS = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
"""Lines of `Name: value` that Claude Code would send with every request."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_LONGEST_HEAD = 64 << 10
_CONNECT_SECONDS = 30.0
_REFUSED_SECONDS = 10.0
"""How long a client that was refused may go on sending."""
_PIECE = 64 << 10
_SPENDING = "messages"
_FREE = frozenset({"messages/count_tokens"})
"""What Claude Code posts to the API below `/v1/`: the first is counted, the others cost nothing."""


def reachable_by_socket(environment: Mapping[str, str]) -> bool:
    """Whether Claude Code speaks to its provider through the socket in this environment."""
    return not any(environment.get(f"CLAUDE_CODE_USE_{cloud}") for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"))


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
        """All of an answer has passed, or no more will; a second call does nothing."""
        if meter in self.meters:
            self.meters.discard(meter)
            if meter.usage.models:
                self.counted(meter.usage)


class ModelSocket:
    """Forwards to the API that an environment names, with the credentials that it has."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.traffic = ModelTraffic()
        self._endpoint = urlsplit(environment.get("ANTHROPIC_BASE_URL") or _ENDPOINT)
        self._secrets = {_placeholder(name): environment[name] for name in _CREDENTIALS if environment.get(name)}
        self._names = frozenset(name for name in _CREDENTIALS if environment.get(name))
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
            self._server = await asyncio.start_unix_server(self._connected, sock=listening, limit=_LONGEST_HEAD)
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
        try:
            await self._forward(reader, writer)
        except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.warning("a request of a session to the model could not be forwarded: %s", error or type(error).__name__)
        except asyncio.CancelledError:
            pass  # the session is gone
        finally:
            self._connections.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        costs = costs_something(head, self._endpoint.path)
        refusal = _NOT_ALLOWED if costs is None else self.traffic.why_refused() if costs else None
        if refusal is not None:
            await _refuse(reader, writer, refusal)
            return
        if not costs:
            await self._exchange(head, reader, writer, None)
            return
        self.traffic.open_requests += 1
        try:
            await self._exchange(head, reader, writer, self.traffic)
        finally:
            self.traffic.open_requests -= 1

    async def _exchange(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        traffic: ModelTraffic | None,
    ) -> None:
        """Sends a request on and its answer back, until either side has closed its end; counts it, if it costs."""
        port = self._endpoint.port or (443 if self._tls is not None else 80)
        connecting = asyncio.open_connection(self._endpoint.hostname, port, ssl=self._tls)
        remote_reader, remote_writer = await asyncio.wait_for(connecting, _CONNECT_SECONDS)
        try:
            remote_writer.write(forwarded_head(head, self._secrets, self._added))
            there, back = _pump(reader, remote_writer), _answer(remote_reader, writer, traffic)
            transfers = [asyncio.ensure_future(there), asyncio.ensure_future(back)]
            try:
                await asyncio.wait(transfers, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for transfer in transfers:
                    transfer.cancel()
                await asyncio.wait(transfers)
        finally:
            remote_writer.close()


async def _answer(remote: asyncio.StreamReader, writer: asyncio.StreamWriter, traffic: ModelTraffic | None) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError):  # it was closed, or is no answer
        head = await remote.readuntil(b"\r\n\r\n")
        writer.write(closing(head))
        if traffic is None:
            await _pump(remote, writer)
            return
        meter = ResponseMeter(head)
        traffic.meters.add(meter)
        try:
            await _pump(remote, writer, partial(_metered, meter, traffic))
        finally:
            # Also when the session has hung up in the middle: what was sent until then was used.
            traffic.finish(meter)


def _metered(meter: ResponseMeter, traffic: ModelTraffic, piece: bytes) -> None:
    meter.feed(piece)
    if meter.complete:  # the session may keep the connection open for as long as it likes
        traffic.finish(meter)


def costs_something(head: bytes, base: str = "") -> bool | None:
    """Whether a request to the API costs something that its answer tells; None for one that might cost something in
    another way and is not sent. `base` is the path of the API's address."""
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    if method in (b"GET", b"HEAD"):
        return False
    plain = "%" not in path and "//" not in path and "\\" not in path and ".." not in path.split("/")
    prefix = f"{base.rstrip('/')}/v1/"
    if not plain or method != b"POST":
        return None
    if not path.startswith(prefix):
        return None if "v1" in path.lower().split("/") else False
    posted = path.removeprefix(prefix)
    return True if posted == _SPENDING else False if posted in _FREE else None


_NOT_ALLOWED = "This is not forwarded from a sandbox: only messages are, and the counting of their tokens."


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, reason: str) -> None:
    """Answers, and takes the rest of the request: a client that is still sending would see a broken connection."""
    writer.write(_refusal(reason))
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSED_SECONDS):
            while await reader.read(_PIECE):
                pass


def _refusal(reason: str) -> bytes:
    """An answer that Claude Code does not try again, and shows."""
    body = json.dumps({"type": "error", "error": {"type": "billing_error", "message": reason}}).encode()
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def forwarded_head(head: bytes, secrets: Mapping[str, str], added: Mapping[str, str] | None = None) -> bytes:
    """The head of a request with the credentials in place of their placeholders, the connection to be closed, and the
    answer to come uncompressed: it is read on its way. Headers that are `added` take the place of those that came with
    the request; an authorization only where no credential has one."""
    first, *lines = closing(head).split(b"\r\n")
    lines = [_with_secret(line, secrets) for line in lines if _name(line) != b"accept-encoding"]
    own = {name.lower().encode(): f"{name}: {value}".encode() for name, value in (added or {}).items()}
    if any(_name(line) == b"authorization" and _is_secret(line, secrets) for line in lines):
        own.pop(b"authorization", None)
    lines = [line for line in lines if _name(line) not in own]
    # The last of ours is no secret: a line that begins with a space would be read as its continuation.
    return b"\r\n".join([first, *own.values(), b"Accept-Encoding: identity", *lines])


def _name(line: bytes) -> bytes:
    return line.partition(b":")[0].strip().lower()


def _is_secret(line: bytes, secrets: Mapping[str, str]) -> bool:
    return line.partition(b":")[2].strip().removeprefix(b"Bearer ") in {secret.encode() for secret in secrets.values()}


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


def closing(head: bytes) -> bytes:
    """The head of a request or an answer that is the last one of its connection."""
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*kept, b"Connection: close", b"", b""])


def _with_secret(line: bytes, secrets: Mapping[str, str]) -> bytes:
    name, _, value = line.partition(b":")
    for placeholder, secret in secrets.items():
        if name.lower() == b"x-api-key" and value.strip() == placeholder.encode():
            return name + b": " + secret.encode()
        if name.lower() == b"authorization" and value.strip() == b"Bearer " + placeholder.encode():
            return name + b": Bearer " + secret.encode()
    return line


def _placeholder(name: str) -> str:
    return f"sk-ant-placeholder-{name.lower().replace('_', '-')}"


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: Callable[[bytes], None] = lambda _: None
) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            passed(piece)  # first: who reads on the other side may end the turn with it
            writer.write(piece)
            await writer.drain()
