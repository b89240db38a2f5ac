"""Agents, servers and schemas that no version of Claude Code can use; the paths are those of the parts to blame."""

from typing import Any

import pytest

from claude_code_mcp.claude.option_checks import check_agents, check_definitions, check_servers, refused_argument
from claude_code_mcp.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.model.options import SessionOptions


def field_refused(**options: Any) -> str:
    with pytest.raises(InvalidArgument) as refused:
        check_definitions(SessionOptions(**options))
    return str(refused.value.data["field"])


def test_what_is_usable_passes() -> None:
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


def test_a_property_that_is_called_like_a_keyword_is_none() -> None:
    assert field_refused(output_schema={"properties": {"required": 5}}) == "output_schema.properties.required"


def test_a_schema_of_any_depth_is_refused_and_not_stumbled_over() -> None:
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


@pytest.mark.parametrize(
    ("stderr", "field", "words"),
    [
        ("Error: --json-schema is not a valid JSON Schema: data/type must be array", "output_schema", "data/type"),
        (
            "Error: Invalid --agents configuration:\nreviewer.effort: Invalid input\n(read from /tmp/x/agents.json)",
            "agents.reviewer.effort",
            "Invalid input",
        ),
        (
            "cli.js:51\n`);throw Error(`Invalid MCP configuration:\n   ^\n\nError: Invalid MCP configuration:\n"
            "mcpServers.x: Does not adhere to MCP server configuration schema\n    at f (file:///cli.js)",
            "mcp_servers.x",
            "Does not adhere",
        ),
        ("error: unknown option '--effort=low'", "effort", "has no --effort"),
    ],
)
def test_complaints_of_claude_code_name_the_option(stderr: str, field: str, words: str) -> None:
    refused = refused_argument(stderr)
    assert refused is not None
    assert refused.data["field"] == field
    assert words in refused.message


@pytest.mark.parametrize("stderr", ["", "Segmentation fault", "error: unknown option '--verbose'"])
def test_other_last_words_are_no_complaint(stderr: str) -> None:
    assert refused_argument(stderr) is None


def test_a_version_that_lists_no_agents_is_believed() -> None:
    check_agents(SessionOptions(agent="anybody"), {})


def status(name: str, state: str) -> dict[str, str]:
    return {"name": name, "status": state}


def test_only_strict_sessions_insist_on_their_servers() -> None:
    servers = {"x": {"command": "x"}}
    loose, strict = SessionOptions(mcp_servers=servers), SessionOptions(mcp_servers=servers, strict_mcp_config=True)
    assert check_servers(loose, [status("x", "failed")], last=False)
    assert not check_servers(strict, [status("x", "pending")], last=False)
    assert check_servers(strict, [status("x", "connected"), status("y", "failed")], last=False)
    for state, last in (("failed", False), ("needs-auth", False), ("pending", True)):
        with pytest.raises(UpstreamUnavailable):
            check_servers(strict, [status("x", state)], last=last)
    with pytest.raises(InvalidArgument):
        check_servers(loose, [], last=True)
