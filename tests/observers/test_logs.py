"""Nothing secret reaches the log, not even in a traceback."""

import io
import logging

from claude_code_mcp.observers.logs import RedactingFormatter
from claude_code_mcp.redaction import Redactor


def test_messages_arguments_and_tracebacks_are_clean() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(message)s", Redactor(["opaque-secret-value"])))
    log = logging.Logger("test of the log")
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
