"""Sends a request to an address that somebody else has chosen, without reaching what only this server can reach.

The name is looked up once and the connection goes to the very address that was checked, so that the name cannot lead
elsewhere between the check and the connection. No redirect is followed, no proxy of the environment is used, and of the
answer only the head is read. Lookups have threads of their own: a dead name server delays nothing else.
"""

import asyncio
import functools
import socket
import ssl
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import httpx2

from ...core.errors import InvalidArgument
from ...core.model.network import is_public, read_address

_TIMEOUT = 15.0
MAX_URL_LENGTH = 2000
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
    """The parts of a receiver's address. InvalidArgument if it is not valid or, without `private`, is not encrypted."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument("url: must be an http or https address.", field="url")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("url: must have no name and password in it; give a token.", field="url")
    if not private and parts.scheme != "https":
        raise InvalidArgument("url: must be an https address.", field="url")
    return parts


async def looked_up(parts: SplitResult, private: bool) -> str:
    """The address that the name of a host leads to, to be connected to as it is. SendFailed if any that it leads to is
    not public, unless `private` ones are allowed; OSError if it leads nowhere."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = [str(entry[4][0]) for entry in found]
    read = [read_address(text) for text in addresses]
    # All of them: a private address among public ones may be an attempt to reach what is behind this server.
    if not private and not all(address is not None and is_public(address) for address in read):
        raise SendFailed("its address is not public")
    # The very address that was checked: a second lookup of the name could lead elsewhere.
    return addresses[0]


async def post(
    url: str, headers: Mapping[str, str], body: bytes, *, private: bool, timeout: float = _TIMEOUT
) -> PushReply:
    """Sends a request. SendFailed if no answer comes in time, or if the address is not public and `private` is not
    allowed; InvalidArgument if the address is not valid."""
    parts = check_url(url, private=private)
    try:
        async with asyncio.timeout(timeout):
            address = await looked_up(parts, private)
            request = httpx2.Request(
                "POST",
                httpx2.URL(url).copy_with(host=address),
                headers={"Host": parts.netloc, "User-Agent": "claude-code-mcp", "Connection": "close", **headers},
                content=body,
                # The certificate must be that of the name, though the connection goes to the address.
                extensions={"sni_hostname": parts.hostname},
            )
            # A bare transport: a client would log the address, which is a secret, and follow the environment's proxies.
            # In a thread: the first time it reads every certificate that this machine trusts.
            async with await asyncio.to_thread(_transport) as transport:
                response = await transport.handle_async_request(request)
                await response.aclose()
    except TimeoutError:
        raise SendFailed("it did not answer in time") from None
    except (OSError, ValueError, httpx2.HTTPError, httpx2.InvalidURL) as error:
        cause: BaseException = error
        while (earlier := cause.__cause__ or cause.__context__) is not None:
            cause = earlier  # the first one says what was wrong: a connection was refused, a certificate is not valid
        raise SendFailed(str(cause) or type(cause).__name__) from None
    wait = response.headers.get("retry-after", "")
    seconds = float(wait) if wait.isascii() and wait.isdigit() and len(wait) < 8 else None
    return PushReply(response.status_code, seconds)


def _transport() -> httpx2.AsyncHTTPTransport:
    return httpx2.AsyncHTTPTransport(verify=_trust(), trust_env=False)


@functools.cache
def _trust() -> ssl.SSLContext:
    """What the certificates of receivers are checked by, read once. Blocks on the disk."""
    return ssl.create_default_context()
