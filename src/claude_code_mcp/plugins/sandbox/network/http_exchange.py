"""One request and its answer through the proxy, with added credentials.

A credential is a value from the server's environment or a private file, for one host and one header. A file is read for
every use, so that a new value applies at once. Bytes that were not parsed are never forwarded: message framing is
decided here, once for both sides, so that they cannot disagree about the end of a request. Hop-by-hop headers are not
forwarded.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11

from ....core.errors import InvalidArgument
from ....core.model.network import CredentialRule, host_name, is_header_value
from ....core.private_files import read_secret

_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Credential:
    """A rule with its value."""

    rule: CredentialRule
    value: str = field(repr=False)
    secret: str = field(repr=False)
    """The value without its prefix."""


def read_credential(rule: CredentialRule, environment: Mapping[str, str]) -> Credential:
    """Reads the value for a rule. Raises InvalidArgument, whose text never contains the value. Blocks on the disk."""
    kind, _, name = rule.source.partition(":")
    secret = environment.get(name, "") if kind == "env" else _read_file(Path(name).expanduser())
    secret = secret.strip()
    if not secret or not is_header_value(secret):
        problem = "is not set" if not secret else "has characters that are not allowed in a header"
        raise InvalidArgument(f"The credential for {rule.rule.text} ({rule.source}) {problem}.", field="credentials")
    prefix = rule.prefix
    if prefix is None:
        prefix = "Bearer " if rule.header.lower() == "authorization" and " " not in secret else ""
    return Credential(rule, prefix + secret, secret)


def _read_file(path: Path) -> str:
    try:
        return read_secret(path, _MAX_BYTES)
    except OSError as error:
        reason = error.strerror or error
        raise InvalidArgument(f"The credential in {path} cannot be used: {reason}.", field="credentials") from None


def same_host(text: str, host: str, port: int, usual: int) -> bool:
    """Whether a Host header names this host and port; `usual` is the default port."""
    name, colon, written = text.rpartition(":")
    # The last colon may be part of an IPv6 address, which is in brackets.
    if not colon or written.endswith("]"):
        name, written = text, str(usual)
    try:
        return host_name(name) == host and written == str(port)
    except ValueError:
        return False


MAX_HEAD = 64 << 10
PIECE = 64 << 10
IDLE = 300.0
"""Seconds without a byte after which a connection is closed."""
_ONE_HOP = frozenset(
    {b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"http2-settings", b"expect", b"proxy-connection"}
)
_SENSITIVE_METHODS = frozenset({b"TRACE", b"TRACK"})

Headers = list[tuple[bytes, bytes]]


class ExchangeFailed(Exception):
    """The other side violated the protocol or was silent for too long; the text says which."""


class ClientGone(ExchangeFailed):
    """The client disconnected during its request."""


class HttpPeer:
    """One side of an exchange, over a stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, role: Any) -> None:
        """`role` is ours: SERVER toward a client."""
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)

    async def event(self, seconds: float = IDLE) -> "h11.Event | type[h11.PAUSED]":
        """The next event. Raises ExchangeFailed for a timeout or invalid HTTP."""
        try:
            while True:
                event = self.http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # type: ignore[return-value]  # NEED_DATA is excluded
                async with asyncio.timeout(seconds):
                    data = await self.reader.read(PIECE)
                self.http.receive_data(data)
        except h11.RemoteProtocolError as error:
            raise ExchangeFailed(f"it does not speak HTTP: {error}") from None
        except TimeoutError:
            raise ExchangeFailed("it sent nothing for too long") from None
        except OSError as error:
            raise ExchangeFailed(f"the connection broke: {error}") from None

    async def send(self, event: h11.Event) -> None:
        """Sends an event. Raises ExchangeFailed if the other side does not read it in time."""
        try:
            data = self.http.send(event)
            if data:
                self.writer.write(data)
                async with asyncio.timeout(IDLE):
                    await self.writer.drain()
        except h11.LocalProtocolError as error:
            raise ExchangeFailed(f"it cannot be written: {error}") from None
        except TimeoutError:
            raise ExchangeFailed("it read nothing for too long") from None
        except OSError as error:
            raise ExchangeFailed(f"the connection broke: {error}") from None

    async def answer(self, status: int, text: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        """Sends a complete answer of ours, the last one of its connection. Does nothing if one has begun."""
        # Within an answer, the client would take this text for a part of that answer.
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"{text}\n".encode()
        fields = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))]
        response = h11.Response(status_code=status, headers=[*fields, *headers, ("Connection", "close")])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            await self.send(event)


def forwarded(
    request: h11.Request, target: bytes, authority: str, credential: Credential | None, *, last: bool
) -> h11.Request:
    """The request for the server; a credential replaces every header of that name."""
    headers = [(b"Host", authority.encode("ascii")), *end_to_end(request.headers)]
    if credential is not None:
        name = credential.rule.header.lower().encode()
        # In a compressed answer, an echoed credential could not be recognized.
        headers = [(key, value) for key, value in headers if key.lower() not in (name, b"accept-encoding")]
        headers += [(credential.rule.header.encode(), credential.value.encode()), (b"Accept-Encoding", b"identity")]
    if last:
        headers.append((b"Connection", b"close"))
    return h11.Request(method=request.method, target=target, headers=headers)


def is_reflecting(method: bytes) -> bool:
    """Whether a method asks a server to echo the request."""
    return method.upper() in _SENSITIVE_METHODS


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers to forward. Of two that define the message length, the one that h11 used."""
    fields = [(name, value) for name, value in headers]
    named = {
        part.strip().lower() for name, value in fields if name.lower() == b"connection" for part in value.split(b",")
    }
    # A client must not be able to have the headers dropped that define where a message ends.
    dropped = (_ONE_HOP | named) - {b"content-length", b"transfer-encoding"} | {b"host"}
    # With both headers, a server that uses the length would take the rest of the body for another request.
    if any(name.lower() == b"transfer-encoding" for name, _ in fields):
        dropped |= {b"content-length"}
    return [
        (name, value)
        for name, value in fields
        if name.lower() not in dropped and not name.lower().startswith(b"proxy-")
    ]


async def exchange(
    client: HttpPeer, server: HttpPeer, request: h11.Request, credential: Credential | None, *, last: bool
) -> bool:
    """Sends a request whose head was read and forwards the answer; returns whether both sides can continue with another
    request. If they cannot, as for the `last` one, the answer says so, so that the client does not send the next
    request into a closing connection. Body and answer are forwarded concurrently, because a server may answer before it
    has read everything. Raises ExchangeFailed if either side fails."""
    await server.send(request)
    sending = asyncio.ensure_future(send_body(client, server))
    answering = asyncio.ensure_future(pass_answer(client, server, SecretMask(credential), last=last))
    try:
        # A client that disconnects ends the exchange at once; otherwise the proxy would wait for a slow server in vain.
        await asyncio.wait([sending, answering], return_when=asyncio.FIRST_COMPLETED)
        if not sending.done() or not isinstance(sending.exception(), ClientGone):
            await asyncio.wait([answering])  # a server that stopped reading may still have answered
    finally:
        for task in (sending, answering):
            task.cancel()
        await asyncio.wait([sending, answering])
    if not sending.cancelled() and isinstance(sending.exception(), ClientGone):
        raise ClientGone("the client went away")
    answering.result()
    # An incomplete body leaves the connection in the middle of a message: no other request can follow on it.
    whole = not sending.cancelled() and sending.result()
    return bool(whole and client.http.our_state is h11.DONE and server.http.our_state is h11.DONE)


async def send_body(client: HttpPeer, server: HttpPeer) -> bool:
    """Forwards the body; returns whether the server accepted all of it. Raises ClientGone if it was incomplete."""
    while True:
        try:
            if client.http.they_are_waiting_for_100_continue:
                await client.send(h11.InformationalResponse(status_code=100, headers=[]))
            event = await client.event()
        except ExchangeFailed as error:
            raise ClientGone(str(error)) from None
        if not isinstance(event, h11.Data | h11.EndOfMessage):
            raise ClientGone("the client went away")
        try:
            await server.send(h11.Data(data=event.data) if isinstance(event, h11.Data) else h11.EndOfMessage())
        except ExchangeFailed:
            return False
        if isinstance(event, h11.EndOfMessage):
            return True


async def pass_answer(client: HttpPeer, server: HttpPeer, mask: "SecretMask", *, last: bool) -> None:
    """Forwards one whole answer. Raises ExchangeFailed if either side fails or the server is silent for too long."""
    while True:
        event = await server.event()
        if isinstance(event, h11.InformationalResponse):  # the answer itself follows
            if event.status_code == 101:
                raise ExchangeFailed("it switched protocols without being asked")
        elif isinstance(event, h11.Response):
            headers = [(name, mask.text(value)) for name, value in end_to_end(event.headers)]
            if last or not _keeps_open(event):
                headers.append((b"Connection", b"close"))
            await client.send(h11.Response(status_code=event.status_code, reason=event.reason, headers=headers))
        elif isinstance(event, h11.Data):
            data = mask.feed(bytes(event.data))
            if data:
                await client.send(h11.Data(data=data))
        elif isinstance(event, h11.EndOfMessage):
            rest = mask.end()
            if rest:
                await client.send(h11.Data(data=rest))
            await client.send(h11.EndOfMessage())
            return
        else:
            raise ExchangeFailed("it closed the connection without an answer")


def _keeps_open(answer: h11.Response) -> bool:
    """Whether a server accepts another request after this answer."""
    fields = [(name.lower(), value.lower()) for name, value in answer.headers]
    closes = any(b"close" in value for name, value in fields if name == b"connection")
    framed = any(name in (b"content-length", b"transfer-encoding") for name, _ in fields)
    return answer.http_version >= b"1.1" and not closes and (framed or answer.status_code in (204, 304))


class SecretMask:
    """Masks a credential that a server echoes literally, also across two pieces. A last line of defense: a server may
    echo it in another form."""

    def __init__(self, credential: Credential | None) -> None:
        self._secret = credential.secret.encode() if credential is not None else b""
        self._held = b""

    def text(self, data: bytes) -> bytes:
        return data.replace(self._secret, b"*" * len(self._secret)) if self._secret else data

    def feed(self, data: bytes) -> bytes:
        """The data that can be forwarded now; a possible beginning of the secret is held back."""
        if not self._secret:
            return data
        data = self.text(self._held + data)
        # Not a fixed number of bytes: text that cannot be the secret reaches the client without delay, which streaming
        # requires.
        longest = min(len(self._secret) - 1, len(data))
        keep = next((length for length in range(longest, 0, -1) if data.endswith(self._secret[:length])), 0)
        self._held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def end(self) -> bytes:
        held, self._held = self._held, b""
        return held


def readable_target(target: bytes) -> str | None:
    """The request target as text, if it consists of visible ASCII characters; None otherwise."""
    return target.decode("ascii") if re.fullmatch(rb"[\x21-\x7e]+", target) else None
