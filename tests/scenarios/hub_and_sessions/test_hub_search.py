"""The tools of the hub on demand: found by words and called, under the same policy as in the list of all."""

import mcp_types as types
import pytest
from mcp import MCPError

from .conftest import LEGACY, MODERN, Caller, Person, Rig, StartCaller, StartRig, decide, program, rules

BOTH = pytest.mark.parametrize("mode", [LEGACY, MODERN], ids=["2025", "2026"])
ALLOW_ALL = 'allow = ["mcp__x"]'


@BOTH
async def test_a_tool_is_found_by_words_and_called(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-search")
    caller: Caller = await connect(rig, mode)
    assert await caller.names() == ["claude_mcp_search", "claude_mcp_call"]
    found = await caller.ok("claude_mcp_search", query="echo")
    assert [tool["name"] for tool in found["tools"]] == ["mcp__x__echo"]
    assert found["tools"][0]["inputSchema"] == {"type": "object"}
    given = {"name": "mcp__x__echo", "arguments": {"word": "hi"}}
    assert await caller.text("claude_mcp_call", **given) == '{"word": "hi"}'


async def test_more_are_counted_and_nothing_found_names_the_servers(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, rules('deny = ["mcp__x__pid"]'), toolsets="hub-search")
    caller: Caller = await connect(rig)
    found = await caller.ok("claude_mcp_search", query="x", limit=2)
    assert (len(found["tools"]), found["more"]) == (2, 7)
    found = await caller.ok("claude_mcp_search", query="nothing like that")
    assert (found["tools"], found["servers"]) == ([], {"x": 9})


@BOTH
async def test_what_the_policy_denies_is_neither_found_nor_called(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    policy = rules('allow = ["mcp__x__echo"]\ndeny = ["mcp__x__pid"]')
    rig: Rig = await start_rig({"x": program()}, policy, toolsets="hub-search")
    person = Person([decide("Deny")])
    caller: Caller = await connect(rig, mode, person)
    assert (await caller.ok("claude_mcp_search", query="pid"))["tools"] == []
    code, _ = await caller.refused("claude_mcp_call", name="mcp__x__pid")
    assert (code, person.shown) == ("PERMISSION_DENIED", [])
    code, _ = await caller.refused(
        "claude_mcp_call", name="mcp__x__big"
    )  # neither allowed nor denied: a person is asked
    assert (code, len(person.shown)) == ("PERMISSION_DENIED", 1)


@BOTH
async def test_a_question_in_the_middle_of_such_a_call_is_answered(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-search")
    person = Person([types.ElicitResult(action="accept", content={"name": "Ada"})])
    caller: Caller = await connect(rig, mode, person)
    assert "Ada" in await caller.text("claude_mcp_call", name="mcp__x__ask")


async def test_unknown_name_is_refused_and_hub_tools_stay_unlisted(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-search")
    caller: Caller = await connect(rig)
    code, message = await caller.refused("claude_mcp_call", name="mcp__x__nothing")
    assert code == "INVALID_ARGUMENT"
    assert "claude_mcp_search" in message
    with pytest.raises(MCPError, match="Unknown tool"):
        await caller.call("mcp__x__echo")


async def test_the_list_is_as_short_whatever_the_servers_have(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({name: program() for name in "xyz"}, toolsets="hub-search")
    caller: Caller = await connect(rig)
    listed = await caller.client.list_tools()
    assert len(listed.model_dump_json(by_alias=True, exclude_none=True)) < 1500
