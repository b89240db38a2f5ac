"""The defaults of `claude_code_query` come from the environment, and each call can say otherwise."""

from typing import Any

import psutil

from claude_code_mcp.config import load_settings
from claude_code_mcp.testing.script import script, tool

from .conftest import Caller, StartCaller

HELLO = script("Say hello", "hello")
TOUCH = script("Touch", tool("Bash", command="touch here"), "done")


def from_environment(**variables: str) -> dict[str, Any]:
    """The settings that these variables stand for."""
    settings = load_settings(variables)
    return {name: getattr(settings, name) for name in settings.model_fields_set}


def argv(caller: Caller, report: dict[str, Any]) -> list[str]:
    pid = caller.session(report).pid
    assert pid is not None
    return psutil.Process(pid).cmdline()


async def test_the_directory(start_caller: StartCaller) -> None:
    where, elsewhere = "default", "elsewhere"
    caller: Caller = await start_caller()
    for name in (where, elsewhere):
        (caller.sandbox.root / name).mkdir()
    default = from_environment(CLAUDE_CODE_DEFAULT_CWD=str(caller.sandbox.root / where))
    caller = await start_caller(**default)
    prompt = script("Where?", tool("Bash", command="pwd"), "${tool_result}")
    for options, expected in (({}, where), ({"cwd": str(caller.sandbox.root / elsewhere)}, elsewhere)):
        result = await caller.client.call_tool(
            "claude_code_query", {"prompt": prompt, "options": {"allowedTools": ["Bash"], **options}}
        )
        assert result.structured_content is not None
        assert result.structured_content["result"]["summary"] == str(caller.sandbox.root / expected)


async def test_the_permission_mode(start_caller: StartCaller) -> None:
    caller: Caller = await start_caller(**from_environment(CLAUDE_CODE_DEFAULT_PERMISSION_MODE="dontAsk"))
    bundle = await caller.ok("claude_code_query", prompt=TOUCH)
    assert "--permission-mode=dontAsk" in argv(caller, bundle)
    assert not (caller.sandbox.project / "here").exists()
    bundle = await caller.ok("claude_code_query", prompt=HELLO, options={"permissionMode": "plan"})
    assert "--permission-mode=plan" in argv(caller, bundle)


async def test_the_tools_that_need_no_question(start_caller: StartCaller) -> None:
    given = from_environment(
        CLAUDE_CODE_ALLOWED_TOOLS="read, WRITE,bash(touch *),mcp__calc__add",
        CLAUDE_CODE_DEFAULT_PERMISSION_MODE="dontAsk",
    )
    caller: Caller = await start_caller(**given)
    bundle = await caller.ok("claude_code_query", prompt=TOUCH)
    assert caller.session(bundle).options.allowed_tools == ("Read", "Write", "Bash(touch *)", "mcp__calc__add")
    assert (caller.sandbox.project / "here").exists()


async def test_a_call_can_allow_less_than_the_default(start_caller: StartCaller) -> None:
    given = from_environment(CLAUDE_CODE_ALLOWED_TOOLS="bash", CLAUDE_CODE_DEFAULT_PERMISSION_MODE="dontAsk")
    caller: Caller = await start_caller(**given)
    less: list[dict[str, list[str]]] = [{"allowedTools": []}, {"allowedTools": ["Read"]}, {"disallowedTools": ["Bash"]}]
    for options in less:
        bundle = await caller.ok("claude_code_query", prompt=TOUCH, options=options)
        assert bundle["result"]["success"]
        assert not (caller.sandbox.project / "here").exists()


async def test_model_turns_and_system_prompt(caller: Caller) -> None:
    options = {"model": "claude-sonnet-4-5", "appendSystemPrompt": "Speak of cheese."}
    bundle = await caller.ok("claude_code_query", prompt=HELLO, options=options)
    (request,) = caller.requests(bundle)
    assert request.model == "claude-sonnet-4-5"
    assert "Speak of cheese." in request.system
    loop = script("Loop", tool("Bash", command="true"), tool("Bash", command="true"), "done")
    result = await caller.call("claude_code_query", prompt=loop, options={"maxTurns": 1, "allowedTools": ["Bash"]})
    assert result.structured_content is not None
    assert result.structured_content["result"]["error"].startswith("max_turns: ")


async def test_the_tool_can_be_disabled(start_caller: StartCaller) -> None:
    caller: Caller = await start_caller(**from_environment(CLAUDE_CODE_MCP_TOOLSETS="sessions,code"))
    assert "claude_code_query" not in {tool.name for tool in (await caller.client.list_tools()).tools}
