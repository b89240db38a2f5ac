"""The parts of a service that a session uses."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..model.events import AuditEvent, Event
from ..questions.broker import Broker
from .background_tasks import StartTask
from .callers.policy_enforcer import PolicyEnforcer
from .live.launcher import Launcher
from .live.mcp_bridge import SessionHub
from .live.slots import Slots
from .peer_servers import PeerServers
from .stored.replica import SessionReplica
from .stored.session_stores import Stores
from .workplaces import Workplaces

OpenHub = Callable[[], AbstractAsyncContextManager[SessionHub | None]]
"""Returns a context that yields the hub, or None."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SessionDeps:
    """The parts of a service that the sessions of one environment use; see `ClientEnvironments`."""

    settings: Settings
    launcher: Launcher
    stores: Stores
    broker: Broker
    slots: Slots
    enforcer: PolicyEnforcer
    start_task: StartTask
    """Runs work that the service owns."""
    peers: PeerServers
    open_hub: OpenHub
    """The context around every use of these sessions' hub."""
    redact: Callable[[Any], Any]
    """Removes secrets from a string or a JSON value."""
    notice: Callable[[str, str, Event], None]
    """Called with a session's id, its owner and the event, for every event of every session."""
    audit: Callable[[AuditEvent], None]
    """Writes an act to the audit trail and counts it."""
    moved: Callable[[str, str], None]
    """Called with the old and the new id when a session continues under another id."""
    known: Callable[[str], bool]
    """Whether a session with this id is in memory, for any owner."""
    workplaces: Workplaces
    """Creates separate checkouts for sessions."""
    replica: SessionReplica | None = None
    """Receives everything that another machine needs to continue a session; None without a fleet."""
    directory: str | None = None
    """The client's directory, the base of relative paths; None: this server's."""
