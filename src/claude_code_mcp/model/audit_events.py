"""What callers do and what becomes of it, beside the events of single sessions: the raw material of the audit trail."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class AuditKind(StrEnum):
    SERVER_STARTED = "server_started"
    SERVER_STOPPED = "server_stopped"
    SESSION_CREATED = "session_created"
    SESSION_RESUMED = "session_resumed"
    SESSION_FORKED = "session_forked"
    MESSAGE_SENT = "message_sent"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    """The policy, a limit or somebody else's session stood in the way."""
    FAILED = "failed"
    """A call ended in an error, whatever the reason. For counting; refusals are told by themselves."""
    BYPASS_SWITCHED = "bypass_switched"
    HUB_STEERED = "hub_steered"
    """A server that all share was reconnected, enabled, disabled, or somebody began to sign in to it."""
    AUTH_FAILED = "auth_failed"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One act: who did what, to which session. `details` depend on the kind; a prompt in them is the whole text."""

    kind: AuditKind
    who: str
    session_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
