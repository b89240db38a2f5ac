"""Stores the last report of Claude Code on how much of a caller's plan is used.

It is in the state database, so that `costs` and a restarted server also have it. Claude Code reports the usage with the
model's answers, and only for subscriptions.
"""

import asyncio
import logging
import time
from typing import Any

from ..errors import ClaudeCodeError
from ..model.events import AuditEvent, Event, UsageReported
from ..model.text import iso
from ..state.database import Database
from ..state.documents import Documents
from .background_tasks import StartTask

log = logging.getLogger(__name__)


class PlanUsages:
    """An observer of the service."""

    def __init__(self, database: Database, start_task: StartTask) -> None:
        self._documents = Documents(database, "plan_usage")
        self._start_task = start_task
        self._unwritten: dict[str, dict[str, Any]] = {}
        """The latest report for each caller that is not in the database yet."""
        self._writing: set[str] = set()

    async def of(self, principal: str) -> dict[str, Any] | None:
        """The last report for a caller; None if there is none, or if it cannot be read."""
        try:
            return await asyncio.to_thread(self._documents.read, principal)
        except (ClaudeCodeError, OSError) as error:
            log.warning("the usage of the plan cannot be read: %s", error)
            return None

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, UsageReported):
            document = {**event.plan.as_json(), "line": event.plan.line, "reportedAt": iso(event.at or time.time())}
            # One task per caller limits the work, because commands of a session can forge any number of reports.
            self._unwritten[owner] = document
            if owner not in self._writing:
                self._writing.add(owner)
                self._start_task(self._write(owner))

    def act(self, act: AuditEvent) -> None:
        """Ignores acts, which do not concern the plan."""

    async def _write(self, owner: str) -> None:
        try:
            while (document := self._unwritten.pop(owner, None)) is not None:
                await asyncio.to_thread(self._documents.write, owner, document)
        except (ClaudeCodeError, OSError) as error:
            log.warning("the usage of the plan cannot be recorded: %s", error)
        finally:
            self._writing.discard(owner)
