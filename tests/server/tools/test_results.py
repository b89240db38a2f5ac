"""Every result is declared: its schema has all of its fields, and the client of the tests compares each one with it."""

from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.tools import sessions
from claude_code_mcp.server.tools.session_report import SessionReport
from claude_code_mcp.server.tools.toolsets import tools_of
from claude_code_mcp.testing.script import script
from tests.support.tool_schemas import strict

from .conftest import ToolCaller

SAME = ("claude_create_session", "claude_send_message", "claude_respond", "claude_get_status")
ALL = load_settings({"CLAUDE_CODE_MCP_TOOLSETS": "sessions,code,query,care,hub,hub-search"})


def untyped(schema: Any, path: str = "") -> list[str]:
    """The fields without a type. What the model itself made has none."""
    found = []
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if not field.keys() & {"type", "enum", "oneOf", "const"}:
            found.append(here)
        found += untyped(field, here) + untyped(field.get("items", {}), f"{here}[]")
    return found


def test_tools_that_report_a_session_have_one_schema() -> None:
    listed = {name: tools_of(ALL)[name].listing().output_schema for name in SAME}
    assert all(schema == listed["claude_get_status"] for schema in listed.values())
    code, reply = (tools_of(ALL)[name].listing().output_schema for name in ("claude_code", "claude_code_reply"))
    assert code == reply


@pytest.mark.parametrize("name", [name for name, tool in tools_of(ALL).items() if tool.output is not None])
def test_every_field_of_a_result_has_a_type(name: str) -> None:
    schema = tools_of(ALL)[name].listing().output_schema
    assert schema is not None
    assert {"error"} <= schema["properties"].keys()
    assert {path.rpartition(".")[2] for path in untyped(schema)} <= {"structuredOutput", "systemPrompt", "agents"}


class Undeclared(SessionReport):
    surprise: str = "?"


async def test_a_field_that_is_not_declared_fails_the_call(caller: ToolCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    started = await caller.ok("claude_create_session", prompt=script("Say hello", "hello"), waitSeconds=55)
    assert started["result"] == "hello"

    undeclared = Undeclared(session_id=started["sessionId"])
    monkeypatch.setattr(sessions, "report", lambda *_, **__: undeclared)
    with pytest.raises(RuntimeError, match="surprise"):
        await caller.call("claude_get_status", sessionId=started["sessionId"])


def test_strict_schemas_have_no_room_for_other_fields() -> None:
    schema = {"properties": {"rows": {"type": "array", "items": {"type": "object", "properties": {"a": {}}}}}}
    inner = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    rows = {"type": "array", "items": inner}
    assert strict(schema) == {"properties": {"rows": rows}, "additionalProperties": False}
