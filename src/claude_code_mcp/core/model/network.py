"""Hosts, addresses and credentials in network rules. Pure.

Public addresses are determined by our own table, from the IANA registries of special-purpose addresses, because
`ipaddress.is_global` changes with the Python version and includes networks that routers do not forward. Of IPv6 only
the assigned global range (2000::/3) can be public. An address that embeds an IPv4 address is as public as that one; the
deprecated forms (6to4, Teredo, IPv4-compatible, ISATAP) are not public.

Hosts are normalized: lower case, no trailing dot, IDNA, IP addresses in their shortest form. `*.example.org` matches
every host below `example.org`, but not `example.org`. A rule without a port applies to 443 and 80. A rule with an IP
address applies to requests for this address and to names that resolve to it.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from .events import AuditEvent

Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4 = tuple(
    IPv4Network(network)
    for network in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
        *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
        *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        "168.63.129.16/32",  # looks public, and is the host of a virtual machine of Azure
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6 = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
)
_LEADS_TO_4 = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
"""Networks whose last 32 bits are an IPv4 address: mapped and translated (NAT64)."""
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    plain = IPv6Address(int(address))  # without a zone, which only addresses of one link have
    if any(plain in network for network in _LEADS_TO_4):
        return is_public(IPv4Address(int(plain) & 0xFFFFFFFF))
    if (int(plain) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return plain in _GLOBAL_6 and not any(plain in network for network in _NOT_PUBLIC_6)


def read_address(text: str) -> Address | None:
    """The IP address in a text, with or without brackets and a zone; None if it is not an address."""
    try:
        return ip_address(text.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None


# -- host rules -------------------------------------------------------------------------------------------------------


USUAL_PORTS = (443, 80)
_MAX_LENGTH = 253
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_BELOW = "*."


@dataclass(frozen=True, slots=True)
class HostRule:
    """One entry of a list."""

    host: str
    """Normalized, without the `*.` of a rule for subdomains."""
    ports: tuple[int, ...] = USUAL_PORTS
    below: bool = False
    text: str = ""
    """As written in the policy."""

    @property
    def address(self) -> Address | None:
        """The rule's IP address, if it has one."""
        return None if self.below else read_address(self.host)

    def covers(self, host: str, port: int) -> bool:
        """Whether the rule covers a normalized host and port."""
        fits = host.endswith(f".{self.host}") if self.below else host == self.host
        return fits and port in self.ports

    def covers_host(self, host: str) -> bool:
        """Whether the rule covers the host on all of its ports."""
        return any(self.covers(host, port) for port in self.ports)


def parse_host_rule(text: str) -> HostRule:
    """Parse an entry of a list. Raises ValueError with the reason."""
    host, port = split_port(text)
    below = host.startswith(_BELOW)
    name = host_name(host.removeprefix(_BELOW) if below else host)
    if below and read_address(name) is not None:
        raise ValueError(f"{text!r}: an IP address has no subdomains")
    return HostRule(name, USUAL_PORTS if port is None else (port,), below, text)


def split_port(text: str) -> tuple[str, int | None]:
    """A host and its port, if it has one; an IPv6 address with a port is in brackets. Raises ValueError for an invalid
    port."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]") or (":" in host and not host.endswith("]")):
        return text, None
    if not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: the port must be a number from 1 to 65535")
    return host, int(port)


def host_name(text: str) -> str:
    """The normalized host name. Raises ValueError for anything else, such as an address in an unusual notation:
    programs do not agree on the meaning of `127.1` or `0x7f000001`."""
    address = read_address(text) if "%" not in text else None
    if address is not None:
        return str(address)
    name = text.lower().removesuffix(".")
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError(f"{text!r} is not a host name") from None
    labels = name.split(".")
    if len(name) > _MAX_LENGTH or not all(map(_LABEL.fullmatch, labels)):
        raise ValueError(f"{text!r} is not a host name")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        raise ValueError(f"{text!r} is neither a host name nor an address in its usual form")
    return name


def rule_for(rules: Iterable[HostRule], host: str, port: int) -> HostRule | None:
    """The first rule that covers a normalized host and port."""
    return next((rule for rule in rules if rule.covers(host, port)), None)


def may_lead_to(rules: Iterable[HostRule], rule: HostRule, address: Address, port: int) -> bool:
    """Whether a name that `rule` covers may resolve to an address that is not public: an address in the list, or this
    machine if the list has `localhost`."""
    if not rule.below and rule.host == "localhost" and address.is_loopback:
        return True
    return any(other.address == address and port in other.ports for other in rules)


# -- credential rules -------------------------------------------------------------------------------------------------


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_FORBIDDEN = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive"}
)
"""Headers that define how a message is read and therefore cannot carry a credential."""


@dataclass(frozen=True, slots=True)
class CredentialRule:
    """A credential in the policy: the host, the header and the source of the value."""

    rule: HostRule
    header: str
    source: str
    """`env:NAME` or `file:PATH`."""
    prefix: str | None = None
    """Text before the value. Unset: `Bearer ` in an Authorization header, unless the value has a scheme."""

    def covers(self, host: str, port: int) -> bool:
        return self.rule.covers(host, port)


def parse_credential(host: str, header: str, source: str, prefix: str | None = None) -> CredentialRule:
    """Parse a credential entry. Raises ValueError with the reason."""
    if not _HEADER.fullmatch(header) or header.lower() in _FORBIDDEN or header.lower().startswith("proxy-"):
        raise ValueError(f"{header!r} is not a header for a credential")
    kind, _, name = source.partition(":")
    if kind not in ("env", "file") or not name:
        raise ValueError("`from` must be env:NAME or file:PATH")
    if prefix is not None and not is_header_value(prefix):
        raise ValueError("`prefix` must consist of visible ASCII characters and spaces")
    return CredentialRule(parse_host_rule(host), header, source, prefix)


def is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()


# -- network rules ----------------------------------------------------------------------------------------------------


PORT = 3128
SOCKET, STARTER, CERTIFICATES = "/run/network.sock", "/run/network-start.py", "/run/network-certificates.pem"
"""Paths inside a sandbox."""
_MAX_NAMED = 20

Audit = Callable[[AuditEvent], None]


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """A profile's rules for the network of its sandboxes."""

    hosts: tuple[HostRule, ...]
    credentials: tuple[CredentialRule, ...] = ()

    def credential_for(self, host: str, port: int) -> CredentialRule | None:
        return next((rule for rule in self.credentials if rule.covers(host, port)), None)

    def named(self) -> str:
        """The list, human-readable."""
        texts = [rule.text for rule in self.hosts]
        more = ", …" if len(texts) > _MAX_NAMED else ""
        return f"network = [{', '.join(repr(text) for text in texts[:_MAX_NAMED])}{more}]"
