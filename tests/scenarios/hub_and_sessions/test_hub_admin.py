"""Who may change the servers that all share, and what nobody can change through a tool."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.hub.config_files import ConfigPaths, HubConfig, read_configuration
from claude_code_mcp.hub.factory import hub_configuration

from .conftest import Caller, Rig, StartCaller, StartRig, program, rules

DENIED = "PERMISSION_DENIED"
STEERING = ("reconnect", "enable", "disable", "authenticate")


async def test_steering_is_reported_to_observers(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub")
    caller: Caller = await connect(rig)
    for action in ("reconnect", "disable", "enable"):
        await caller.ok("claude_mcp_servers", action=action, server="x")
    await caller.ok("claude_mcp_servers", action="list")
    recorded = [(one.who, one.details["action"], one.details["server"]) for one in rig.notes.steered]
    assert recorded == [("local", "reconnect", "x"), ("local", "disable", "x"), ("local", "enable", "x")]


@pytest.mark.parametrize("action", STEERING)
async def test_a_caller_whose_profile_does_not_allow_it_changes_nothing(
    start_rig: StartRig, connect: StartCaller, action: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, rules("steer_hub = false"), toolsets="hub")
    caller: Caller = await connect(rig)
    code, _ = await caller.refused("claude_mcp_servers", action=action, server="x")
    assert code == DENIED
    assert rig.hub.status("x")[0].state == "pending"
    assert [one.details["what"] for one in rig.notes.refused] == [f"{action} x"]
    assert rig.notes.steered == []
    (one,) = (await caller.ok("claude_mcp_servers", action="status", server="x"))["servers"]
    assert one["state"] == "connected", "looking is still allowed"


def _project(tmp_path: Path, project: dict[str, Any], approvals: dict[str, Any]) -> HubConfig:
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": project}))
    claude_file = tmp_path / "claude.json"
    claude_file.write_text(json.dumps({"projects": {str(tmp_path): approvals}}))
    return read_configuration(ConfigPaths(tmp_path / "own.json", claude_file, tmp_path), {})


@pytest.mark.parametrize("entry", [{}, {"disabled": True}], ids=["plain", "calls itself disabled"])
@pytest.mark.parametrize("approvals", [{}, {"disabledMcpjsonServers": ["evil"]}], ids=["never asked", "rejected"])
async def test_calls_start_no_program_of_an_unapproved_project(
    start_rig: StartRig, connect: StartCaller, tmp_path: Path, entry: dict[str, Any], approvals: dict[str, Any]
) -> None:
    flag = tmp_path / "started"
    evil = {"command": "sh", "args": ["-c", f"touch {flag}"], **entry}
    rig: Rig = await start_rig(_project(tmp_path, {"evil": evil}, approvals), toolsets="hub,hub-tools")
    caller: Caller = await connect(rig)
    for action in ("enable", "authenticate", "reconnect", "status", "enable"):
        await caller.call("claude_mcp_servers", action=action, server="evil")
    code, message = await caller.refused("claude_mcp_servers", action="enable", server="evil")
    assert code == DENIED
    assert "Only a person" in message
    await caller.names()
    assert rig.hub.offered(None) == ()
    assert rig.hub.status("evil")[0].state == "disabled"
    assert not flag.exists()
    assert any(one.details["what"] == "enable evil" for one in rig.notes.refused)


async def test_approved_server_can_be_disabled_and_enabled(
    start_rig: StartRig, connect: StartCaller, tmp_path: Path
) -> None:
    configured = _project(tmp_path, {"x": program()}, {"enabledMcpjsonServers": ["x"]})
    rig: Rig = await start_rig(configured, toolsets="hub")
    caller: Caller = await connect(rig)
    await caller.ok("claude_mcp_servers", action="disable", server="x")
    (one,) = (await caller.ok("claude_mcp_servers", action="enable", server="x"))["servers"]
    assert one["state"] == "pending"


# -- itself ---------------------------------------------------------------------------------------------------


async def test_the_hub_does_not_start_this_very_server(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"us": {"command": "claude-code-mcp"}}, toolsets="hub")
    caller: Caller = await connect(rig)
    (one,) = (await caller.ok("claude_mcp_servers", action="status", server="us"))["servers"]
    assert (one["state"], one["reason"]) == ("disabled", "it is this server itself")
    code, _ = await caller.refused("claude_mcp_servers", action="enable", server="us")
    assert code == DENIED


@pytest.mark.parametrize(
    ("url", "itself"),
    [
        ("http://127.0.0.1:8765/mcp", True),
        ("http://localhost:8765/mcp", True),
        ("http://[::1]:8765/mcp", True),
        ("http://here.example:8765/mcp", True),
        ("http://127.0.0.1:8766/mcp", False),
        ("http://there.example:8765/mcp", False),
        ("http://127.0.0.1:nonsense/mcp", False),
    ],
)
def test_the_hub_does_not_connect_to_the_address_that_it_serves(tmp_path: Path, url: str, itself: bool) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"mcpServers": {"us": {"type": "http", "url": url}}}))
    settings = load_settings({}, hub_file=own)
    server = hub_configuration(settings, {}, serving_at=("here.example", 8765)).servers["us"]
    assert server.locked is itself
    assert (server.barred is not None) is itself
