"""Which IP addresses are those of the open internet, and not of this machine or a network that it is in; pure.

By a table of our own, from the IANA registries of special-purpose addresses: what `ipaddress` calls global changes with
the version of Python, and takes some networks for global that routers do not. Of IPv6 only what is assigned as global
(2000::/3) can be public. An address that leads to an IPv4 address inside of it is what that one is, if routers are to
carry it at all; the deprecated ways to do so (6to4, Teredo, IPv4-compatible, ISATAP) are not public.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

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
"""Networks whose last 32 bits are an IPv4 address: mapped, and translated (NAT64)."""
_ISATAP = (0x00005EFE, 0x02005EFE)


def is_public(address: Address) -> bool:
    """Whether an address is one of the open internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    plain = IPv6Address(int(address))  # without a zone, which only addresses of one link have
    if any(plain in network for network in _LEADS_TO_4):
        return is_public(IPv4Address(int(plain) & 0xFFFFFFFF))
    if (int(plain) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return plain in _GLOBAL_6 and not any(plain in network for network in _NOT_PUBLIC_6)


def read_address(text: str) -> Address | None:
    """The IP address that a text is, with or without brackets and a zone; None if it is none."""
    try:
        return ip_address(text.removeprefix("[").removesuffix("]").partition("%")[0])
    except ValueError:
        return None
