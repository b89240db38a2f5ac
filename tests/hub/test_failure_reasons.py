"""Why a connection failed, in one line."""

import re

import pytest

from claude_code_mcp.hub.transports.failure_reasons import status_reason, stderr_summary

TRACEBACK = """INFO starting
Traceback (most recent call last):
  File "/srv/server.py", line 3, in <module>
    main()
  File "/srv/server.py", line 2, in main
    raise RuntimeError("no such database")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
RuntimeError: no such database
"""
GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/srv/a.py", line 1, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/a.py", line 9, in main
    |     raise ValueError("bad key")
    | ValueError: bad key
    +------------------------------------
"""
NODE = """node:internal/modules/cjs/loader:1228
  throw err;
  ^

Error: Cannot find module '/srv/missing.js'
    at Module._resolveFilename (node:internal/modules/cjs/loader:1225:15)
    at node:internal/main/run_main_module:36:49 {
  code: 'MODULE_NOT_FOUND',
}

Node.js v22.11.0
"""


def test_only_the_last_line_of_a_traceback_is_kept() -> None:
    assert stderr_summary(TRACEBACK) == "INFO starting RuntimeError: no such database"
    assert stderr_summary(TRACEBACK[30:]).endswith("RuntimeError: no such database")
    summary = stderr_summary(GROUP)
    assert summary.endswith(" ValueError: bad key")
    assert "File" not in summary
    assert stderr_summary(NODE).endswith("Error: Cannot find module '/srv/missing.js'")


def test_long_output_keeps_its_end_and_the_start_of_the_last_line() -> None:
    summary = stderr_summary("first\n" + "x" * 300 + "\nlast line")
    assert summary == "… last line"
    assert stderr_summary("ValueError: " + "y" * 1000).startswith("ValueError: yyy")
    assert len(stderr_summary("ValueError: " + "y" * 1000)) <= 300
    assert stderr_summary("\n \n") == ""
    assert stderr_summary("  indented, without a traceback\nplain") == "indented, without a traceback plain"


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected"),
    [
        (403, {}, b"", r"HTTP 403\b.*credentials"),
        (403, {"content-type": "application/json"}, b'{"error": {"message": "not yours"}}', r"\(not yours\)"),
        (429, {"retry-after": "30"}, b"", r"HTTP 429\b.*\b30 s\b"),
        (429, {"retry-after": "Sun, 15 Nov 2026 12:00:00 GMT"}, b"", "Sun, 15 Nov 2026 12:00:00 GMT"),
        (500, {"content-type": "text/plain"}, b"out of\nmemory", r"HTTP 500\b.*\(out of memory\)"),
        (502, {"content-type": "text/html"}, b"<html><title>Bad Gateway</title><body>x", r"\(Bad Gateway\)"),
        (503, {"content-type": "application/json"}, b'{"detail": "maintenance"}', r"\(maintenance\)"),
        (418, {}, b"", "(?i)HTTP 418: i'm a teapot"),
        (599, {}, b"", "HTTP 599"),
        (500, {"content-type": "application/json"}, b"[" * 100_000, "HTTP 500"),
    ],
)
def test_http_statuses_have_separate_reasons_with_the_servers_message(
    status: int, headers: dict[str, str], body: bytes, expected: str
) -> None:
    reason = status_reason(status, headers, body)
    assert re.search(expected, reason)
    assert len(reason) <= 300
