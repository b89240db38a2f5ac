"""Agents, schemas and MCP servers that cannot be used are refused by the name that the caller wrote."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.server.tools.arguments import checked_arguments
from claude_code_mcp.server.tools.sessions import GetStatus
from claude_code_mcp.testing.script import script

from .conftest import StartCaller, ToolCaller

HELLO = script("Say hello", "hello")
FINE = {"description": "Reviews code", "prompt": "You review only."}
SERVER = {"command": sys.executable, "args": [str(Path(__file__).parents[2] / "hub" / "a_server.py")]}


def agent(**changes: Any) -> dict[str, Any]:
    return {"agents": {"reviewer": {**FINE, **changes}}}


def server(**entry: Any) -> dict[str, Any]:
    return {"mcpServers": {"x": entry}}


def schema(**changes: Any) -> dict[str, Any]:
    return {"outputFormat": {"type": "json_schema", "schema": {"type": "object", **changes}}}


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"agents": {"reviewer": "kind"}}, "agents.reviewer"),
    ({"agents": {"reviewer": {"description": "Reviews"}}}, "agents.reviewer.prompt"),
    ({"agents": {"reviewer": {"prompt": "Review"}}}, "agents.reviewer.description"),
    (agent(description=""), "agents.reviewer.description"),
    (agent(tools="Read"), "agents.reviewer.tools"),
    (agent(maxTurns=0), "agents.reviewer.maxTurns"),
    (agent(effort="heroic"), "agents.reviewer.effort"),  # only Claude Code knows
    (agent(permissionMode="kind"), "agents.reviewer.permissionMode"),
    ({"agent": "nobody"}, "agent"),
    ({**agent(), "agent": "writer"}, "agent"),
    (server(), "mcpServers.x.command"),
    (server(command=""), "mcpServers.x.command"),
    (server(command="true", args="-v"), "mcpServers.x.args"),
    (server(command="true", env={"A": 5}), "mcpServers.x.env"),
    (server(type="pigeon"), "mcpServers.x.type"),
    (server(type="http"), "mcpServers.x.url"),
    (server(type="http", url="somewhere"), "mcpServers.x.url"),
    (server(type="http", url="http://[", headers={}), "mcpServers.x.url"),
    (server(type="sse", url="http://127.0.0.1:9", headers={"A": 5}), "mcpServers.x.headers"),
    ({"mcpServers": {"claude-in-chrome": SERVER}}, "mcpServers.claude-in-chrome"),  # Claude Code's own
    (schema(type="banana"), "outputFormat.schema.type"),
    (schema(properties=5), "outputFormat.schema.properties"),
    (schema(properties={"a": {"enum": []}}), "outputFormat.schema.properties.a.enum"),
    (schema(required="a"), "outputFormat.schema.required"),
    (schema(items=[{"type": "text"}]), "outputFormat.schema.items.0.type"),
    (schema(properties={"a": {"type": "string", "pattern": "("}}), "outputFormat.schema"),  # only Claude Code knows
    (schema(**{"$ref": "#/definitions/none"}), "outputFormat.schema"),
    ({"cwd": "/no/such/place"}, "cwd"),
    ({"permissionMode": "kind"}, "permissionMode"),
    ({"hubServers": ["none"]}, "hubServers"),
    ({"additionalDirectories": ["/no/such/place"]}, "additionalDirectories"),
]


@pytest.mark.soak
async def test_the_field_is_named_as_it_was_written_and_nothing_is_left(caller: ToolCaller) -> None:
    asked_before = len(caller.model.requests)
    for given, field in WRONG:
        code, message = await caller.refused("claude_code", prompt=HELLO, **given)
        assert code == "INVALID_ARGUMENT", message
        assert message.startswith((f"{field}:", f"{field} '")), message
        assert field != "agent" or "general-purpose" in message, "a missing agent is told which there are"
        assert caller.service.sessions() == []
    assert await caller.service.stored.entries() == []
    assert len(caller.model.requests) == asked_before, "the model was not asked, so nothing was spent"


async def test_other_families_name_their_own_fields(caller: ToolCaller) -> None:
    _, message = await caller.refused("claude_create_session", prompt=HELLO, workingDirectory="/no/such/place")
    assert message.startswith("workingDirectory: ")
    _, message = await caller.refused("claude_create_session", prompt=HELLO, permissionMode="kind")
    assert message.startswith("permissionMode: 'kind'")
    _, message = await caller.refused("claude_code_query", prompt=HELLO, options={"permissionMode": "kind"})
    assert message.startswith("options.permissionMode: 'kind'")
    _, message = await caller.refused("claude_code_query", prompt=HELLO, options={"cwd": "/no/such/place"})
    assert message.startswith("options.cwd: ")


@pytest.mark.soak
async def test_a_session_on_disk_is_not_resumed_with_an_agent_that_is_missing(start_caller: StartCaller) -> None:
    first = await start_caller()
    session = (await first.ok("claude_code", prompt=HELLO))["sessionId"]
    await first.service.__aexit__()
    caller = await start_caller(allow_disk_resume=True)
    code, message = await caller.refused("claude_code_reply", sessionId=session, prompt=HELLO, agent="nobody")
    assert (code, message.partition(":")[0]) == ("INVALID_ARGUMENT", "agent")
    assert caller.service.sessions() == []
    report = await caller.ok("claude_code_reply", sessionId=session, prompt=script("Go on", "gladly"))
    assert report["result"] == "gladly", "it can be resumed as it is"


STRICT: list[tuple[dict[str, Any], str]] = [
    (server(command="/no/such/program"), "ENOENT"),
    (server(command="false"), "closed"),
    (server(command="tail", args=["-f", "/dev/null"]), "timed out"),
    (server(type="http", url="http://127.0.0.1:9/mcp"), "ECONNREFUSED|probe timed out"),
]


@pytest.mark.parametrize(
    ("given", "reason"),
    # Why it did not connect is in the words of Claude Code.
    [STRICT[0], *(pytest.param(*case, marks=pytest.mark.soak) for case in STRICT[1:3]), STRICT[3]],
    ids=["no program", "ends", "hangs", "refuses"],
)
async def test_a_strict_session_without_one_of_its_servers_is_refused(
    caller: ToolCaller, given: dict[str, Any], reason: str
) -> None:
    asked_before = len(caller.model.requests)
    code, message = await caller.refused(
        "claude_code", prompt=HELLO, strictMcpConfig=True, env={"MCP_TIMEOUT": "1500"}, **given
    )
    assert code == "UPSTREAM_UNAVAILABLE"
    assert message.startswith("mcpServers.x: the server did not connect: ")
    assert re.search(reason, message)
    assert caller.service.sessions() == []
    assert len(caller.model.requests) == asked_before


@pytest.mark.soak
async def test_without_strictness_a_server_may_be_missing(caller: ToolCaller) -> None:
    report = await caller.ok("claude_code", prompt=HELLO, **server(command="false"))
    assert report["result"] == "hello"


async def test_invalid_executable_is_named_as_the_caller_wrote_it(caller: ToolCaller) -> None:
    code, message = await caller.refused("claude_code", prompt=HELLO, pathToClaudeCodeExecutable="/nowhere/claude")
    assert code == "CLI_NOT_FOUND"
    assert message.startswith("pathToClaudeCodeExecutable names '/nowhere/claude'")
    assert "CLAUDE_CODE_PATH" not in message


async def test_a_value_of_a_setting_is_named_by_its_variable(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(default_permission_mode="heroic", default_cwd="/nowhere/at/all")
    code, message = await caller.refused("claude_code_query", prompt=HELLO)
    assert (code, message.split()[0]) == ("INVALID_ARGUMENT", "CLAUDE_CODE_DEFAULT_PERMISSION_MODE:")
    _, message = await caller.refused("claude_code_query", prompt=HELLO, options={"permissionMode": "bold"})
    assert message.split()[0] == "options.permissionMode:"
    _, message = await caller.refused("claude_code", prompt=HELLO, permissionMode="bold")
    assert message.split()[0] == "permissionMode:"
    _, message = await caller.refused("claude_create_session", prompt=HELLO)
    assert message.startswith("CLAUDE_CODE_DEFAULT_CWD")
    _, message = await caller.refused("claude_create_session", prompt=HELLO, workingDirectory="/nowhere/else")
    assert message.startswith("workingDirectory")


@pytest.mark.soak
async def test_every_family_reports_an_unknown_tool(caller: ToolCaller) -> None:
    expected = "allowedTools: there is no tool named 'Bsh' (did you mean Bash?)."
    report = await caller.ok("claude_code", prompt=HELLO, allowedTools=["Bsh"])
    assert report["notice"] == expected
    status = await caller.ok("claude_get_status", sessionId=report["sessionId"])
    assert status["notice"] == expected
    bundle = await caller.ok("claude_code_query", prompt=HELLO, options={"allowedTools": ["Bsh"]})
    assert bundle["notice"] == expected


def test_a_refusal_says_what_is_wrong_and_nothing_of_the_library_that_found_it() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        checked_arguments(GetStatus, {"sessionId": "nope"})
    assert refusal.value.data["field"] == "sessionId"
    assert refusal.value.message.startswith("sessionId: ")
