"""Agents, servers and schemas that no version of Claude Code can use; the paths are those of the parts to blame."""

from typing import Any

import pytest

from claude_code_mcp.core.claude.option_checks import check_definitions
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import SessionOptions


def field_refused(**options: Any) -> str:
    with pytest.raises(InvalidArgument) as refused:
        check_definitions(SessionOptions(**options))
    return str(refused.value.data["field"])


def test_valid_response_passes() -> None:
    check_definitions(
        SessionOptions(
            agents={"a": {"description": "d", "prompt": "", "tools": ["Read"], "new": object()}},
            mcp_servers={
                "local": {"command": "x", "args": ["-y"], "env": {"A": "b"}, "new": 1},
                "remote": {"type": "http", "url": "https://example.org/mcp", "headers": {}},
                "later": {"type": "sse", "url": "${BASE}/mcp"},
                "socket": {"type": "ws", "url": "ws://localhost:1"},
                "own": {"type": "sdk", "name": "own"},
            },
            output_schema={
                "type": ["object", "null"],
                "properties": {"type": {"type": "string"}, "any": True},
                "anyOf": [{"required": ["type"]}, {"items": {"enum": [1]}}],
                "additionalProperties": False,
            },
        )
    )


def test_property_named_like_a_keyword_is_not_a_keyword() -> None:
    assert field_refused(output_schema={"properties": {"required": 5}}) == "output_schema.properties.required"


def test_deep_schema_is_refused_without_an_exception() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    check_definitions(SessionOptions(output_schema=schema))
    for _ in range(50_000):
        schema = {"items": schema}
    with pytest.raises(InvalidArgument, match="nested"):
        check_definitions(SessionOptions.model_construct(output_schema=schema))
    while schema:  # deep objects are not dropped all at once
        schema = schema.pop("items")
