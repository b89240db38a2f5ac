"""A sandboxed session that changes a `.mcp.json` which a person has approved: the hub runs nothing of it."""

import json
import sys

import pytest

from claude_code_mcp.testing.script import script, tool
from tests.scenarios.hub_and_sessions.conftest import program
from tests.server.connection import Connection
from tests.support.bubblewrap import missing
from tests.support.waiting import until

from .conftest import Target

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def policy_text() -> str:
    return '[profiles.alice]\nallow = ["Bash"]\n[principals]\nalice = "alice"\nmallory = "alice"\n'


@pytest.fixture(scope="module")
def extra_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = tmp_path_factory.mktemp("hub") / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {}}))
    return {
        "CLAUDE_CODE_MCP_HUB": "all",
        "CLAUDE_CODE_MCP_HUB_FILE": str(own),
        "CLAUDE_CODE_MCP_TOOLSETS": "sessions,hub",
    }


def states(caller: Connection) -> dict[str, dict[str, object]]:
    servers = caller.call("claude_mcp_servers", action="list").data["servers"]
    return {server["name"]: server for server in servers}


def test_an_approved_server_that_a_session_has_changed_is_not_started(
    target: Target, alice: Connection, extra_environment: dict[str, str]
) -> None:
    project, escaped = target.place.project, target.place.root / "escaped"
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"tool": program()}}))
    approved = {"projects": {str(project): {"enabledMcpjsonServers": ["tool"], "hasTrustDialogAccepted": True}}}
    (target.place.home / ".claude.json").write_text(json.dumps(approved))
    until(lambda: "tool" in states(alice), "the project's server is not seen")
    started = f"import pathlib; pathlib.Path({str(escaped)!r}).touch()"
    changed = json.dumps({"mcpServers": {"tool": {"command": sys.executable, "args": ["-c", started]}}})
    command = f"cat > .mcp.json <<'END'\n{changed}\nEND"
    assert alice.create(script("go", tool("Bash", command=command), "done"), waitSeconds=50).status == "completed"
    assert json.loads((project / ".mcp.json").read_text()) == json.loads(changed)
    # What comes later in another file is seen after it.
    own = {"mcpServers": {"later": program()}}
    with open(extra_environment["CLAUDE_CODE_MCP_HUB_FILE"], "w") as file:
        json.dump(own, file)
    until(lambda: "later" in states(alice), "the operator's server is not seen")
    alice.call("claude_mcp_servers", action="status", server="later")
    alice.call("claude_mcp_servers", action="status", server="tool")
    assert "sessions in a sandbox can write to" in json.dumps(states(alice)["tool"])
    assert not escaped.exists()
