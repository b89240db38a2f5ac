"""What must be written down because of an event: a session's record, an owner's spending, a change of its id."""

import asyncio
import logging

from ..errors import ClaudeCodeError
from ..model.events import Event, QuestionSettled, Spent, StateChanged, TurnEnded, TurnStarted
from ..model.states import State
from .dependencies import SessionDeps
from .registry import Sessions

log = logging.getLogger(__name__)


class Bookkeeper:
    """Starts the writing; `RecordWriter.saved` waits for it."""

    def __init__(self, sessions: Sessions, deps: SessionDeps) -> None:
        self._sessions = sessions
        self._deps = deps

    def on_event(self, session_id: str, owner: str, event: Event) -> None:
        """Called for every event, before any observer."""
        if isinstance(event, TurnEnded | Spent):
            self._count(owner, event)
        if _changes_record(event):
            session = self._sessions.known(session_id)
            if session is not None:
                self._deps.recorder.changed(session)

    def _count(self, owner: str, event: TurnEnded | Spent) -> None:
        """Counts a cost towards the owner's daily budget: in memory at once, on disk in the background."""
        usd = (event.outcome.usage if isinstance(event, TurnEnded) else event.usage).cost_usd
        enforcer = self._deps.gate
        if usd > 0 and enforcer.counts(owner):
            enforcer.spending.note(owner, usd)
            self._deps.start_task(asyncio.to_thread(enforcer.spending.write, owner, usd))

    def on_moved(self, old: str, new: str) -> None:
        """A session goes on under another id. This is on disk when it returns, before anybody learns the new id."""
        self._sessions.moved(old, new)
        self._deps.broker.moved(old, new)
        session, records = self._sessions.known(new), self._deps.recorder.records
        try:
            record = session.record() if session is not None else None
            if record is not None:
                records.write(record)
            previous = records.read(old)
            if previous is not None:  # its turn goes on under the new id, and was not cut short
                records.write(previous.model_copy(update={"running_since": None}))
            self._deps.aliases.point(old, new)
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
