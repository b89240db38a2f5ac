"""The parts of a service that a session uses."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..config import Settings
from ..questions.broker import Broker
from .background_tasks import StartTask
from .callers.policy_enforcer import PolicyEnforcer
from .live.launcher import Launcher
from .live.mcp_bridge import SessionHub
from .live.slots import Slots
from .observers import ObserverList
from .peer_servers import PeerServers
from .stored.replica import SessionReplica
from .stored.session_stores import Stores
from .workplaces import Workplaces

if TYPE_CHECKING:
    from .bookkeeper import Bookkeeper
    from .registry import Sessions

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
    sessions: "Sessions"
    """All sessions in memory, of any owner."""
    bookkeeper: "Bookkeeper"
    """Handles the events of sessions."""
    observers: ObserverList
    workplaces: Workplaces
    """Creates separate checkouts for sessions."""
    replica: SessionReplica | None = None
    """Receives everything that another machine needs to continue a session; None without a fleet."""
    directory: str | None = None
    """The client's directory, the base of relative paths; None: this server's."""
