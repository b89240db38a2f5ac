"""One request to a receiver: to an address that was looked up and checked, within a time, without redirects or proxies.

The name is looked up once and the connection goes to that very address, so that it cannot lead elsewhere between the
check and the act. Lookups have threads of their own: a name server that is dead keeps nobody else waiting.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from ...errors import InvalidArgument
from ...model.addresses import is_public, read_address

_TIMEOUT = 15.0
_LONGEST_HEAD = 16 << 10
_LONGEST_URL = 2000
_lookups = ThreadPoolExecutor(2, "push-lookup")


class SendFailed(Exception):
    """The request did not get an answer; the text says why."""


@dataclass(frozen=True, slots=True)
class PushReply:
    """The answer of a receiver."""

    status: int
    retry_after: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


def check_url(url: str, *, private: bool) -> SplitResult:
    """The parts of a receiver's address. InvalidArgument if it is none or, without `private`, is not encrypted."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or len(url) > _LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument("url: must be an http or https address.", field="url")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("url: must have no name and password in it; give a token.", field="url")
    if not private and parts.scheme != "https":
        raise InvalidArgument("url: must be an https address.", field="url")
    return parts


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, private: bool, timeout: float = _TIMEOUT
) -> PushReply:
    """Sends a request. SendFailed if no answer comes in time, or if the address is not public and `private` is not
    allowed; InvalidArgument if the address is none at all."""
    parts = check_url(url, private=private)
    try:
        async with asyncio.timeout(timeout):
            address = await _looked_up(parts, private)
            return await _exchange(parts, address, headers, body)
    except TimeoutError:
        raise SendFailed("it did not answer in time") from None
    except (OSError, ssl.SSLError, EOFError, asyncio.LimitOverrunError, ValueError) as error:
        raise SendFailed(str(error) or type(error).__name__) from None


async def _looked_up(parts: SplitResult, private: bool) -> str:
    host, port = parts.hostname or "", _port(parts)
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = [str(entry[4][0]) for entry in found]
    read = [read_address(text) for text in addresses]
    if not private and not all(address is not None and is_public(address) for address in read):
        raise SendFailed("its address is not public")
    return addresses[0]


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


async def _exchange(parts: SplitResult, address: str, headers: Mapping[str, str], body: bytes) -> PushReply:
    context = ssl.create_default_context() if parts.scheme == "https" else None
    name = parts.hostname if context is not None else None
    reader, writer = await asyncio.open_connection(
        address, _port(parts), ssl=context, server_hostname=name, limit=_LONGEST_HEAD
    )
    try:
        writer.write(_request(parts, headers, body))
        await writer.drain()
        return _reply(await reader.readuntil(b"\r\n\r\n"))
    finally:
        writer.close()


def _request(parts: SplitResult, headers: Mapping[str, str], body: bytes) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.netloc.rpartition("@")[2]
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header has a line break in it")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def _reply(head: bytes) -> PushReply:
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise ValueError("it does not speak HTTP")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    wait = fields.get("retry-after", "")
    return PushReply(int(status[:3]), float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 8 else None)
