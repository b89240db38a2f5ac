"""What a session uses of its service: parts that all sessions share and those of the environment that it runs in; and
the tasks that belong to the service and to no caller."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from ..config import Settings
from ..model.events import Event
from ..questions.broker import Broker
from ..state.leases import Leases
from ..state.session_records import MovedIds, SessionRecords
from ..state.state_directory import database_in
from ..store.catalogue import Catalogue
from ..store.transcripts import ProjectFolders, Transcripts
from .launcher import Launcher
from .mcp_bridge import McpServerHost
from .neighbours import Neighbours
from .policy_enforcer import PolicyEnforcer
from .record_writer import RecordWriter, StartTask
from .session_library import SessionLibrary
from .slots import Slots

log = logging.getLogger(__name__)
Hosted = Callable[[], AbstractAsyncContextManager[McpServerHost | None]]
"""Within what it returns there are MCP servers, or there are none."""
_GRACE = 1.0
"""Seconds that tasks have to end by themselves when the service closes."""


class BackgroundTasks:
    """Keeps every task until it is done, so that none is garbage-collected half way, and logs its failure."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._endless: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]":
        """`endless` is work that leaves nothing undone wherever it stops, such as a watch: nobody waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if endless:
            self._endless.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel_endless(self) -> None:
        for task in self._endless:
            task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._endless.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the service failed", exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Lets tasks that are about to end do so, such as a note about a cost; cancels those that wait for something
        outside, such as a person who was sent to sign in, and waits up to `timeout` seconds for them to be gone."""
        self.cancel_endless()
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)


@dataclass(frozen=True, slots=True)
class Stores:
    """What is kept of the sessions below one configuration directory of the CLI."""

    leases: Leases
    transcripts: Transcripts
    moved_ids: MovedIds
    recorder: RecordWriter
    library: SessionLibrary

    @classmethod
    def below(
        cls,
        config_dir: str,
        settings: Settings,
        start_task: StartTask,
        redact: Callable[[Any], Any],
        projects: ProjectFolders,
    ) -> "Stores":
        database = database_in(settings.state_dir)
        leases, records = Leases(database.directory, config_dir), SessionRecords(database, config_dir)
        return cls(
            leases,
            Transcripts(projects),
            MovedIds(database, config_dir),
            RecordWriter(records, start_task),
            SessionLibrary(config_dir, settings.state_dir, redact, records=records, leases=leases, projects=projects),
        )

    @property
    def catalogue(self) -> Catalogue:
        return self.library.catalogue


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SessionDeps:
    """The parts of a service that the sessions of one environment use; see `workplaces.py`."""

    settings: Settings
    launcher: Launcher
    stores: Stores
    broker: Broker
    slots: Slots
    gate: PolicyEnforcer
    start_task: StartTask
    """Runs work that belongs to the service, never to a caller."""
    neighbours: Neighbours
    hosted: Hosted
    """Around every use of the MCP servers that these sessions share."""
    redact: Callable[[Any], Any]
    """Removes secrets from a text or a JSON value."""
    notice: Callable[[str, str, Event], None]
    """Called with a session's id, its owner and the event, for every event of every session."""
    moved: Callable[[str, str], None]
    """Called with the old and the new id when a session goes on under another one."""
    known: Callable[[str], bool]
    """Whether a session with this id is in memory, whoever's it is."""
    directory: str | None = None
    """Where the client is, from which relative paths start; None: where this server is."""
