"""What holds for every tool, on every wire."""

import asyncio
import json

import jsonschema  # type: ignore[import-untyped]
import pytest
from mcp.shared.exceptions import MCPError

from .connection import Connection, check

NAMES = [
    "claude_create_session",
    "claude_send_message",
    "claude_get_status",
    "claude_respond",
    "claude_interrupt",
    "claude_list_sessions",
]


@pytest.mark.promise("tools.size")
def test_definitions_of_the_six_tools_have_less_than_5600_bytes(client: Connection) -> None:
    """Clients use the schema of a result and the title themselves, and do not show them to their model."""
    tools = [
        client.tools[name].model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"output_schema", "title"})
        for name in NAMES
    ]
    assert len(json.dumps({"tools": tools}, separators=(",", ":"), ensure_ascii=False).encode()) < 5600


@pytest.mark.promise("tools.annotations")
def test_tools_tell_what_they_do(client: Connection) -> None:
    hints = {name: client.tools[name].annotations for name in NAMES}
    reading = {name for name, hint in hints.items() if hint and hint.read_only_hint}
    destructive = {name for name, hint in hints.items() if hint and hint.destructive_hint}
    outside = {name for name, hint in hints.items() if hint and hint.open_world_hint}
    assert reading == {"claude_get_status", "claude_list_sessions"}
    assert destructive == outside == {"claude_create_session", "claude_send_message", "claude_respond"}


@pytest.mark.promise("tools.schema")
def test_refusals_fit_the_schema_of_every_tool(client: Connection) -> None:
    for name in NAMES:
        refused = client.call(name, nonsense=True)
        assert refused.code == "INVALID_ARGUMENT"
        assert "nonsense: unknown field" in refused.refusal


@pytest.mark.promise("tools.schema")
def test_the_check_itself_notices_what_does_not_fit(client: Connection, warm: str) -> None:
    reply = client.look(warm)
    assert reply.raw.structured_content is not None
    reply.raw.structured_content["status"] = "asleep"
    with pytest.raises(jsonschema.ValidationError, match="'asleep' is not one of"):
        check(client.tools["claude_get_status"], reply)


@pytest.mark.promise("tools.unknown")
@pytest.mark.parametrize("name", ["claude_no_such_tool", "", "Claude_Get_Status", "x" * 2000])
def test_an_unknown_tool_is_an_error_of_the_protocol(client: Connection, name: str) -> None:
    with pytest.raises(MCPError) as refused:
        asyncio.run_coroutine_threadsafe(client.client.call_tool(name, {}), client._loop).result(30)
    assert refused.value.error.code == -32602
    assert len(refused.value.error.message) < 200
