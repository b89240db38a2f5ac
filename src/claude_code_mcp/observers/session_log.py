"""The log for people, without secrets: how it is written, and a line for what becomes of sessions."""

import logging

from ..model.audit_events import AuditEvent, AuditKind
from ..model.events import Event, ProcessChanged, TurnEnded
from ..model.outcome import OutcomeCode
from ..redaction import Redactor

log = logging.getLogger(__name__)

_LONGEST = 300
_BEGINNINGS = {
    AuditKind.SESSION_CREATED: "started",
    AuditKind.SESSION_RESUMED: "resumed",
    AuditKind.SESSION_FORKED: "forked",
}
_TOLD_OTHERWISE = frozenset({OutcomeCode.COMPLETED, OutcomeCode.CANCELLED, OutcomeCode.CRASHED})
"""Turns that did not fail, and those whose session has a line of its own about the same."""


class RedactingFormatter(logging.Formatter):
    """Takes secrets out of what is written at last, tracebacks included. The records stay as they are for others."""

    def __init__(self, layout: str, redactor: Redactor) -> None:
        super().__init__(layout)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        return self._redactor.text(super().format(record))


class SessionLog:
    """An observer that leaves one line for each start, end, crash, refusal and failed turn. What was asked and answered
    is not in it; a line is only made where the level lets it through."""

    def act(self, act: AuditEvent) -> None:
        if act.kind in _BEGINNINGS:
            about = act.details
            log.info(
                "session %s %s by %s in %s, mode %s",
                act.session_id,
                _BEGINNINGS[act.kind],
                act.who,
                about.get("cwd"),
                about.get("mode") or "unset",
            )
        elif act.kind is AuditKind.CANCELLED:
            log.info("session %s ended: cancelled by %s", act.session_id, act.who)
        elif act.kind is AuditKind.REFUSED:
            about = act.details
            log.info(
                "refused %s: %s to %s%s: %s",
                act.who,
                about.get("code"),
                about.get("what"),
                f" (session {act.session_id})" if act.session_id else "",
                _line(str(about.get("reason", ""))),
            )
        elif act.kind is AuditKind.AUTH_FAILED:
            log.info("refused a request without a valid token")

    def event(self, session_id: str, owner: str, event: Event) -> None:
        match event:
            case ProcessChanged(change="ended"):
                log.warning("session %s crashed: %s", session_id, _line(event.detail))
            case ProcessChanged(change="parked"):
                log.info("session %s ended: its process is closed, and resumed with the next message", session_id)
            case TurnEnded(outcome=outcome) if outcome.code not in _TOLD_OTHERWISE:
                why = outcome.detail if outcome.code is OutcomeCode.START_FAILED else ""
                status = f" (API status {outcome.api_status})" if outcome.api_status else ""
                log.info(
                    "session %s: turn %d failed: %s%s%s",
                    session_id,
                    event.number,
                    outcome.code,
                    status,
                    f": {_line(why)}" if why else "",
                )


def _line(text: str) -> str:
    """The text on one line, and not without end."""
    return " ".join(text[: 2 * _LONGEST].split())[:_LONGEST]
