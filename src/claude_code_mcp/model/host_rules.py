"""Hosts that a list names, such as `api.github.com`, `*.example.org` or `127.0.0.1:8080`; pure.

One spelling for each host: lower case, no dot at the end, IDNA, IP addresses in their shortest form. `*.example.org` is
every host below `example.org` and not that one itself. Without a port, a rule is for 443 and 80. A rule with an IP
address is for requests that name this address, and for names that lead to it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .addresses import Address, read_address

USUAL_PORTS = (443, 80)
_LONGEST = 253
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_BELOW = "*."


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of a list."""

    host: str
    """In its one spelling; without the `*.` where only hosts below it count."""
    ports: tuple[int, ...] = USUAL_PORTS
    below: bool = False
    text: str = ""
    """As it is written."""

    @property
    def address(self) -> Address | None:
        """The IP address that the rule is for."""
        return None if self.below else read_address(self.host)

    def covers(self, host: str, port: int) -> bool:
        """Whether a host, in its one spelling, and a port are covered."""
        fits = host.endswith(f".{self.host}") if self.below else host == self.host
        return fits and port in self.ports

    def covers_host(self, host: str) -> bool:
        """The same for every port."""
        return any(self.covers(host, port) for port in self.ports)


def parse_host_rule(text: str) -> HostRule:
    """An entry of a list; ValueError says what is wrong with it."""
    host, port = split_port(text)
    below = host.startswith(_BELOW)
    name = host_name(host.removeprefix(_BELOW) if below else host)
    if below and read_address(name) is not None:
        raise ValueError(f"{text!r}: nothing lies below an address")
    return HostRule(name, USUAL_PORTS if port is None else (port,), below, text)


def split_port(text: str) -> tuple[str, int | None]:
    """A host and its port, if it has one; an IPv6 address with a port is in brackets. ValueError if that is neither."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        return text, None
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return host, int(port)


def host_name(text: str) -> str:
    """The one spelling of a host. ValueError for what is none, such as an address that is written unusually: programs
    do not agree on what `127.1` or `0x7f000001` is."""
    address = read_address(text) if "%" not in text else None
    if address is not None:
        return str(address)
    name = text.lower().removesuffix(".")
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError(f"{text!r} is no host name") from None
    labels = name.split(".")
    if len(name) > _LONGEST or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is no host name")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        raise ValueError(f"{text!r} is no host name, and no address in its usual form")
    return name


def rule_for(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    """The first rule that covers a host, in its one spelling, and a port."""
    return next((rule for rule in rules if rule.covers(host, port)), None)


def may_lead_to(rules: Iterable[HostRule], rule: HostRule, address: Address, port: int) -> bool:
    """Whether a name that `rule` covers may lead to an address that is not public: one that the list names itself, or
    this machine where the list says `localhost`."""
    if not rule.below and rule.host == "localhost" and address.is_loopback:
        return True
    return any(other.address == address and port in other.ports for other in rules)
