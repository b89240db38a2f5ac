"""Checks URLs chosen by others before this server connects to them: they must not lead to hosts that only this server
can reach.

The name is looked up once and the connection goes to exactly the checked address, so that the name cannot resolve
differently between the check and the connection. Lookups use separate threads, so that an unreachable name server
delays nothing else.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import SplitResult, urlsplit

from ..core.errors import InvalidArgument
from ..core.model.network import is_public, read_address

MAX_URL_LENGTH = 2000
_lookups = ThreadPoolExecutor(2, "url-lookup")


class NotPublic(Exception):
    """A URL leads to a network that is not public."""


def check_url(url: str, *, private: bool) -> SplitResult:
    """The parts of an address. InvalidArgument if it is not valid or, without `private`, is not encrypted."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or len(url) > MAX_URL_LENGTH or not url.isascii() or not url.isprintable() or " " in url:
        raise InvalidArgument("url: must be an http or https address.", field="url")
    if parts.username is not None or parts.password is not None:
        raise InvalidArgument("url: must not contain a user name or password; pass a token.", field="url")
    if not private and parts.scheme != "https":
        raise InvalidArgument("url: must be an https address.", field="url")
    return parts


async def looked_up(parts: SplitResult, private: bool) -> str:
    """Resolve a host name to the address to connect to. NotPublic if any of its addresses is not public, unless
    `private` ones are allowed; OSError if it does not resolve."""
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    addresses = [str(entry[4][0]) for entry in found]
    read = [read_address(text) for text in addresses]
    # All of them: a private address among public ones may be an attempt to reach the internal network.
    if not private and not all(address is not None and is_public(address) for address in read):
        raise NotPublic("its address is not public")
    # Exactly the checked address: a second lookup could resolve differently.
    return addresses[0]
