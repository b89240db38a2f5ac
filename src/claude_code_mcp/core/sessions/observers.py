"""Calls the observers of a service with events and audited acts."""

import logging
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Protocol

from ..errors import LimitReached, PermissionDenied, SessionNotFound
from ..model.events import AuditEvent, AuditKind, Event

log = logging.getLogger(__name__)


class Observer(Protocol):
    """Observes a service. The methods must not block; a failure is logged and does not affect other observers."""

    def event(self, session_id: str, owner: str, event: Event) -> None:
        """Called for every event of a session except text fragments."""

    def act(self, act: AuditEvent) -> None:
        """Called for every act that belongs in the audit trail."""


class ObserverList:
    """Calls the observers in the order in which they were added, each with the kinds that it subscribed to."""

    def __init__(self) -> None:
        self._observers: tuple[tuple[Observer, tuple[type[Event], ...], Container[AuditKind]], ...] = ()

    def add(
        self,
        observer: Observer,
        events: tuple[type[Event], ...] = (Event,),
        acts: Container[AuditKind] = frozenset(AuditKind),
    ) -> None:
        """Call the observer from now on with every event and audited act, or only with these kinds."""
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
        """Context that audits a refusal by the policy or a limit that is raised within it, and raises it again."""
        try:
            yield
        except (PermissionDenied, LimitReached) as error:
            details = {"what": what, "code": error.code, "reason": error.message, "field": error.data.get("field")}
            self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
            raise

    def foreign_session(self, session_id: str, principal: str) -> SessionNotFound:
        """Audit that a caller named another user's session, and return the error. It equals the error for a missing
        session, so that callers cannot find out which ids are in use."""
        details = {"what": "use", "code": SessionNotFound.code, "reason": "another caller's session"}
        self.act(AuditEvent(AuditKind.REFUSED, principal, session_id, details))
        return SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
