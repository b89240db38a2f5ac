"""The server's log, on stderr or in a file. Everything is redacted before it is written. `SessionLog` adds a line for
each start and end of a session."""

import copy
import io
import logging
import logging.handlers
import os
import sys
import traceback
from pathlib import Path

from ..config import Settings
from ..log_limit import FoldedLog
from ..model.events import AuditEvent, AuditKind, Event, ProcessChanged, TurnEnded, WaitChanged
from ..model.outcome import OutcomeCode
from ..model.text import clip_line
from ..private_files import open_private
from ..redaction import Redactor

log = logging.getLogger(__name__)

_MAX_REASON = 300
_LOG_BYTES = 1 << 20
_LEVELS = {"warn": "WARNING"}
_QUIET = ("filelock", "asyncio", "mcp", "uvicorn", "sse_starlette")
"""Libraries whose messages are logged only from level warning on."""
LOG_REDACTOR = Redactor()
"""The redactor of the log, one per process: no secret known to any part of the process may appear in the log."""
_BEGINNINGS = {
    AuditKind.SESSION_CREATED: "started",
    AuditKind.SESSION_RESUMED: "resumed",
    AuditKind.SESSION_FORKED: "forked",
}
_NOT_LOGGED = frozenset({OutcomeCode.COMPLETED, OutcomeCode.CANCELLED, OutcomeCode.CRASHED})
"""Outcomes that are not failures, and those that are logged with the end of the session or process."""


def log_to_stderr(settings: Settings) -> None:
    """Log to stderr, because stdout is for the protocol."""
    _log_to(logging.StreamHandler(sys.stderr), settings)


def log_to_file(settings: Settings, file: Path) -> None:
    """Log to a private file, rotated when it becomes too large; for a background server."""
    _log_to(PrivateLogFile(file), settings)


def _log_to(handler: logging.Handler, settings: Settings) -> None:
    level = _LEVELS.get(settings.log_level, settings.log_level.upper())
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s", LOG_REDACTOR))
    handler.addFilter(without_contents)
    logging.basicConfig(level=level, handlers=[handler])
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


def without_contents(record: logging.LogRecord) -> bool:
    """A filter for log handlers: rejects messages of libraries below the level info, at which several log everything
    they send and receive: WebSocket frames, MCP messages, HTTP headers."""
    return record.levelno >= logging.INFO or _is_ours(record)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] == __name__.partition(".")[0]


class RedactingFormatter(logging.Formatter):
    """Redacts the formatted text, including tracebacks. For an exception that a library logs, only the type and the
    lines of code are kept, because its text may quote a message. Records stay unchanged for other handlers."""

    def __init__(self, layout: str, redactor: Redactor) -> None:
        super().__init__(layout)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        if record.exc_info and not _is_ours(record):
            kind, _, trace = record.exc_info
            record = copy.copy(record)
            record.exc_info = None
            frames = "".join(traceback.format_tb(trace))
            record.exc_text = f"{frames}{kind.__name__}" if kind is not None else None
        # Redact the formatted text: a secret may be in an argument, in an exception, or composed of two parts.
        return self._redactor.text(super().format(record))


class PrivateLogFile(logging.handlers.RotatingFileHandler):
    """A private log; a limited number of old files is kept."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=_LOG_BYTES, backupCount=2, encoding="utf-8", errors="backslashreplace")

    def _open(self) -> io.TextIOWrapper:
        descriptor = open_private(Path(self.baseFilename), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return io.TextIOWrapper(open(descriptor, "ab"), encoding=self.encoding, errors=self.errors)


class SessionLog:
    """An observer that logs a line for each start, end, crash and refusal, and each interrupted or failed turn, without
    prompts and answers."""

    EVENTS = (ProcessChanged, TurnEnded, WaitChanged)
    ACTS = frozenset(
        {*_BEGINNINGS, AuditKind.CANCELLED, AuditKind.REFUSED, AuditKind.AUTH_FAILED, AuditKind.BUDGET_WARNED}
    )
    """The kinds of acts that it handles."""

    def __init__(self) -> None:
        # Folded, because a session with the host's network can cause any number of them.
        self._refusals = FoldedLog(log, "the server")

    @staticmethod
    def is_logged() -> bool:
        """Whether the log, at its level, contains any of its lines."""
        return log.isEnabledFor(logging.WARNING)

    def act(self, act: AuditEvent) -> None:
        if act.kind in _BEGINNINGS:
            details = act.details
            log.info(
                "session %s %s by %s in %s, mode %s",
                act.session_id,
                _BEGINNINGS[act.kind],
                act.who,
                details.get("cwd"),
                details.get("mode") or "unset",
            )
        elif act.kind is AuditKind.CANCELLED:
            log.info("session %s cancelled by %s", act.session_id, act.who)
        elif act.kind is AuditKind.REFUSED:
            details = act.details
            log.info(
                "refused %s: %s to %s%s: %s",
                act.who,
                details.get("code"),
                details.get("what"),
                f" (session {act.session_id})" if act.session_id else "",
                clip_line(str(details.get("reason", "")), _MAX_REASON),
            )
        elif act.kind is AuditKind.BUDGET_WARNED:
            log.warning("%s", act.details.get("warning"))
        elif act.kind is AuditKind.AUTH_FAILED:
            self._refusals.info("%s refused a request without a valid token")

    def event(self, session_id: str, owner: str, event: Event) -> None:
        match event:
            case ProcessChanged(change="ended"):
                log.warning("session %s crashed: %s", session_id, clip_line(event.detail, _MAX_REASON))
            case ProcessChanged(change="protocol_violation"):
                log.warning("session %s sent an invalid frame: %s", session_id, clip_line(event.detail, _MAX_REASON))
            case ProcessChanged(change="parked"):
                log.info("session %s: its process was closed; the next message resumes it", session_id)
            case WaitChanged(wait=wait, stopped=True) if wait is not None:
                log.info("session %s: %s", session_id, wait.sentence)
            case TurnEnded(outcome=outcome) if outcome.code is OutcomeCode.INTERRUPTED:
                log.info("session %s: turn %d interrupted", session_id, event.number)
            case TurnEnded(outcome=outcome) if outcome.code not in _NOT_LOGGED:
                why = outcome.detail if outcome.code is OutcomeCode.START_FAILED else ""
                status = f" (API status {outcome.api_status})" if outcome.api_status else ""
                log.info(
                    "session %s: turn %d failed: %s%s%s",
                    session_id,
                    event.number,
                    outcome.code,
                    status,
                    f": {clip_line(why, _MAX_REASON)}" if why else "",
                )
