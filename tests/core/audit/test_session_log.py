"""What reaches the log: a line for what becomes of sessions, and nothing secret, not even in a traceback."""

import io
import logging
from typing import Any

import pytest

from claude_code_mcp.core.audit.session_log import RedactingFormatter, SessionLog, without_contents
from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event, ProcessChanged, TurnEnded
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.redaction import Redactor


def test_messages_arguments_and_tracebacks_are_clean() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(message)s", Redactor(["opaque-secret-value"])))
    log = logging.Logger("claude_code_mcp.test")
    log.addHandler(handler)
    log.warning("sent %s with %r", "opaque-secret-value", {"Authorization": "Bearer abcdefgh12345678"})
    try:
        raise ValueError("it was opaque-secret-value")
    except ValueError:
        log.exception("failed")
    said = stream.getvalue()
    assert "Traceback" in said
    assert "opaque-secret-value" not in said
    assert "abcdefgh12345678" not in said


def test_library_logs_have_no_contents() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(name)s %(message)s", Redactor()))
    handler.addFilter(without_contents)
    records, quoted = list[logging.LogRecord](), "input_value='walrus'"
    for name in (
        "websockets.client",
        "mcp.client.session",
        "claude_code_mcp",
        "claude_code_mcp.hub",
        "claude_code_mcp2",
    ):
        log = logging.Logger(name, logging.DEBUG)
        log.addHandler(handler)
        log.addFilter(lambda record: records.append(record) or True)  # type: ignore[func-returns-value]
        log.debug("a frame")
        log.warning("a warning")
        try:
            raise ValueError(quoted)
        except ValueError:
            log.exception("failed")
    said = stream.getvalue()
    assert [line for line in said.splitlines() if "frame" in line] == [
        "claude_code_mcp a frame",
        "claude_code_mcp.hub a frame",
    ]
    assert said.count("a warning") == 5
    assert said.count("walrus") == 2, "of our own loggers alone"
    assert said.count("ValueError\n") == 3
    assert said.count("test_session_log.py") == 5, "where it was raised is said of all"
    assert all(record.exc_info for record in records if record.levelno == logging.ERROR), "for other handlers"


def outcome(code: OutcomeCode, **more: Any) -> TurnEnded:
    return TurnEnded(3, Outcome(code, result="what was answered", detail="what was asked", **more))


def test_log_has_one_line_per_start_end_crash_refusal_and_failed_turn(caplog: pytest.LogCaptureFixture) -> None:
    observer = SessionLog()
    about = {"prompt": "what was asked", "cwd": "/src", "mode": "plan"}
    refused = {"what": "create", "code": "LIMIT_REACHED", "reason": "too\nmany"}
    records: list[tuple[AuditEvent | Event, set[str] | None]] = [
        (AuditEvent(AuditKind.SESSION_CREATED, "ann", "s1", about), {"s1", "ann", "/src", "plan"}),
        (AuditEvent(AuditKind.SESSION_RESUMED, "ann", "s1", about), {"s1", "ann", "/src", "plan"}),
        (AuditEvent(AuditKind.MESSAGE_SENT, "ann", "s1", about), None),
        (AuditEvent(AuditKind.REFUSED, "ann", None, refused), {"ann", "LIMIT_REACHED", "create", "too many"}),
        (AuditEvent(AuditKind.CANCELLED, "ann", "s1"), {"s1", "cancelled", "ann"}),
        (outcome(OutcomeCode.COMPLETED), None),
        (outcome(OutcomeCode.API_ERROR, api_status=529), {"s1", "3", "api_error", "529"}),
        (outcome(OutcomeCode.INTERRUPTED), {"s1", "3", "interrupted"}),
        (outcome(OutcomeCode.CRASHED), None),
        (ProcessChanged("ended", 7, "Claude Code was ended by SIGKILL."), {"s1", "crashed", "SIGKILL"}),
    ]
    with caplog.at_level(logging.INFO, "claude_code_mcp.core.audit.session_log"):
        for one, expected in records:
            caplog.clear()
            observer.act(one) if isinstance(one, AuditEvent) else observer.event("s1", "ann", one)
            assert len(caplog.messages) == (expected is not None), caplog.messages
            assert all(fact in line for line in caplog.messages for fact in expected or ()), caplog.messages
            assert not any("what was" in line for line in caplog.messages)
