"""Matches addresses with patterns by Claude Code's rules. Pure.

`*` matches any characters. A pattern that ends with its host matches every path. A host with a `*` matches every port,
any other host only its port or the default port. Hosts are compared without case and without a trailing dot. Both sides
are first brought into canonical form (`written`), so that no other spelling of an address escapes a pattern: case,
default port, dots in the path, backslashes, percent-encoded letters of a host, numbers that are IPv4 addresses.
"""

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import unquote

_USUAL_PORTS = {"http": "80", "ws": "80", "https": "443", "wss": "443"}
_PARTS = re.compile(r"([a-z*][a-z0-9+.*-]*):[/\\]*([^/\\?#]*)([^?#]*)(\?[^#]*)?", re.IGNORECASE | re.DOTALL)
_STAR = "*"


@dataclass(frozen=True, slots=True)
class Written:
    """The parts of an address or a pattern in canonical form."""

    scheme: str
    host: str
    port: str
    """Empty for the default port of the scheme."""
    path: str
    query: str
    ends_with_host: bool

    @property
    def text(self) -> str:
        port = f":{self.port}" if self.port else ""
        return f"{self.scheme}://{self.host}{port}{self.path}{self.query}"


def written(address: str) -> Written | None:
    """The parts of an address in canonical form; None if it is not an address."""
    # Like browsers, ignore these characters.
    cleaned = re.sub(r"[\t\r\n]", "", address).strip("".join(map(chr, range(33))))
    found = _PARTS.match(cleaned)
    if found is None:
        return None
    scheme, authority, path, query = found[1].lower(), found[2], found[3].replace("\\", "/"), found[4] or ""
    host, port = _host_and_port(authority.rpartition("@")[2])
    if not host:
        return None
    port = "" if port == _USUAL_PORTS.get(scheme) else port
    return Written(scheme, host, port, _path(path), query, not path and not query)


def fits(address: str, pattern: str) -> bool:
    """Whether an address matches a pattern. An invalid address matches only `*`."""
    if pattern == _STAR:
        return True
    there, wanted = written(address), written(pattern)
    if there is None:
        return False
    if wanted is None:  # a pattern without a scheme: compare each part between slashes
        expected, parts = pattern.split("/"), there.text.split("/")
        return len(expected) == len(parts) and all(map(matches, expected, parts))
    if wanted.scheme not in (_STAR, there.scheme) or not matches(wanted.host, there.host):
        return False
    if _STAR not in (wanted.port or wanted.host) and wanted.port != there.port:
        return False
    return wanted.ends_with_host or matches(wanted.path + wanted.query, there.path + there.query)


def matches(pattern: str, text: str) -> bool:
    """Whether text matches a pattern in which `*` matches any characters. Takes time proportional to the length of the
    text times the number of stars."""
    first, *parts = pattern.split(_STAR)
    if not parts:
        return pattern == text
    *middle, last = parts
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for part in middle:
        at = text.find(part, at, end)
        if at < 0:
            return False
        at += len(part)
    return True


def _host_and_port(authority: str) -> tuple[str, str]:
    host, colon, port = authority.rpartition(":")
    if not colon or "]" in port:
        host, port = authority, ""
    host = unquote(host).rstrip(".").lower()
    if _STAR not in host:
        host = _number_as_address(host) or _ipv6(host) or _ascii(host)
    return host, port.lstrip("0") or ("0" if port else "")


def _ipv6(host: str) -> str | None:
    try:
        return f"[{ipaddress.IPv6Address(host[1:-1])}]" if host.startswith("[") else None
    except ValueError:
        return None


def _ascii(host: str) -> str:
    if host.isascii():
        return host
    try:
        return host.encode("idna").decode("ascii")
    except UnicodeError:
        return host


def _number_as_address(host: str) -> str | None:
    """`127.1`, `0x7f000001` and `2130706433` are 127.0.0.1 to a browser, and to Claude Code."""
    parts = host.split(".")
    if len(parts) > 4 or not re.fullmatch(r"0x[0-9a-f]*|[0-9]+", parts[-1]):
        return None
    try:
        numbers = [_number(part) for part in parts]
    except ValueError:
        return None
    *leading, last = numbers
    if any(number > 255 for number in leading) or last >= 256 ** (5 - len(numbers)):
        return None
    value = last + sum(number << (8 * (3 - at)) for at, number in enumerate(leading))
    return str(ipaddress.IPv4Address(value))


def _number(part: str) -> int:
    if part.startswith("0x"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if part.startswith("0") and len(part) > 1 else int(part)


def _path(path: str) -> str:
    """The path without `.` and `..`, however they are encoded."""
    segments: list[str] = []
    parts = path.split("/")[1:]
    for number, part in enumerate(parts):
        plain, is_last = part.lower().replace("%2e", "."), number == len(parts) - 1
        if plain == "..":
            segments = segments[:-1] + ([""] if is_last else [])
        elif plain == ".":
            segments += [""] if is_last else []
        else:
            segments.append(part)
    return "/" + "/".join(segments)
