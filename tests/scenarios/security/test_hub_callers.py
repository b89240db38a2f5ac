"""A caller with a valid token, and the MCP servers that it shares with others."""

import json
from pathlib import Path

import psutil
import pytest

from tests.scenarios.hub_and_sessions.conftest import program
from tests.server.connection import Connection

from .conftest import Target

DENIED = "PERMISSION_DENIED"


@pytest.fixture(scope="module")
def extra_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    own = tmp_path_factory.mktemp("hub") / "mcp.json"
    own.write_text(json.dumps({"mcpServers": {"shared": program()}}))
    return {
        "CLAUDE_CODE_MCP_HUB": "own",
        "CLAUDE_CODE_MCP_PRINCIPAL_SIGN_IN": "0",  # otherwise nobody shares anything
        "CLAUDE_CODE_MCP_HUB_FILE": str(own),
        "CLAUDE_CODE_MCP_TOOLSETS": "sessions,hub",
    }


def state_of_the_shared_one(caller: Connection) -> str:
    (one,) = caller.call("claude_mcp_servers", action="status", server="shared").data["servers"]
    return str(one["state"])


def test_a_caller_cannot_change_a_server_for_the_others(target: Target, alice: Connection, mallory: Connection) -> None:
    assert state_of_the_shared_one(alice) == "connected"
    for action in ("disable", "reconnect", "enable", "authenticate"):
        assert mallory.call("claude_mcp_servers", action=action, server="shared").code == DENIED
        target.audit("refused", 1, who="mallory", what=f"{action} shared", code=DENIED)
    assert state_of_the_shared_one(alice) == "connected"
    assert target.audit("hub_steered") == []


def test_the_programs_of_shared_servers_see_no_token_of_the_server(target: Target, alice: Connection) -> None:
    """The environment of every process below the server, as one that runs beside them could read it."""
    assert state_of_the_shared_one(alice) == "connected"
    below = psutil.Process(target.server.process.pid).children(recursive=True)
    seen = [item.environ() for item in below]
    assert any("a_server.py" in " ".join(item.cmdline()) for item in below)
    for environment in seen:
        names = {name for name in environment if name.startswith("CLAUDE_CODE_MCP_")}
        assert names <= {"CLAUDE_CODE_MCP_MARK", "CLAUDE_CODE_MCP_DEPTH", "CLAUDE_CODE_MCP_SUPERVISOR"}
    secrets = Path(target.environment["CLAUDE_CODE_MCP_TOKENS_FILE"]).read_text().split()[1::2]
    shown = [" ".join(item.cmdline()) for item in below] + [json.dumps(item) for item in seen]
    assert not [text for text in shown for secret in secrets if secret in text]
