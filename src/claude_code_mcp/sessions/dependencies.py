"""What all sessions of a service share, handed to each of them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..model.events import Event
from ..questions.broker import Broker
from ..store.lease import Leases
from ..store.session_records import Aliases
from ..store.transcripts import Transcripts
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .policy_enforcer import PolicyEnforcer
from .record_writer import RecordWriter
from .slots import Slots


@dataclass(frozen=True, slots=True)
class SessionDeps:
    """The parts of a service that its sessions use."""

    settings: Settings
    launcher: Launcher
    broker: Broker
    leases: Leases
    transcripts: Transcripts
    aliases: Aliases
    recorder: RecordWriter
    slots: Slots
    gate: PolicyEnforcer
    start_task: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"]
    """Runs work that belongs to the service, never to a caller."""
    host: McpServerHost | None
    """The MCP servers that all sessions share, if there are any."""
    redact: Callable[[Any], Any]
    """Removes secrets from a text or a JSON value."""
    notice: Callable[[str, str, Event], None]
    """Called with a session's id, its owner and the event, for every event of every session."""
    moved: Callable[[str, str], None]
    """Called with the old and the new id when a session goes on under another one."""
