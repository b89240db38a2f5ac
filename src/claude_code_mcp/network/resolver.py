"""The address of a host, looked up once and checked: the connection goes to that very address.

Names are looked up by the server, outside of the sandbox, in threads of their own: a name server that is dead keeps
nobody else waiting.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..model.addresses import Address, is_public, read_address
from ..model.host_rules import HostRule, may_lead_to

_lookups = ThreadPoolExecutor(8, "proxy-lookup")
_MOST_ADDRESSES = 8

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    """A host leads to no address that may be connected to; the text says why."""


async def look_up(host: str, port: int) -> Sequence[str]:
    """The addresses of a host, as texts. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [str(entry[4][0]) for entry in found]


async def checked_addresses(
    rules: Sequence[HostRule], rule: HostRule, host: str, port: int, lookup: Lookup = look_up
) -> list[Address]:
    """The addresses that a host may be connected at: public ones, and others that the list names. AddressRefused if
    there are none; OSError if the host is not known."""
    literal = read_address(host)
    texts = [host] if literal is not None else await lookup(host, port)
    addresses = [address for address in map(read_address, texts) if address is not None]
    allowed = [address for address in addresses if is_public(address) or may_lead_to(rules, rule, address, port)]
    if not allowed:
        raise AddressRefused("it leads to no public address, and the list does not name the one that it leads to")
    return list(dict.fromkeys(allowed))[:_MOST_ADDRESSES]
