"""What callers do and how it ends, beside the events of single sessions: what the audit trail is written from."""

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
    """By the policy, by a limit, or because the session belongs to another caller."""
    FAILED = "failed"
    """A call ended in an error, whatever the reason. For counting; a refusal has an event of its own besides."""
    BYPASS_SWITCHED = "bypass_switched"
    HUB_STEERED = "hub_steered"
    """A shared MCP server was reconnected, enabled or disabled, or a sign-in to it was begun."""
    AUTH_FAILED = "auth_failed"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Who did what, to which session. `details` depend on the kind; a prompt in them is the whole text."""

    kind: AuditKind
    who: str
    session_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
