"""Times in results: one format everywhere, whatever number they come from."""

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from claude_code_mcp.config import ALL_TOOLSETS, load_settings
from claude_code_mcp.model.text import iso
from claude_code_mcp.server.server import tools_of
from claude_code_mcp.server.tools.base import Tool
from claude_code_mcp.server.tools.code_reports import SessionInfo

TOOLS = tools_of(load_settings({}, toolsets=ALL_TOOLSETS, allow_disk_resume=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1794760274.25, "2026-11-15T16:31:14.250Z"),
        (1e300, "9999-12-31T23:59:59.999Z"),
        (math.nan, "1970-01-01T00:00:00.000Z"),
        (-1e300, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_iso_8601_in_utc(seconds: float, text: str) -> None:
    assert iso(seconds) == text


def test_it_reads_back_as_the_same_moment() -> None:
    assert datetime.fromisoformat(iso(1794760274.25)) == datetime.fromtimestamp(1794760274.25, UTC)


def times(schema: Any, path: str = "") -> dict[str, Any]:
    """Every property that is a moment by its name, with its type."""
    if not isinstance(schema, dict):
        return {}
    found = {}
    for name, about in (schema.get("properties") or {}).items():
        if name.endswith("At") or name in ("timestamp", "at", "time"):
            found[f"{path}.{name}"] = about.get("type")
        found |= times(about, f"{path}.{name}")
    return found | times(schema.get("items"), f"{path}[]")


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_no_result_has_a_time_that_is_a_number(tool: Tool[Any]) -> None:
    assert set(times(tool.listing().output_schema).values()) <= {"string"}


def test_the_guard_sees_times() -> None:
    assert times(TOOLS["claude_get_status"].listing().output_schema) == {".pendingInputs[].expiresAt": "string"}
    assert set(times(SessionInfo.model_json_schema()).values()) == {"string"}
