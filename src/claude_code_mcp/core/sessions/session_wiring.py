"""The parts of a service that a session uses."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..model.events import AuditEvent, Event
from ..questions.broker import Broker
from .background_tasks import StartTask
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .neighbours import Neighbours
from .policy_enforcer import PolicyEnforcer
from .replica import SessionReplica
from .session_stores import Stores
from .slots import Slots
from .workplaces import Workplaces

Hosted = Callable[[], AbstractAsyncContextManager[McpServerHost | None]]
"""Within what it returns there are MCP servers, or there are none."""


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
    """Runs work that belongs to the service, never to a caller."""
    neighbours: Neighbours
    hosted: Hosted
    """Around every use of the MCP servers that these sessions share."""
    redact: Callable[[Any], Any]
    """Removes secrets from a text or a JSON value."""
    notice: Callable[[str, str, Event], None]
    """Called with a session's id, its owner and the event, for every event of every session."""
    audit: Callable[[AuditEvent], None]
    """Writes an act to the audit trail and counts it."""
    moved: Callable[[str, str], None]
    """Called with the old and the new id when a session goes on under another one."""
    known: Callable[[str], bool]
    """Whether a session with this id is in memory, whoever's it is."""
    workplaces: Workplaces
    """Makes the checkouts of sessions that ask for one of their own."""
    replica: SessionReplica | None = None
    """Where everything goes that another machine needs to go on with a session; None without a fleet."""
    directory: str | None = None
    """Where the client is, from which relative paths start; None: where this server is."""
