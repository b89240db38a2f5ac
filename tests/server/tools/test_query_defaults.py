"""The defaults of `claude_code_query` come from the environment, and each call can say otherwise."""

from types import SimpleNamespace
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.tools.query import QueryOptions, _session_options
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .conftest import StartCaller, ToolCaller, argv

DEFAULTS = {
    "CLAUDE_CODE_ALLOWED_TOOLS": "read, WRITE,bash(touch *),mcp__calc__add",
    "CLAUDE_CODE_DEFAULT_PERMISSION_MODE": "dontAsk",
}
TOUCH = script("Touch", tool("Bash", command="touch here"), "done")


def from_environment(**variables: str) -> dict[str, Any]:
    """The settings that these variables stand for."""
    settings = load_settings(variables)
    return {name: getattr(settings, name) for name in settings.model_fields_set}


ELSEWHERE = "/elsewhere"
OVERRIDDEN: list[tuple[dict[str, Any], str, Any]] = [
    ({}, "allowed_tools", ("Read", "Write", "Bash(touch *)", "mcp__calc__add")),
    ({"allowedTools": []}, "allowed_tools", ()),
    ({"allowedTools": ["Grep"]}, "allowed_tools", ("Grep",)),
    ({"disallowedTools": ["Bash"]}, "disallowed_tools", ("Bash",)),
    ({}, "permission_mode", "dontAsk"),
    ({"permissionMode": "plan"}, "permission_mode", "plan"),
    ({"cwd": ELSEWHERE}, "cwd", ELSEWHERE),
    ({"maxTurns": 3}, "max_turns", 3),
    ({"model": "opus"}, "model", "opus"),
    ({"appendSystemPrompt": "Speak of cheese."}, "append_system_prompt", "Speak of cheese."),
]


async def test_each_call_can_say_otherwise(start_service: StartService) -> None:
    call = SimpleNamespace(service=await start_service(**from_environment(**DEFAULTS)))
    for given, field, expected in OVERRIDDEN:
        options = _session_options(call, QueryOptions.model_validate(given))  # type: ignore[arg-type] # all it looks at
        assert getattr(options, field) == expected, given


async def test_the_defaults_hold_on_the_real_cli(start_caller: StartCaller, sandbox: Sandbox) -> None:
    where = sandbox.root / "default"
    where.mkdir()
    caller: ToolCaller = await start_caller(**from_environment(**DEFAULTS, CLAUDE_CODE_DEFAULT_CWD=str(where)))
    steps = [tool("Bash", command="touch here"), tool("Bash", command="mkdir denied")]
    result = await caller.client.call_tool("claude_code_query", {"prompt": script("Work", *steps, "done")})
    assert result.structured_content is not None
    assert "--permission-mode=dontAsk" in argv(caller, result.structured_content)
    assert [path.name for path in where.iterdir()] == ["here"]


@pytest.mark.soak
async def test_options_of_a_call_hold_on_the_real_cli(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(**from_environment(**DEFAULTS))
    less = {"model": "claude-sonnet-4-5", "appendSystemPrompt": "Speak of cheese.", "allowedTools": ["Read"]}
    bundle = await caller.ok("claude_code_query", prompt=TOUCH, options=less)
    assert bundle["result"]["success"]
    assert not (caller.sandbox.project / "here").exists()
    request, *_ = caller.requests(bundle)
    assert request.model == "claude-sonnet-4-5"
    assert "Speak of cheese." in request.system
    loop = script("Loop", tool("Bash", command="true"), tool("Bash", command="true"), "done")
    limited = {"maxTurns": 1, "allowedTools": ["Bash"], "permissionMode": "acceptEdits"}
    result = await caller.call("claude_code_query", prompt=loop, options=limited)
    assert result.structured_content is not None
    assert result.structured_content["result"]["error"].startswith("max_turns: ")
    assert "--permission-mode=acceptEdits" in argv(caller, result.structured_content)


async def test_the_tool_can_be_disabled(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(**from_environment(CLAUDE_CODE_MCP_TOOLSETS="sessions,code"))
    assert "claude_code_query" not in {tool.name for tool in (await caller.client.list_tools()).tools}
