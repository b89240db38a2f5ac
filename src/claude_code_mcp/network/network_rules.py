"""What a profile says about the network of its sandboxes, and where a sandbox finds what it needs for it."""

from collections.abc import Callable
from dataclasses import dataclass

from ..model.credential_rules import CredentialRule
from ..model.events import AuditEvent
from ..model.host_rules import HostRule

PORT = 3128
SOCKET, STARTER, CERTIFICATES = "/run/network.sock", "/run/network-start.py", "/run/network-certificates.pem"
"""What a sandbox finds where."""
_MOST_NAMED = 20

Audit = Callable[[AuditEvent], None]


@dataclass(frozen=True, slots=True)
class NetworkRules:
    """What a profile says about the network of its sandboxes."""

    hosts: tuple[HostRule, ...]
    credentials: tuple[CredentialRule, ...] = ()

    def credential_for(self, host: str, port: int) -> CredentialRule | None:
        return next((rule for rule in self.credentials if rule.covers(host, port)), None)

    def named(self) -> str:
        """The list, for people."""
        texts = [rule.text for rule in self.hosts]
        more = ", …" if len(texts) > _MOST_NAMED else ""
        return f"network = [{', '.join(repr(text) for text in texts[:_MOST_NAMED])}{more}]"
