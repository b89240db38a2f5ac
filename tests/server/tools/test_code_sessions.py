"""`claude_code_session` and `claude_code_configure`."""

import json
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.testing.script import script, stall, tool

from .conftest import StartCaller, ToolCaller

HELLO = script("Say hello", "hello")
SENSITIVE = {"cwd", "systemPrompt", "agents", "additionalDirectories"}


async def test_sensitive_details_need_the_operators_setting_also_after_a_restart(
    start_caller: StartCaller,
) -> None:
    first: ToolCaller = await start_caller()
    report = await first.ok("claude_code", prompt=HELLO, systemPrompt="hush")
    asked = {"action": "get", "sessionId": report["sessionId"]}
    (session,) = (await first.ok("claude_code_session", **asked))["sessions"]
    assert session["status"] == "idle"
    assert not SENSITIVE & set(session)
    code, _ = await first.refused("claude_code_session", **asked, includeSensitive=True)
    assert code == "PERMISSION_DENIED"
    await first.service.__aexit__()
    caller: ToolCaller = await start_caller(allow_sensitive_session_details=True)
    (session,) = (await caller.ok("claude_code_session", **asked, includeSensitive=True))["sessions"]
    assert (session["status"], session["result"]) == ("idle", "hello")
    assert session["totalCostUsd"] == pytest.approx(report["totalCostUsd"])
    assert (session["systemPrompt"], session["cwd"]) == ("hush", str(caller.sandbox.project))


async def test_cancel_is_final(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(call_limit_ms=300)
    running = await caller.ok("claude_code", prompt=script("Wait", stall("…")))
    reply = await caller.ok("claude_code_session", action="cancel", sessionId=running["sessionId"])
    assert reply["sessions"][0]["status"] == "cancelled"
    code, _ = await caller.refused("claude_code_reply", sessionId=running["sessionId"], prompt=HELLO)
    assert code == "CANCELLED"


@pytest.mark.parametrize("action", ["get", "cancel"])
async def test_an_action_on_one_session_needs_its_id(caller: ToolCaller, action: str) -> None:
    assert (await caller.refused("claude_code_session", action=action))[0] == "INVALID_ARGUMENT"
    unknown = "00000000-0000-4000-8000-000000000000"
    assert (await caller.refused("claude_code_session", action=action, sessionId=unknown))[0] == "SESSION_NOT_FOUND"


async def test_bypass_is_off_until_it_is_switched_on(caller: ToolCaller) -> None:
    assert (await caller.ok("claude_code_configure", action="get_config"))["allowBypass"] is False
    code, message = await caller.refused("claude_code", prompt=HELLO, permissionMode="bypassPermissions")
    assert code == "PERMISSION_DENIED"
    assert "claude_code_configure" in message
    assert (await caller.ok("claude_code_configure", action="enable_bypass"))["allowBypass"] is True
    assert (await caller.ok("claude_code_configure", action="disable_bypass"))["allowBypass"] is False
    assert (await caller.refused("claude_code", prompt=HELLO, permissionMode="bypassPermissions"))[0] == code


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize(
    ("result", "allowed"),
    [
        (types.ElicitResult(action="accept", content={"confirm": True}), True),
        (types.ElicitResult(action="accept", content={"confirm": False}), False),
        (types.ElicitResult(action="decline"), False),
        (types.ElicitResult(action="cancel"), False),
    ],
)
async def test_a_person_confirms_the_bypass(
    start_caller: StartCaller, mode: str, result: types.ElicitResult, allowed: bool
) -> None:
    asked: list[str] = []

    async def person(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return result

    caller: ToolCaller = await start_caller(mode, person)
    if allowed:
        assert (await caller.ok("claude_code_configure", action="enable_bypass"))["allowBypass"]
    else:
        assert (await caller.refused("claude_code_configure", action="enable_bypass"))[0] == "PERMISSION_DENIED"
    assert "permission checks" in asked[0]
    assert (await caller.ok("claude_code_configure", action="get_config"))["allowBypass"] is allowed


async def test_toolsets_can_be_chosen(start_caller: StartCaller) -> None:
    for chosen, expected in (("sessions", 7), ("code", 4), ("query", 1), ("care", 2), ("sessions,query", 8)):
        caller: ToolCaller = await start_caller(toolsets=chosen)
        assert len((await caller.client.list_tools()).tools) == expected


@pytest.mark.parametrize(("toolsets", "limit"), [("sessions", 6_500), ("sessions,code,query", 12_800)])
async def test_the_list_of_tools_stays_small(start_caller: StartCaller, toolsets: str, limit: int) -> None:
    caller: ToolCaller = await start_caller(toolsets=toolsets)
    listing = await caller.client.list_tools()
    for listed in listing.tools:
        # Clients use these themselves and do not show them to their model.
        listed.output_schema = listed.title = None
    assert len(listing.model_dump_json(by_alias=True, exclude_none=True)) < limit


@pytest.mark.soak  # tests/server/test_long_inputs.py
async def test_what_was_cut_is_read_in_pages_and_a_question_comes_with_its_whole_input(caller: ToolCaller) -> None:
    answer = "\n".join(f"line {number} of a long answer" for number in range(12_000))
    report = await caller.ok("claude_code", prompt=script("Go", answer), permissionMode="default")
    (cut,) = report["truncated"]
    assert (cut["part"], cut["total"]) == ("result", len(answer))
    read, offset = report["result"].partition("[[claude-code-mcp cut")[0], cut["nextOffset"]
    while offset is not None:
        asked = {"action": "get", "sessionId": report["sessionId"], "part": "result", "offset": offset}
        page = (await caller.ok("claude_code_session", **asked))["part"]
        read, offset = read + page["text"], page.get("nextOffset")
    assert read == answer

    content = "a line of the file\n" * 10_000
    prompt = script("Go", tool("Write", file_path=str(caller.sandbox.project / "f"), content=content), "done")
    result = await caller.call("claude_code_reply", sessionId=report["sessionId"], prompt=prompt)
    assert result.structured_content is not None
    (question,) = result.structured_content["pendingInputs"]
    assert question["toolInput"]["content"] == content
    assert isinstance(result.content[0], types.TextContent)
    assert json.dumps(content) in result.content[0].text
    asked = {"action": "get", "sessionId": result.structured_content["sessionId"], "part": question["inputId"]}
    page = (await caller.ok("claude_code_session", **asked))["part"]
    assert page["text"].startswith('{"file_path"')
