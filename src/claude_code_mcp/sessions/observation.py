"""Observers of a service: who is told of events and of audited acts, and how."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ..errors import LimitReached, PermissionDenied, SessionNotFound
from ..model.audit_events import AuditEvent, AuditKind
from ..model.events import Event

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
