"""Handles every event of a session: writes its record, its owner's spending and a change of its id, then notifies the
observers.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from ..errors import ClaudeCodeError
from ..model.caller import LOCAL
from ..model.events import AuditEvent, AuditKind, BudgetWarned, Event, Spent, StateChanged, TurnEnded, TurnStarted
from ..model.states import BUSY, State
from ..model.usage import Usage
from ..questions.broker import Broker
from ..state.spending import BudgetWarning, NotedAmount
from .background_tasks import StartTask
from .callers.principal_limits import PrincipalLimits
from .callers.session_access import SessionAccess
from .observers import ObserverList

if TYPE_CHECKING:
    from .registry import Sessions
    from .session import Session

log = logging.getLogger(__name__)

_LEFT_OVER_DELAY = 5.0
"""Seconds after the start of a server within which all observers are registered."""


class Bookkeeper:
    """Handles every event: starts writing, then notifies the observers. `RecordWriter.saved` waits for the writing."""

    def __init__(
        self,
        sessions: "Sessions",
        limits: PrincipalLimits,
        broker: Broker,
        observers: ObserverList,
        access: SessionAccess,
        start_task: StartTask,
    ) -> None:
        self._sessions = sessions
        self._limits = limits
        self._broker = broker
        self._observers = observers
        self._access = access
        self._start_task = start_task

    def on_event(self, session: "Session", event: Event) -> None:
        """Called for every event except text fragments."""
        session_id, owner, changes_record = session.id, session.owner, False
        match event:
            case StateChanged():
                changes_record = event.state is State.CANCELLED
                # In memory at once, for the next message; other servers see it a moment later.
                if event.state not in BUSY and self._limits.spending.release(session_id):
                    self._start_task(asyncio.to_thread(self._limits.spending.write_reservation, owner, session_id))
            case TurnStarted():
                changes_record = not session.beginning
            case TurnEnded():
                changes_record = True
                self._count(session, event.outcome.usage)
            case Spent():
                changes_record = True
                self._count(session, event.usage)
        # A session that was dropped must not get a record again.
        if changes_record and self._sessions.known(session_id) is session:
            session.recorder.changed(session)
        self._observers.event(session_id, owner, event)

    def _count(self, session: "Session", usage: Usage) -> None:
        """Count a cost toward the owner's budgets: in memory at once, on disk in the background. Costs of named
        callers are always written, for the operator's bill."""
        owner, usd = session.owner, usage.cost_usd
        self._limits.use_tokens(owner, usage)
        if usd > 0 and (owner != LOCAL or self._limits.counts(owner)):
            noted = self._limits.spending.note(owner, usd, session.id)
            writing = self._start_task(self._write_cost(noted))
            if self._sessions.known(session.id) is session:
                # The report of the turn waits for this: the warning belongs to the turn that caused it.
                session.recorder.also_await(session.id, writing)

    async def _write_cost(self, noted: NotedAmount) -> None:
        """Write a cost, and announce the budget warnings that it triggers. They are audited even if the session no
        longer exists."""
        for warning in await asyncio.to_thread(self._limits.write_cost, noted):
            session = self._sessions.known(noted.session_id)
            if session is not None:
                session.log.append(BudgetWarned(warning.line, size=len(warning.line)))
            await self._announce(warning, noted.session_id)

    async def announce_left_over(self) -> None:
        """Announce the warnings that earlier servers did not, a moment after the start, when the observers that notify
        people are registered."""
        await asyncio.sleep(_LEFT_OVER_DELAY)
        try:
            for warning in await asyncio.to_thread(self._limits.spending.take_unannounced):
                await self._announce(warning, None)
        except OSError as error:  # the next server announces them
            log.warning("the budget warnings that are already sent cannot be read: %s", error)

    async def _announce(self, warning: BudgetWarning, session_id: str | None) -> None:
        # First: if this server is killed in between, the next one announces it.
        self._observers.act(AuditEvent(AuditKind.BUDGET_WARNED, warning.principal, session_id, warning.fields))
        await asyncio.to_thread(self._limits.spending.note_announced, warning)

    def on_moved(self, session: "Session", old: str) -> None:
        """Record that a session continues under another id. It is on disk on return, before the new id is published."""
        new = session.id
        # First: the calls below look the session up by its new id.
        self._sessions.moved(old, new)
        self._broker.moved(old, new)
        spending = self._limits.spending
        if (owner := spending.moved(old, new)) is not None:
            for session_id in (old, new):
                self._start_task(asyncio.to_thread(spending.write_reservation, owner, session_id))
        record = session.record() if self._sessions.known(new) is session else None
        try:
            session.recorder.records.move(old, record, new)
            self._access.moved(old, new)
        except (OSError, ClaudeCodeError) as error:
            log.error("could not record that session %s continues as %s: %s", old, new, error)
