"""Claude Code has this server registered, and this server runs Claude Code: the sessions start no copy of it."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.model.caller import LOCAL, Caller
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.tool_names import is_this_server
from claude_code_mcp.server.transports.http import own_addresses, read_address
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support.program import COMMAND
from tests.support.waiting import HANG_SECONDS

from .serving import Served

ALL_TOOLS_AT_ONCE = {
    "ENABLE_TOOL_SEARCH": "false",
    "MCP_CONNECTION_NONBLOCKING": "0",
    # Its own are too short for a busy machine: for one connection, and for how long its first turn waits for all.
    "MCP_TIMEOUT": str(int(HANG_SECONDS * 1000)),
    "MCP_CONNECT_TIMEOUT_MS": str(int(HANG_SECONDS * 1000)),
}
"""Claude Code offers every tool itself, and begins its first turn when all servers are connected: what is not offered
then is not there, and not just late."""


def register(sandbox: Sandbox, environment: dict[str, str], *arguments: str) -> None:
    """`claude mcp add`, as a person would."""
    claude = find_executable(None, environment)
    subprocess.run(
        [claude, "mcp", "add", *arguments],
        cwd=sandbox.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=HANG_SECONDS,
        check=True,
    )


async def tools_in_a_session(
    service: Any, sandbox: Sandbox, model: ScriptedModelThread, owner: str = LOCAL
) -> list[str]:
    """The tools of our registered server that the model of a new session is offered."""
    turn = await service.create(script("Go", "done"), SessionOptions(cwd=str(sandbox.project)), caller=Caller(owner))
    assert (await turn.outcome()).ok
    request = [request for request in model.requests if request.session_id == turn.session.id][-1]
    assert request.body is not None
    return [tool["name"] for tool in request.body["tools"] if tool["name"].startswith("mcp__ours")]


def started(log: Path) -> list[str]:
    """The arguments of every start."""
    return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def noted(tmp_path: Path) -> tuple[str, Path]:
    """Our server under its own name, which notes in a file that it was started."""
    log, program = tmp_path / "starts", tmp_path / "bin" / "claude-code-mcp"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexec {COMMAND} "$@"\n')
    program.chmod(0o755)
    return str(program), log


@pytest.mark.parametrize(
    "scope", ["user", *(pytest.param(scope, marks=pytest.mark.soak) for scope in ("local", "project"))]
)
async def test_a_registered_copy_is_not_even_started_and_one_behind_a_script_offers_nothing(
    scope: str,
    start_service: StartService,
    sandbox: Sandbox,
    environment: dict[str, str],
    model: ScriptedModelThread,
    noted: tuple[str, Path],
) -> None:
    program, log = noted
    register(sandbox, environment, "--scope", scope, "ours", "--", program, "serve", "--shared")
    register(sandbox, environment, "--scope", scope, "ours-too", "--", "sh", "-c", f"{program} serve")
    service = await start_service(extra=ALL_TOOLS_AT_ONCE)
    assert await tools_in_a_session(service, sandbox, model) == []
    assert started(log) == ["serve"]


@pytest.mark.soak  # tests/scenarios/security/test_children.py
async def test_a_copy_is_there_where_nesting_is_asked_for_and_not_for_a_caller_with_a_token(
    start_service: StartService,
    sandbox: Sandbox,
    environment: dict[str, str],
    model: ScriptedModelThread,
    noted: tuple[str, Path],
) -> None:
    """It would act for the local user."""
    program, log = noted
    register(sandbox, environment, "--scope", "user", "ours", "--", program, "serve")
    service = await start_service(extra=ALL_TOOLS_AT_ONCE, max_depth=1)
    assert await tools_in_a_session(service, sandbox, model, owner="alice") == []
    assert started(log) == []
    assert "mcp__ours__claude_create_session" in await tools_in_a_session(service, sandbox, model)
    assert started(log) == ["serve"]


@pytest.mark.soak  # a registered copy does not: above
@pytest.mark.parametrize("known", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["ours", "another server"])
async def test_a_session_does_not_call_back_to_the_server_that_runs_it(
    known: bool,
    address: Served,
    start_service: StartService,
    sandbox: Sandbox,
    environment: dict[str, str],
    model: ScriptedModelThread,
) -> None:
    """With the token that a person has registered it could answer the questions of other sessions."""
    assert address.url is not None
    header = f"Authorization: {address.headers['Authorization']}"
    register(sandbox, environment, "--transport", "http", "ours", address.url, "--header", header)
    service = await start_service(extra=ALL_TOOLS_AT_ONCE)
    if known:
        service.own_addresses.extend(own_addresses(read_address(address.url.split("/")[2])))
    offered = await tools_in_a_session(service, sandbox, model)
    assert (offered == []) is known


@pytest.mark.parametrize(
    "command_line",
    [
        "claude-code-mcp",
        "/opt/bin/claude-code-mcp serve --toolsets code",
        r"C:\Users\me\Scripts\claude-code-mcp.exe",
        "python3.12 -m claude_code_mcp serve",
        "/usr/bin/python -m claude_code_mcp",
        "uvx claude-code-mcp",
        "claude-code-mcp --shared",
        "uvx claude-code-mcp --toolsets=code --shared",
        "uvx --from claude-code-mcp[cli]==0.1.0 claude-code-mcp serve",
        "uvx claude-code-mcp@latest",
        "pipx run claude-code-mcp serve",
        "env A=b claude-code-mcp",
    ],
)
def test_this_server_is_recognized(command_line: str) -> None:
    command, *arguments = command_line.split(" ")
    assert is_this_server(command, arguments), json.dumps(command_line)


@pytest.mark.parametrize(
    "command_line",
    [
        "claude mcp serve",
        "claude-code-mcp claude mcp serve",
        "claude-code-mcp mcp list",
        "npx -y server-filesystem /src/claude-code-mcp",
        "python server.py --root claude-code-mcp --other",
        "claude-code-mcp-tools",
        "other",
    ],
)
def test_other_servers_are_not_mistaken_for_this_one(command_line: str) -> None:
    command, *arguments = command_line.split(" ")
    assert not is_this_server(command, arguments)
