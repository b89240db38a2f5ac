"""Who watches a service: told of events and audited acts. Observers must not block; one that raises is logged and does
not keep the others from being told.
"""

import logging
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import LimitReached, PermissionDenied, SessionNotFound
from ..model.events import AuditEvent, AuditKind, Event

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Watches a service. The methods must not block; if one raises, that is logged and nobody else is affected."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Something happened in a session. Fragments of text are left out."""

    def act(self, act: AuditEvent) -> None:
        """Somebody did something that belongs in an audit trail."""


class ObserverList:
    """Calls the observers in the order in which they were added, each with what it wants to hear of."""

    def __init__(self) -> None:
        self._observers: tuple[tuple[Observer, tuple[type[Event], ...], Container[AuditKind]], ...] = ()

    def add(
        self,
        observer: Observer,
        events: tuple[type[Event], ...] = (Event,),
        acts: Container[AuditKind] = frozenset(AuditKind),
    ) -> None:
        """From now on the observer hears of every event and every audited act, or of these kinds."""
        self._observers = (*self._observers, (observer, events, acts))

    def event(self, session_id: str, owner: str, event: Event) -> None:
        for observer, events, _ in self._observers:
            if isinstance(event, events):
                try:
                    observer.event(session_id, owner, event)
                except Exception:
                    log.exception(
                        "%s failed on %s of session %s", type(observer).__name__, type(event).__name__, session_id
                    )

    def act(self, act: AuditEvent) -> None:
        for observer, _, acts in self._observers:
            if act.kind in acts:
                try:
                    observer.act(act)
                except Exception:
                    log.exception("%s failed on %s by %s", type(observer).__name__, act.kind, act.who)

    @contextmanager
    def auditing_refusals(self, principal: str, what: str, session_id: str | None = None) -> Iterator[None]:
        """Reports a refusal of the policy or of a limit that is raised within, and lets it pass."""
        try:
            yield
        except (PermissionDenied, LimitReached) as error:
            details = {"what": what, "code": error.code, "reason": error.message, "field": error.data.get("field")}
            self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
            raise

    def foreign_session(self, session_id: str, principal: str) -> SessionNotFound:
        """Reports that a caller named somebody else's session. The error does not differ from that for a session
        which does not exist: a caller cannot find out which ids are in use."""
        details = {"what": "use", "code": SessionNotFound.code, "reason": "another caller's session"}
        self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
        return SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
