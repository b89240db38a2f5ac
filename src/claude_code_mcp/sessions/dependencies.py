"""What all sessions of a service share, handed to each of them, and the tasks that belong to the service and to no
caller."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..model.events import Event
from ..questions.broker import Broker
from ..store.session_records import Aliases, Leases
from ..store.transcripts import Transcripts
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .policy_enforcer import PolicyEnforcer
from .record_writer import RecordWriter
from .slots import Slots

log = logging.getLogger(__name__)
_GRACE = 1.0
"""Seconds that tasks have to end by themselves when the service closes."""


class BackgroundTasks:
    """Keeps every task until it is done, so that none is garbage-collected half way, and logs its failure."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the service failed", exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Lets tasks that are about to end do so, such as a note about a cost; cancels those that wait for something
        outside, such as a person who was sent to sign in, and waits up to `timeout` seconds for them to be gone."""
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)


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
