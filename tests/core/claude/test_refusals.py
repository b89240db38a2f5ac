"""What a started Claude Code refuses, drops or cannot connect to, with the option that is to blame."""

import pytest

from claude_code_mcp.core.claude.option_checks import check_agents, check_servers, refused_argument
from claude_code_mcp.core.errors import InvalidArgument, UpstreamUnavailable
from claude_code_mcp.core.model.options import SessionOptions


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
        ("error: unknown option '--effort=low'", "effort", "--effort"),
        (
            "error: option '--permission-mode <mode>' argument 'dontAsk' is invalid. "
            "Allowed choices are acceptEdits, bypassPermissions, default, plan.",
            "permission_mode",
            "acceptEdits, bypassPermissions, default, plan",
        ),
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


def test_version_without_an_agent_list_is_accepted() -> None:
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
