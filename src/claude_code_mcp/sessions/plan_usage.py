"""Remembers how much of a plan is used, as Claude Code last reported it to a session of each caller.

Kept in the state database, so that `costs` and a server that has just started know it too. Claude Code reports it with
the answers of the model, and only with a subscription.
"""

import asyncio
import logging
import time
from typing import Any

from ..model.events import AuditEvent, Event, UsageReported
from ..model.text import iso
from ..state.database import Database
from ..state.documents import Documents
from .background import StartTask

log = logging.getLogger(__name__)


class PlanUsages:
    """An observer of the service."""

    def __init__(self, database: Database, start_task: StartTask) -> None:
        self._documents = Documents(database, "plan_usage")
        self._start_task = start_task

    async def of(self, principal: str) -> dict[str, Any] | None:
        """The last report for a caller; None if there is none, or if it cannot be read."""
        try:
            return await asyncio.to_thread(self._documents.read, principal)
        except OSError as error:
            log.warning("the usage of the plan cannot be read: %s", error)
            return None

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, UsageReported):
            document = {**event.plan.as_json(), "line": event.plan.line, "reportedAt": iso(event.at or time.time())}
            self._start_task(self._write(owner, document))

    def act(self, act: AuditEvent) -> None:
        """Acts say nothing of the plan."""

    async def _write(self, owner: str, document: dict[str, Any]) -> None:
        try:
            await asyncio.to_thread(self._documents.write, owner, document)
        except OSError as error:
            log.warning("the usage of the plan cannot be recorded: %s", error)
