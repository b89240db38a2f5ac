"""The real command with a hub: its own file, and the servers that Claude Code is configured with."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.startup.shared.support import shared_place
from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS

from .conftest import A_SERVER, LEGACY, MODERN, Caller

_COUNTED = (
    "import os, runpy, sys; open(sys.argv[1], 'a').write(f'{os.getpid()}\\n'); "
    "runpy.run_path(sys.argv[2], run_name='__main__')"
)


def counted(file: Path) -> dict[str, Any]:
    """A server that leaves a line in the file at each start."""
    return {"command": sys.executable, "args": ["-S", "-c", _COUNTED, str(file), A_SERVER]}


def starts(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


@asynccontextmanager
async def served(
    environment: Mapping[str, str], cwd: Path, mode: str = LEGACY, **settings: str
) -> AsyncIterator[Caller]:
    own = {f"CLAUDE_CODE_MCP_{name}": value for name, value in settings.items()}
    server = StdioServerParameters(command=warm_commands.program(), env={**environment, **own}, cwd=str(cwd))
    async with Client(stdio_client(server), mode=mode) as client:
        yield Caller(client)


async def run(caller: Caller, *steps: Any, **arguments: Any) -> str:
    """A session from its start to its end; what the last tool said."""
    prompt = script("Go", *steps, "done")
    given = {"prompt": prompt, "allowedTools": ["mcp__x"], "waitSeconds": 40, **arguments}
    report = await caller.ok("claude_create_session", **given)
    assert report["status"] == "completed", report
    return str(report["sessionId"])


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "starts"


@pytest.mark.soak  # of a server over HTTP: tests/scenarios/security/test_principal_sign_in.py
@pytest.mark.parametrize("mode", [LEGACY, MODERN], ids=["2025", "2026"])
async def test_the_servers_of_our_own_file_are_for_sessions_and_clients(
    sandbox: Sandbox, environment: dict[str, str], model: ScriptedModelThread, note: Path, mode: str
) -> None:
    file, policy = sandbox.root / "mcp.json", sandbox.root / "policy.toml"
    file.write_text(json.dumps({"mcpServers": {"x": counted(note)}}), encoding="utf-8")
    policy.write_text('default = "me"\n[profiles.me]\nbase = "local"\nallow = ["mcp__x__pid"]\n', encoding="utf-8")
    settings = {"HUB_FILE": str(file), "TOOLSETS": "sessions,hub,hub-tools", "POLICY": str(policy)}
    async with served(environment, sandbox.project, mode, **settings) as caller:
        names = await caller.names()
        assert {"claude_create_session", "claude_mcp_servers", "mcp__x__pid"} <= set(names)
        pid = (await caller.text("mcp__x__pid")).split()[0]
        assert (await caller.refused("mcp__x__echo"))[0] == "PERMISSION_DENIED"
        session = await run(caller, tool("mcp__x__pid"))
        (line_of_server,) = [
            one.tool_results[0].text for one in model.requests if one.session_id == session and one.tool_results
        ]
        assert line_of_server.split()[0] == pid
        none = await run(caller, hubServers=[])
        assert not any("mcp__x" in name for one in model.requests if one.session_id == none for name in one.tools)
        (one,) = (await caller.ok("claude_mcp_servers", action="list"))["servers"]
        assert (one["name"], one["state"], one["scope"]) == ("x", "connected", "own")
    assert starts(note) == 1
    assert not psutil.pid_exists(int(pid))


@pytest.mark.soak  # in a session that runs: test_hub_changes.py
@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.soak), True], ids=["own", "shared"])
async def test_the_first_server_is_there_without_a_restart(
    sandbox: Sandbox, environment: dict[str, str], model: ScriptedModelThread, note: Path, shared: bool
) -> None:
    file = sandbox.root / "not" / "there" / "mcp.json"  # as on a fresh machine: not even the directories are there
    settings = {"HUB_FILE": str(file), **({"SHARED": "1"} if shared else {})}
    with shared_place(sandbox, environment) as place:
        async with served(place.environment, sandbox.project, **settings) as caller:
            session = await run(caller)
            entry = counted(note)
            line = ["mcp", "add", "x", "--", entry["command"], *entry["args"]]
            added = await asyncio.to_thread(place.command, *line, CLAUDE_CODE_MCP_HUB_FILE=str(file))
            assert added.returncode == 0, added.stderr
            async with asyncio.timeout(HANG_SECONDS):
                while not await has_tool(caller, session):  # noqa: ASYNC110 - nobody says when the session was told
                    await asyncio.sleep(0.1)
            if not shared:
                again = await run(caller, tool("mcp__x__pid"))
                results = [one.tool_results for one in model.requests if one.session_id == again and one.tool_results]
                assert results[0][0].text.split()[0].isdecimal()
    assert starts(note) == 1, "sessions that run and those that begin later share it"


async def has_tool(caller: Caller, session: str) -> bool:
    message = script("Again", tool("mcp__x__pid"), "done")
    report = await caller.ok("claude_send_message", sessionId=session, message=message, waitSeconds=40)
    return "No such tool" not in str(report["recentOutput"])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("hub", "expected"),
    [("all", 1), pytest.param("off", 2, marks=pytest.mark.soak)],  # test_hub_factory.py shows that "off" finds none
)
async def test_a_server_of_claude_code_itself_is_started_once_for_all_sessions(
    sandbox: Sandbox, environment: dict[str, str], note: Path, hub: str, expected: int
) -> None:
    configuration = sandbox.home / ".claude.json"
    known = json.loads(configuration.read_text()) if configuration.exists() else {}
    configuration.write_text(json.dumps({**known, "mcpServers": {"x": counted(note)}}), encoding="utf-8")
    async with served(environment, sandbox.project, HUB=hub) as caller:
        for _ in range(2):
            await run(caller, tool("mcp__x__pid"))
    assert starts(note) == expected
