"""Every parameter of `claude_code` has an effect that is seen on the real CLI."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.server.tools.code import ClaudeCode
from claude_code_mcp.testing.script import script, stall, structured, tool
from tests.support.repositories import repository

from .conftest import ToolCaller, argv
from .test_images import png, seen, url

Check = Callable[[ToolCaller], Awaitable[None]]
CHECKS: dict[Check, tuple[str, ...]] = {}
"""The parameters whose effect each check sees."""


def checks(*parameters: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        CHECKS[check] = parameters
        return check

    return register


def body(caller: ToolCaller, report: dict[str, Any]) -> dict[str, Any]:
    found = caller.requests(report)[0].body
    assert found is not None
    return dict(found)


HELLO = script("Say hello", "hello")


@checks("permissionMode")
async def nobody_is_asked_by_default(caller: ToolCaller) -> None:
    prompt = script("Touch", tool("Bash", command="touch there"), "${tool_result}")
    report = await caller.ok("claude_code", prompt=prompt)
    assert not (caller.sandbox.project / "there").exists()
    assert [denial["tool_name"] for denial in report["permissionDenials"]] == ["Bash"]


@checks("maxTurns")
async def turns_are_limited(caller: ToolCaller) -> None:
    prompt = script("Loop", tool("Bash", command="true"), tool("Bash", command="true"), "done")
    result = await caller.call("claude_code", prompt=prompt, allowedTools=["Bash"], maxTurns=1)
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["errorSubtype"] == "error_max_turns"


REVIEWER = {"reviewer": {"description": "Reviews code", "prompt": "You review only."}}


@checks("maxBudgetUsd")
async def the_budget_is_kept(caller: ToolCaller) -> None:
    prompt = script("Spend", tool("Bash", command="true"), tool("Bash", command="true"), "done")
    result = await caller.call("claude_code", prompt=prompt, allowedTools=["Bash"], maxBudgetUsd=0.0001)
    assert result.is_error
    assert result.structured_content is not None
    assert result.structured_content["errorSubtype"] == "error_max_budget_usd"


@checks("timeout")
async def the_turn_is_limited_in_time(caller: ToolCaller) -> None:
    code, message = await caller.refused("claude_code", prompt=script("Wait", stall("…")), timeout=1500)
    assert code == "TIMEOUT"
    assert "can be continued" in message


@checks(
    *("effort", "betas", "additionalDirectories", "disallowedTools", "fallbackModel", "debug", "debugFile"),
    *("includePartialMessages", "env", "enableFileCheckpointing", "systemPrompt", "agents", "images"),
    *("pathToClaudeCodeExecutable", "persistSession", "stayOnMachine", "onLimit"),
)
async def many_options_hold_side_by_side(caller: ToolCaller) -> None:
    """Each start of the CLI takes half a second: these do not depend on each other."""
    other, log, link = (caller.sandbox.root / name for name in ("other", "debug.log", "another-claude"))
    other.mkdir()
    (other / "note").write_text("found it", encoding="utf-8")
    link.symlink_to(find_executable())
    read = script("Read", tool("Read", file_path=str(other / "note")), "${tool_result}")
    report = await caller.ok(
        "claude_code",
        prompt=read,
        effort="low",
        betas=["context-1m-2025-08-07"],
        additionalDirectories=[str(other)],
        disallowedTools=["Bash"],
        fallbackModel="claude-haiku-4-5",
        debug=True,
        debugFile=str(log),
        includePartialMessages=False,
        env={"GREETING": "hi"},
        enableFileCheckpointing=True,
        systemPrompt={"type": "preset", "preset": "claude_code", "append": "And of wine."},
        agents=REVIEWER,
        images=[url(png())],
        pathToClaudeCodeExecutable=str(link),
        persistSession=False,
        stayOnMachine=True,
        onLimit="wait",
    )
    assert caller.session(report).options.on_limit == "wait", (
        "what that means is in tests/core/sessions/test_usage_limits.py"
    )
    assert caller.session(report).options.stay_on_machine, "what that means in a fleet is tested in tests/plugins/fleet"
    assert "found it" in report["result"]
    command, first = argv(caller, report), caller.requests(report)[0]
    expected = {"--effort=low", f"--add-dir={other}", "--fallback-model=claude-haiku-4-5", "--debug"}
    assert expected - set(command) == set()
    assert command[0] == str(link)
    assert "--include-partial-messages" not in command
    assert body(caller, report)["output_config"]["effort"] == "low"
    assert "reviewer" in json.dumps(body(caller, report))
    assert "context-1m-2025-08-07" in first.headers["anthropic-beta"]
    assert "Bash" not in first.tools
    assert "And of wine." in first.system
    assert len(first.system) > 1000, "the preset is still there"
    assert seen(caller, report) == [png()], "from where images may come, and which ones, is tested in test_images"
    assert log.stat().st_size > 0
    assert report["sessionId"] not in transcripts(caller)
    variables = psutil.Process(caller.session(report).pid).environ()
    assert (variables["GREETING"], variables["CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"]) == ("hi", "1")
    code, _ = await caller.refused("claude_code", prompt=HELLO, pathToClaudeCodeExecutable="/nowhere/claude")
    assert code == "CLI_NOT_FOUND"


_SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("calc")
@server.tool()
def add(a: int, b: int) -> int:
    return a + b
server.run("stdio")
"""


@checks(
    *("prompt", "cwd", "allowedTools", "tools", "systemPrompt", "model", "thinking", "mcpServers", "strictMcpConfig"),
    *("includePartialMessages", "persistSession"),
)
async def more_options_hold_side_by_side(caller: ToolCaller) -> None:
    other = caller.sandbox.root / "elsewhere"
    other.mkdir()
    servers = {"calc": {"command": sys.executable, "args": ["-c", _SERVER], "env": {"SECRET": "hush"}}}
    prompt = script("Where?", tool("mcp__calc__add", a=2, b=3), tool("Bash", command="pwd; touch here"), "done")
    report = await caller.ok(
        "claude_code",
        prompt=prompt,
        cwd=str(other),
        allowedTools=["Bash(pwd)", "Bash(touch *)", "mcp__calc__add"],
        tools=["Read", "Glob", "Bash"],
        systemPrompt="Only speak of cheese.",
        model="claude-sonnet-4-5",
        thinking={"type": "disabled"},
        mcpServers=servers,
        strictMcpConfig=True,
    )
    assert (other / "here").exists()
    first, *rest = caller.requests(report)
    assert first.model == "claude-sonnet-4-5"
    assert body(caller, report).get("thinking", {"type": "disabled"})["type"] == "disabled"
    assert "Only speak of cheese." in first.system
    assert len(first.system) < 1000, "the preset is gone"
    assert {"Read", "Bash"} <= set(first.tools)
    assert not set(first.tools) & {"Edit", "Write"}
    added, where = (request.tool_results[-1].text for request in rest if request.tool_results)
    assert "5" in added
    assert str(other) in where
    command = argv(caller, report)
    assert "--include-partial-messages" in command  # unless they are left out
    assert "--strict-mcp-config" in command
    assert "hush" not in " ".join(command)
    assert report["sessionId"] in transcripts(caller)


def transcripts(caller: ToolCaller) -> set[str]:
    return {path.stem for path in caller.sandbox.home.rglob("*.jsonl")}


@checks("agent", "permissionMode", "thinking", "tools")
async def an_agent_is_chosen(caller: ToolCaller) -> None:
    report = await caller.ok(
        "claude_code",
        prompt=HELLO,
        agents=REVIEWER,
        agent="reviewer",
        permissionMode="plan",
        hubServers=[],
        thinking={"type": "adaptive"},
        tools={"type": "preset", "preset": "claude_code"},
    )
    first = caller.requests(report)[0]
    assert "You review only." in first.system
    assert "--permission-mode=plan" in argv(caller, report)
    assert body(caller, report)["thinking"]["type"] == "adaptive"
    assert "Bash" in first.tools


async def test_options_with_values_that_there_are_not_are_refused(caller: ToolCaller) -> None:
    code, message = await caller.refused("claude_code", prompt=HELLO, effort="heroic")
    assert code == "INVALID_ARGUMENT"
    assert "xhigh" in message
    code, _ = await caller.refused("claude_code", prompt=HELLO, betas=["time-travel"])
    assert code == "INVALID_ARGUMENT"


@checks("outputFormat", "thinking")
async def the_output_has_the_form_asked_for(caller: ToolCaller) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}
    report = await caller.ok(
        "claude_code",
        prompt=script("A number", structured({"n": 3})),
        outputFormat={"type": "json_schema", "schema": schema},
        thinking={"type": "enabled", "budgetTokens": 2000},
    )
    assert report["structuredOutput"] == {"n": 3}
    assert "--max-thinking-tokens=2000" in argv(caller, report)


@checks("sandbox")
async def a_sandbox_that_cannot_be_had_stops_the_turn(caller: ToolCaller) -> None:
    prompt = script("Touch", tool("Bash", command="touch outside"), "done")
    nowhere = {"PATH": str(caller.sandbox.root)}  # without the programs that a sandbox is made of
    for sandbox in ({"enabled": True}, {"enabled": True, "failIfUnavailable": False}):
        result = await caller.call("claude_code", prompt=prompt, allowedTools=["Bash"], sandbox=sandbox, env=nowhere)
        assert result.is_error
        assert "sandbox required but unavailable" in json.dumps(result.structured_content).lower()
    assert not (caller.sandbox.project / "outside").exists()


@checks("settingSources")
async def setting_sources_are_chosen(caller: ToolCaller) -> None:
    settings = caller.sandbox.home / ".claude" / "settings.json"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(json.dumps({"permissions": {"allow": ["Bash(touch *)"]}}), encoding="utf-8")
    prompt = script("Touch", tool("Bash", command="touch allowed-by-user"), "done")
    await caller.ok("claude_code", prompt=prompt, settingSources=[])
    assert not (caller.sandbox.project / "allowed-by-user").exists()
    await caller.ok("claude_code", prompt=prompt, settingSources=["user"])
    assert (caller.sandbox.project / "allowed-by-user").exists()


@checks("hubServers")
async def a_server_that_the_hub_does_not_have_is_refused(caller: ToolCaller) -> None:
    """That one which it has is given to the session is tested with the hub."""
    code, message = await caller.refused("claude_code", prompt=HELLO, hubServers=["nobody"])
    assert code == "INVALID_ARGUMENT"
    assert "no server 'nobody'" in message


@checks("messageKey")
async def a_call_that_is_repeated_with_its_key_runs_once(caller: ToolCaller) -> None:
    first, again = [await caller.ok("claude_code", prompt=HELLO, messageKey="a-key-of-mine") for _ in range(2)]
    assert again["sessionId"] == first["sessionId"]
    assert (await caller.ok("claude_code", prompt=HELLO))["sessionId"] != first["sessionId"]


@checks("worktree")
async def a_session_works_in_a_worktree_of_its_own(caller: ToolCaller) -> None:
    repo = repository(caller.sandbox.root / "repo")
    prompt = script("Where are you?", tool("Bash", command="pwd"), "${tool_result}")
    report = await caller.ok("claude_code", prompt=prompt, cwd=str(repo), worktree=True, allowedTools=["Bash"])
    assert report["result"].startswith(f"{repo}/.claude/worktrees/mcp-")


def test_every_parameter_has_a_check() -> None:
    parameters = {field.alias or name for name, field in ClaudeCode.model_fields.items()}
    assert parameters == {name for names in CHECKS.values() for name in names}


IN_SOAK = {
    a_sandbox_that_cannot_be_had_stops_the_turn: "tests/core/sessions/test_faults.py",
    a_session_works_in_a_worktree_of_its_own: "tests/plugins/console/test_changes.py",
    a_call_that_is_repeated_with_its_key_runs_once: "tests/core/sessions/test_keyed_messages.py",
    setting_sources_are_chosen: "tests/scenarios/security/test_project_files.py",
    turns_are_limited: "tests/server/test_faults.py",
    the_turn_is_limited_in_time: "tests/server/tools/test_timeouts.py",
    the_budget_is_kept: "tests/core/sessions/test_outcomes.py",
    the_output_has_the_form_asked_for: "tests/core/sessions/test_outcomes.py",
}
"""Checks of what `make test` shows elsewhere."""


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=pytest.mark.soak) if check in IN_SOAK else check for check in CHECKS],
    ids=lambda check: check.__name__,
)
async def test_forms_on_the_real_cli(check: Check, caller: ToolCaller) -> None:
    await check(caller)
