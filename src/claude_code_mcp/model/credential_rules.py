"""Which credential the proxy of a sandbox puts into requests for which host, and where its value comes from; pure."""

import re
from dataclasses import dataclass

from .host_rules import HostRule, parse_host_rule

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_FORBIDDEN = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "expect", "keep-alive"}
)
"""Headers that say how a message is read: a credential is none of them."""


@dataclass(frozen=True, slots=True)
class CredentialRule:
    """What the policy says: for which host which header has the value from where."""

    rule: HostRule
    header: str
    source: str
    """`env:NAME` or `file:PATH`."""
    prefix: str | None = None
    """What stands before the value; unset, `Bearer ` in an Authorization header whose value has no scheme."""

    def covers(self, host: str, port: int) -> bool:
        return self.rule.covers(host, port)


def parse_credential(host: str, header: str, source: str, prefix: str | None = None) -> CredentialRule:
    """ValueError says what is wrong."""
    if not _HEADER.fullmatch(header) or header.lower() in _FORBIDDEN or header.lower().startswith("proxy-"):
        raise ValueError(f"{header!r} is no header for a credential")
    kind, _, name = source.partition(":")
    if kind not in ("env", "file") or not name:
        raise ValueError("`from` must be env:NAME or file:PATH")
    if prefix is not None and not is_header_value(prefix):
        raise ValueError("`prefix` must consist of visible ASCII characters and spaces")
    return CredentialRule(parse_host_rule(host), header, source, prefix)


def is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable()
