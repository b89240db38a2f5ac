"""Commands and HTTP callers use the server that runs."""

import json
import os
import secrets
import sys

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.client.connections import join
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script

from .support import SharedPlace, call, opened

SERVER = """\
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    info = {"name": "s", "version": "1"}
    version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    result = version if asked["method"] == "initialize" else {"tools": []}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@pytest.mark.soak
async def test_the_user_has_the_same_sessions_on_stdio_and_over_http(shared: SharedPlace, sandbox: Sandbox) -> None:
    token = secrets.token_urlsafe(32)
    refused = shared.command("shared", "start", "--http", "127.0.0.1:0")
    assert refused.returncode == 5
    assert "only with a token" in refused.stderr
    started = shared.command("shared", "start", "--json", "--http", "127.0.0.1:0", CLAUDE_CODE_MCP_TOKEN=token)
    url = json.loads(started.stdout)["http"]
    with opened(shared.client()) as client:
        made = call(
            client,
            1,
            "claude_create_session",
            prompt=script("Say it.", "Said."),
            workingDirectory=str(sandbox.project),
            waitSeconds=50,
        )
        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
            Client(streamable_http_client(url, http_client=http)) as caller,
        ):
            seen = await caller.call_tool("claude_get_status", {"sessionId": made["sessionId"]})
            assert seen.structured_content is not None
            assert seen.structured_content["result"] == "Said."
    assert len(shared.status()) == 1


@pytest.mark.soak  # tests/cli/test_running_sessions.py
def test_commands_ask_the_server_that_runs(shared: SharedPlace, sandbox: Sandbox) -> None:
    hub = shared.runtime.parent / "mcp.json"
    entry = {"command": sys.executable, "args": ["-c", SERVER]}
    hub.write_text(json.dumps({"mcpServers": {f"s{number}": entry for number in range(2)}}))
    shared.environment["CLAUDE_CODE_MCP_HUB_FILE"] = str(hub)
    assert "No shared server is running" in shared.command("stats").stderr
    with opened(shared.client()) as one, opened(shared.client()):
        made = call(
            one,
            1,
            "claude_create_session",
            prompt=script("Say it.", "Said."),
            workingDirectory=str(sandbox.project),
            waitSeconds=50,
        )
        listed = json.loads(shared.command("sessions", "list", "--json").stdout)
        assert [(entry["sessionId"], entry["state"]) for entry in listed] == [(made["sessionId"], "completed")]
        assert "[completed]" in shared.command("sessions", "list").stdout
        figures = json.loads(shared.command("stats", "--json").stdout)
        assert {sample["name"]: sample["value"] for sample in figures}["claude_code_mcp_turns_total"] == 1
        servers = json.loads(shared.command("mcp", "status", "--json").stdout)
        assert {(server["name"], server["state"]) for server in servers} == {("s0", "connected"), ("s1", "connected")}
        log = shared.log()
        assert "Traceback" not in log, log


def test_an_interface_calls_tools_over_the_socket(shared: SharedPlace) -> None:
    assert shared.command("shared", "start").returncode == 0
    with join(shared.environment) as client:
        assert client.call("claude_list_sessions") == {"sessions": []}
        assert client.request("tools/list")["tools"]
    assert os.environ.get("HOME") != shared.environment["HOME"]
