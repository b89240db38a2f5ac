"""A toolset alone is complete: nothing that a caller reads names a tool that it was not offered."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import ALL_TOOLSETS, Toolset, load_settings
from claude_code_mcp.server.tools.guidance import how_to_answer, how_to_wait, instructions
from claude_code_mcp.server.tools.toolsets import tools_of, unknown_tool
from claude_code_mcp.testing.script import ask_user, plan, script, stall, text, tool
from claude_code_mcp.testing.script import question as asking
from tests.support.tables import every_row
from tests.support.waiting import HANG_SECONDS

from .conftest import StartCaller, ToolCaller

OWN = frozenset(tools_of(load_settings({}, toolsets=ALL_TOOLSETS)))
KINDS = ("sessions", "code", "query", "care", "hub")
SETS = [chosen for size in range(1, 6) for chosen in itertools.combinations(KINDS, size)]


def named(text: object) -> set[str]:
    """The tools of this server that a text names."""
    return set(re.findall(r"\bclaude_[a-z_]+", str(text))) & OWN


def test_the_search_finds_names() -> None:
    assert named("call claude_respond, then claude_get_status.") == {"claude_respond", "claude_get_status"}


@every_row("toolsets", SETS)
def test_instructions_name_only_offered_tools(toolsets: tuple[Toolset, ...]) -> None:
    settings = load_settings({}, toolsets=toolsets, allow_disk_resume=True)
    offered = tools_of(settings)
    listed = [tool.listing().model_dump_json() for tool in offered.values()]
    assert named([*listed, instructions(settings)]) <= set(offered)
    if "code" in toolsets:  # where sessions are left to be looked after
        assert named(how_to_answer(settings) + how_to_wait(settings)) <= set(offered)


async def read_all(caller: ToolCaller, name: str, **arguments: Any) -> str:
    return (await caller.call(name, **arguments)).model_dump_json()


ASK = script("Touch", tool("Bash", command="touch asked"), "went on")
PLAN = script("plan", plan("# Tidy up\n1. sweep"), tool("Write", file_path="swept", content="x"), "swept")
USER = script("ask", ask_user(asking("Which color?", "red", "blue")), "saw: ${tool_result}")


async def code_family(caller: ToolCaller) -> list[str]:
    """A question, an answer, the wait for the end, and refusals."""
    read, here = [], {"permissionMode": "default"}
    asked = await caller.ok("claude_code", prompt=ASK, **here)
    assert asked["status"] == "waiting_for_input"
    (pending,) = asked["pendingInputs"]
    answered = await caller.ok(
        "claude_code_session",
        action="respond",
        sessionId=asked["sessionId"],
        inputId=pending["inputId"],
        decision="allow",
        waitSeconds=40,
    )
    (ended,) = answered["sessions"]
    assert (ended["status"], ended["result"]) == ("idle", "went on")
    assert (caller.sandbox.project / "asked").exists()
    asked_again = await caller.ok("claude_code", prompt=USER, **here)
    (pending,) = asked_again["pendingInputs"]
    identity = {"sessionId": asked_again["sessionId"], "inputId": pending["inputId"]}
    read.append(await read_all(caller, "claude_code_session", action="respond", **identity))
    read.append(await read_all(caller, "claude_code_session", action="get", sessionId=identity["sessionId"]))
    answer = {"decision": "allow", "answers": ["blue"]}
    answered = await caller.ok("claude_code_session", action="respond", **identity, **answer, waitSeconds=40)
    assert "blue" in answered["sessions"][0]["result"]
    read.append(await read_all(caller, "claude_code_session", action="respond", **identity, **answer))
    read.append(await read_all(caller, "claude_code", prompt=ASK, permissionMode="bypassPermissions"))
    read.append(await read_all(caller, "claude_code_session", action="list", includeSensitive=True))
    read.append(await read_all(caller, "claude_code_reply", sessionId="nobody", prompt=ASK))
    return [*read, str(asked), str(answered)]


async def session_family(caller: ToolCaller) -> list[str]:
    here = {"workingDirectory": str(caller.sandbox.project)}
    asked = await caller.ok("claude_create_session", prompt=ASK, waitSeconds=40, **here)
    identity = {"sessionId": asked["sessionId"]}
    read = [str(asked), await read_all(caller, "claude_get_status", **identity)]
    read.append(await read_all(caller, "claude_respond", **identity, inputId="q-none", decision="allow"))
    read.append(await read_all(caller, "claude_interrupt", **identity))
    read.append(await read_all(caller, "claude_create_session", prompt=ASK, permissionMode="bypassPermissions", **here))
    read.append(await read_all(caller, "claude_create_session", prompt=ASK, dangerouslySkipPermissions=True, **here))
    return read


async def query_family(caller: ToolCaller) -> list[str]:
    prompt = script("Wait", stall("…"))
    read = [await read_all(caller, "claude_code_query", prompt=prompt), *caller.progress]
    read.append(
        await read_all(caller, "claude_code_query", prompt=ASK, options={"permissionMode": "bypassPermissions"})
    )
    return read


FLOWS = {"code": code_family, "sessions": session_family, "query": query_family}
LIMITS = {"query": {"max_execution_time_ms": 1500}}
MUST_BE_NAMED = {"code": {"claude_code_session", "claude_code_configure"}}


@pytest.mark.soak
@pytest.mark.parametrize("toolset", FLOWS)
async def test_results_of_a_family_name_only_its_own_tools(start_caller: StartCaller, toolset: str) -> None:
    caller = await start_caller(toolsets=(toolset,), call_limit_ms=int(HANG_SECONDS * 1000), **LIMITS.get(toolset, {}))
    offered = set(tools_of(caller.service.settings))
    read = await FLOWS[toolset](caller)
    assert named(read) <= offered
    assert named(read) >= MUST_BE_NAMED.get(toolset, set())


@pytest.mark.soak
async def test_a_turn_that_continues_is_waited_for_within_the_family(start_caller: StartCaller, tmp_path: Path) -> None:
    caller = await start_caller(toolsets=("code",), call_limit_ms=300)
    report = await caller.ok("claude_code", prompt=script("Slow", text("at last", until=str(tmp_path / "go"))))
    assert report["status"] == "running"
    assert named(report) == {"claude_code_session", "claude_code_reply"}
    (tmp_path / "go").touch()
    got = await caller.ok("claude_code_session", action="get", sessionId=report["sessionId"], waitSeconds=40)
    assert got["sessions"][0]["result"] == "at last"


def test_a_tool_that_was_not_chosen_is_refused_with_the_toolset_that_has_it() -> None:
    settings = load_settings({})
    for name, toolset in (
        ("claude_mcp_servers", "hub"),
        ("claude_mcp_search", "hub-search"),
        ("claude_manage_session", "care"),
    ):
        refusal = unknown_tool(name, settings)
        assert name in refusal
        assert repr(toolset) in refusal
        assert refusal.endswith(f"--toolsets sessions,code,query,{toolset}")
    assert unknown_tool("no_such_tool", settings) == "Unknown tool: no_such_tool"
