"""What follows from an event or an audited act: first what must be written down, then the observers are told.

Written down are a session's record, an owner's spending and a change of a session's id. Observers must not block; one
that raises is logged and does not keep the others from being told.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import ClaudeCodeError, LimitReached, PermissionDenied, SessionNotFound
from ..model.events import AuditEvent, AuditKind, Event, QuestionSettled, Spent, StateChanged, TurnEnded, TurnStarted
from ..model.states import BUSY, State
from .dependencies import SessionDeps
from .registry import Sessions

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches a service. The methods must not block; if one raises, that is logged and nobody else is affected."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Something happened in a session. Fragments of text are left out."""

    def act(self, act: AuditEvent) -> None:
        """Somebody did something that belongs in an audit trail."""


class ObserverList:
    """Calls all observers in the order in which they were added."""

    def __init__(self) -> None:
        self._observers: tuple[Observer, ...] = ()

    def add(self, observer: Observer) -> None:
        self._observers = (*self._observers, observer)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        for observer in self._observers:
            _call(observer.event, session_id, owner, event)

    def act(self, act: AuditEvent) -> None:
        for observer in self._observers:
            _call(observer.act, act)

    @contextmanager
    def auditing_refusals(self, owner: str, what: str, session_id: str | None = None) -> Iterator[None]:
        """Reports a refusal of the policy or of a limit that is raised within, and lets it pass."""
        try:
            yield
        except (PermissionDenied, LimitReached) as error:
            details = {"what": what, "code": error.code, "reason": error.message, "field": error.data.get("field")}
            self.act(AuditEvent(AuditKind.REFUSED, owner, session_id, details))
            raise

    def foreign_session(self, session_id: str, caller: str) -> SessionNotFound:
        """Reports that a caller named somebody else's session. The error does not differ from that for a session
        which does not exist: a caller cannot find out which ids are in use."""
        details = {"what": "use", "code": SessionNotFound.code, "reason": "somebody else's session"}
        self.act(AuditEvent(AuditKind.REFUSED, caller, session_id, details))
        return SessionNotFound(f"There is no session {session_id}.", session_id=session_id)


def _call(method: Callable[..., None], *arguments: Any) -> None:
    try:
        method(*arguments)
    except Exception:
        log.exception("an observer failed")


class Bookkeeper:
    """Starts the writing; `RecordWriter.saved` waits for it."""

    def __init__(self, sessions: Sessions, deps: SessionDeps) -> None:
        self._sessions = sessions
        self._deps = deps

    def on_event(self, session_id: str, owner: str, event: Event) -> None:
        """Called for every event, before any observer."""
        if isinstance(event, StateChanged) and event.state not in BUSY:
            spending = self._deps.gate.spending
            if spending.release(session_id):
                self._deps.start_task(asyncio.to_thread(spending.write, owner, 0.0, session_id))
        if isinstance(event, TurnEnded | Spent):
            self._count(session_id, owner, event)
        if _changes_record(event):
            session = self._sessions.known(session_id)
            if session is not None:
                session.deps.stores.recorder.changed(session)

    def _count(self, session_id: str, owner: str, event: TurnEnded | Spent) -> None:
        """Counts a cost towards the owner's daily budget: in memory at once, on disk in the background."""
        usd = (event.outcome.usage if isinstance(event, TurnEnded) else event.usage).cost_usd
        enforcer = self._deps.gate
        if usd > 0 and enforcer.counts(owner):
            enforcer.spending.note(owner, usd, session_id)
            self._deps.start_task(asyncio.to_thread(enforcer.spending.write, owner, usd, session_id))

    def on_moved(self, old: str, new: str) -> None:
        """A session goes on under another id. This is on disk when it returns, before anybody learns the new id."""
        self._sessions.moved(old, new)
        self._deps.broker.moved(old, new)
        spending = self._deps.gate.spending
        if (owner := spending.moved(old, new)) is not None:
            for session_id in (old, new):
                self._deps.start_task(asyncio.to_thread(spending.write, owner, 0.0, session_id))
        session = self._sessions.known(new)
        stores = (session.deps if session is not None else self._deps).stores
        records = stores.recorder.records
        try:
            records.move(old, session.record() if session is not None else None, new)
        except (OSError, ClaudeCodeError) as error:
            log.error("that session %s goes on as %s could not be written down: %s", old, new, error)


def _changes_record(event: Event) -> bool:
    """Whether the record on disk is out of date after it."""
    match event:
        case TurnStarted() | TurnEnded() | Spent():
            return True
        case StateChanged():
            return event.state is State.CANCELLED
        case QuestionSettled():
            return event.resolution.answer is not None and event.resolution.answer.allow
    return False
