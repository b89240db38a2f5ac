"""The hub's servers and their tools, offered to clients of this server."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from claude_code_mcp.core.policy.policy import parse_policy
from claude_code_mcp.server.tools import hub_proxy
from tests.hub.conftest import disconnect
from tests.hub.oauth import Authority
from tests.hub.oauth import Person as Browser
from tests.hub.remote import RemoteServer, http_server
from tests.support.clock import stopped_clock
from tests.support.hub_config import parse_servers
from tests.support.ports import free_port

from .conftest import (
    A_SERVER,
    LEGACY,
    LONG,
    MODERN,
    Caller,
    Person,
    Rig,
    StartCaller,
    StartRig,
    decide,
    program,
    rules,
    until,
)

BOTH = pytest.mark.parametrize("mode", [LEGACY, MODERN], ids=["2025", "2026"])
EITHER = pytest.mark.parametrize("mode", [pytest.param(LEGACY, marks=pytest.mark.soak), MODERN], ids=["2025", "2026"])
"""For what no era decides."""
ALL = "sessions,hub,hub-tools"
FULL_SERVER = str(Path(A_SERVER).with_name("full_server.py"))
ALLOW_ALL = 'allow = ["mcp__x"]'


# -- claude_mcp_servers ---------------------------------------------------------------------------------------


async def test_servers_are_listed_without_connecting_and_their_status_connects(
    start_rig: StartRig, connect: StartCaller
) -> None:
    rig: Rig = await start_rig({"x": program(), "bad": {"command": "/nowhere"}}, toolsets="hub")
    caller: Caller = await connect(rig)
    assert await caller.names() == ["claude_mcp_servers"]
    listed = await caller.ok("claude_mcp_servers", action="list")
    assert {one["name"]: one["state"] for one in listed["servers"]} == {"x": "pending", "bad": "pending"}
    (one,) = (await caller.ok("claude_mcp_servers", action="status", server="x"))["servers"]
    assert (one["state"], one["type"], one["version"]) == ("connected", "stdio", "1")
    reply = await caller.ok("claude_mcp_servers", action="status")
    assert {one["name"]: one["state"] for one in reply["servers"]}["bad"] in ("failed", "pending")


async def test_a_server_is_reconnected_disabled_and_enabled(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets=ALL)
    caller: Caller = await connect(rig)
    first = await caller.text("mcp__x__pid")
    (one,) = (await caller.ok("claude_mcp_servers", action="reconnect", server="x"))["servers"]
    assert one["state"] == "connected"
    assert await caller.text("mcp__x__pid") != first
    (one,) = (await caller.ok("claude_mcp_servers", action="disable", server="x"))["servers"]
    assert (one["state"], one["reason"]) == ("disabled", "disabled manually")
    assert "mcp__x__pid" not in await caller.names()
    await caller.ok("claude_mcp_servers", action="enable", server="x")
    assert "mcp__x__pid" in await caller.names()


async def test_uncontrollable_servers_are_refused(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub")
    caller: Caller = await connect(rig)
    for arguments in (
        {"action": "disable"},
        {"action": "enable", "server": "y"},
        {"action": "authenticate", "server": "x"},
    ):
        code, _ = await caller.refused("claude_mcp_servers", **arguments)
        assert code == "INVALID_ARGUMENT"


async def test_a_client_is_given_the_address_to_sign_in_at(start_rig: StartRig, connect: StartCaller) -> None:
    port, authority = free_port(), Authority()
    async with http_server(RemoteServer(), port, **authority.options(port, "mcp")) as url:
        rig: Rig = await start_rig({"x": {"type": "http", "url": url}}, toolsets="hub")
        caller: Caller = await connect(rig)
        (one,) = (await caller.ok("claude_mcp_servers", action="status", server="x"))["servers"]
        assert one["state"] == "needs-auth"
        reply = await caller.ok("claude_mcp_servers", action="authenticate", server="x")
        await Browser()(reply["url"])
        await until(lambda: rig.hub.status("x")[0].state == "connected")
        await disconnect(rig.hub, "x")


# -- the tools of the servers ---------------------------------------------------------------------------------


@EITHER
async def test_a_person_cannot_allow_a_call_that_the_policy_denies_by_now(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    policy = parse_policy(
        '[profiles.mine]\nbase = "local"\n[profiles.strict]\nbase = "local"\ndeny = ["mcp__x"]\n'
        '[groups]\nguests = "strict"',
        "policy.toml",
        "mine",
    )
    rig: Rig = await start_rig({"x": program()}, policy, toolsets="hub-tools")

    class ChangingPerson(Person):
        async def __call__(self, context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
            policy.assign("local", ["guests"])
            return await super().__call__(context, params)

    caller: Caller = await connect(rig, mode, ChangingPerson([decide("Allow once")]))
    code, _ = await caller.refused("mcp__x__echo", word="hi")
    assert code == "PERMISSION_DENIED"


@EITHER
async def test_rules_decide_without_asking(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    policy = rules('allow = ["mcp__x__echo"]\ndeny = ["mcp__x__pid"]')
    rig: Rig = await start_rig({"x": program()}, policy, toolsets="hub-tools")
    person = Person([])
    caller: Caller = await connect(rig, mode, person)
    assert "mcp__x__echo" in await caller.names()
    assert await caller.text("mcp__x__echo", word="hi") == '{"word": "hi"}'
    code, message = await caller.refused("mcp__x__pid")
    assert code == "PERMISSION_DENIED"
    assert "mcp__x__pid" in message
    assert person.shown == []


async def test_a_profile_with_a_list_of_tools_has_a_view_of_the_servers_with_those_alone(
    start_rig: StartRig, connect: StartCaller
) -> None:
    policy = rules('tools = ["mcp__x__echo", "mcp__y__*"]\nallow = ["mcp__*"]')
    rig: Rig = await start_rig(
        {"x": program(), "y": program(), "z": program()}, policy, toolsets="hub-tools,hub-search"
    )
    caller: Caller = await connect(rig)
    names = await caller.names()
    assert {name for name in names if name.startswith("mcp__x")} == {"mcp__x__echo"}
    assert {"mcp__y__echo", "mcp__y__pid"} <= {*names}
    assert not any(name.startswith("mcp__z") for name in names)
    assert await caller.text("mcp__x__echo", word="hi") == '{"word": "hi"}'
    for hidden in ("mcp__x__pid", "mcp__z__echo"):
        assert (await caller.refused(hidden))[0] == "PERMISSION_DENIED"
    found = await caller.ok("claude_mcp_search", query="pid")
    assert [tool["name"] for tool in found["tools"]] == ["mcp__y__pid"]


@BOTH
async def test_person_allows_once_or_always(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    person = Person([decide("Allow once"), decide("Allow for this session")])
    caller: Caller = await connect(rig, mode, person)
    for count in (1, 2, 2):
        assert await caller.text("mcp__x__echo", word="hi") == '{"word": "hi"}'
        assert len(person.shown) == count
    assert person.shown[0].message.startswith("This client wants to use echo of x: word=hi")
    assert rig.service.broker.pending() == []


@EITHER
@pytest.mark.parametrize(
    "answer",
    [decide("Deny"), types.ElicitResult(action="decline"), types.ElicitResult(action="cancel")],
    ids=["deny", "decline", "put away"],
)
async def test_denied_call_does_not_reach_the_server(
    start_rig: StartRig, connect: StartCaller, mode: str, answer: types.ElicitResult, tmp_path: Path
) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    caller: Caller = await connect(rig, mode, Person([answer]))
    code, _ = await caller.refused("mcp__x__wait", note=str(tmp_path / "note"))
    assert code == "PERMISSION_DENIED"
    assert not (tmp_path / "note").exists()
    assert rig.service.broker.pending() == []


@EITHER
async def test_client_without_dialogs_gets_the_rule_that_would_allow_it(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    code, message = await caller.refused("mcp__x__echo")
    assert code == "PERMISSION_DENIED"
    assert 'allow = ["mcp__x__echo"]' in message


@EITHER
async def test_progress_passes_through(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    await caller.text("mcp__x__progress")
    await until(lambda: len(caller.progress) == 3)
    assert caller.progress == ["step 1", "step 2", "step 3"]


@EITHER
@pytest.mark.parametrize("can_be_asked", [False, True])
async def test_a_cancelled_call_is_cancelled_at_the_server(
    start_rig: StartRig, connect: StartCaller, mode: str, can_be_asked: bool, tmp_path: Path
) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode, Person([]) if can_be_asked else None)
    note = tmp_path / "note"
    calling = asyncio.ensure_future(caller.call("mcp__x__wait", note=str(note)))
    await until(note.exists)
    calling.cancel()
    await until(lambda: note.read_text() == "cancelled")


async def test_cancelled_call_withdraws_its_question(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    shown = asyncio.Event()

    async def never(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        shown.set()
        await asyncio.Event().wait()
        raise AssertionError

    caller: Caller = await connect(rig, LEGACY, never)
    calling = asyncio.ensure_future(caller.call("mcp__x__echo"))
    await asyncio.wait_for(shown.wait(), LONG)
    calling.cancel()
    await until(lambda: not rig.service.broker.pending())


@BOTH
@pytest.mark.parametrize("upstream", ["mid-call", "input-required"])
async def test_a_question_of_a_server_reaches_the_person_before_the_client(
    start_rig: StartRig, connect: StartCaller, mode: str, upstream: str
) -> None:
    port, remote = free_port(), RemoteServer()
    async with http_server(remote, port) as url:
        asks = {"x": {"type": "http", "url": url} if upstream == "input-required" else program()}
        rig: Rig = await start_rig(asks, rules(ALLOW_ALL), toolsets="hub-tools")
        person = Person([types.ElicitResult(action="accept", content={"name": "Ada"})])
        caller: Caller = await connect(rig, mode, person)
        reply = await caller.text("mcp__x__ask")
        assert "accept" in reply
        assert "Ada" in reply
        assert len(person.shown) == 1
        await disconnect(rig.hub, "x")


@BOTH
async def test_a_question_that_a_server_takes_back_does_not_keep_its_call(
    start_rig: StartRig, connect: StartCaller, mode: str, tmp_path: Path
) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    seen, taken_back = tmp_path / "seen", asyncio.Event()

    async def answer(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        seen.touch()
        if mode == LEGACY:  # the form is before the person until the server takes it away
            try:
                await asyncio.Event().wait()
            finally:
                taken_back.set()
        await until(seen.with_suffix(".over").exists)
        return types.ElicitResult(action="accept", content={"name": "too late"})

    caller: Caller = await connect(rig, mode, answer)
    assert await caller.text("mcp__x__ask", take_back=str(seen)) == "taken back"
    if mode == LEGACY:
        await asyncio.wait_for(taken_back.wait(), LONG)
    assert await caller.text("mcp__x__echo", a=1) == '{"a": 1}'


@EITHER
async def test_questions_that_a_server_asks_at_once_are_all_answered(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program(A_SERVER, "ask-twice")}, rules(ALLOW_ALL), toolsets="hub-tools")
    person = Person([types.ElicitResult(action="accept", content={"name": name}) for name in ("Ada", "Bea")])
    caller: Caller = await connect(rig, mode, person)
    reply = await caller.text("mcp__x__ask")
    assert "Ada" in reply
    assert "Bea" in reply
    assert len(person.shown) == 2


@EITHER
async def test_permission_and_the_question_of_the_server_follow_one_another(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    person = Person([decide("Allow once"), types.ElicitResult(action="decline")])
    caller: Caller = await connect(rig, mode, person)
    assert await caller.text("mcp__x__ask") == '{"action": "decline"}'
    assert len(person.shown) == 2


@EITHER
async def test_server_question_is_declined_without_a_person(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    port, remote = free_port(), RemoteServer()
    async with http_server(remote, port) as url:
        servers = {"x": program(), "y": {"type": "http", "url": url}}
        rig: Rig = await start_rig(servers, rules('allow = ["mcp__x", "mcp__y"]'), toolsets="hub-tools")
        caller: Caller = await connect(rig, mode)
        assert await caller.text("mcp__x__ask") == '{"action": "cancel"}'
        assert "cancel" in await caller.text("mcp__y__ask")
        await disconnect(rig.hub, "y")


@EITHER
async def test_a_tool_that_is_gone_when_a_person_has_permitted_it_is_unknown(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, toolsets="hub-tools")
    other: Caller = await connect(rig)

    async def permit(_: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        rig.hub.apply(parse_servers({}, {}))
        assert await other.names() == []
        return decide("Allow once")

    caller: Caller = await connect(rig, mode, permit)
    with pytest.raises(MCPError, match="mcp__x__echo"):
        await caller.call("mcp__x__echo")


@EITHER
async def test_every_call_is_audited_with_who_decided_and_how_it_ended(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    policy = rules('allow = ["mcp__x__big", "mcp__x__refuse", "mcp__x__die"]\ndeny = ["mcp__x__pid"]')
    rig: Rig = await start_rig({"x": program()}, policy, toolsets="hub-tools")
    caller: Caller = await connect(rig, mode, Person([decide("Allow for this session"), decide("Deny")]))
    await caller.text("mcp__x__big", size=1234)
    await caller.text("mcp__x__echo", a=1)
    await caller.text("mcp__x__echo", a=2)
    for refused in ("mcp__x__pid", "mcp__x__wait", "mcp__x__refuse", "mcp__x__die"):
        await caller.refused(refused)
    lines = [dict(act.details) for act in rig.notes.called]
    assert {act.who for act in rig.notes.called} == {"local"}
    assert all(isinstance(line.pop("duration_ms"), int) for line in lines if line["decision"] == "allow")
    assert [line.pop("server") for line in lines] == ["x"] * 7
    reply = [(line["tool"], line["decision"], line["by"], line.get("outcome"), line.get("size")) for line in lines]
    assert reply == [
        ("big", "allow", "policy", "ok", 1234),
        ("echo", "allow", "elicitation", "ok", 8),
        ("echo", "allow", "earlier answer", "ok", 8),
        ("pid", "deny", "policy", None, None),
        ("wait", "deny", "elicitation", None, None),
        ("refuse", "allow", "policy", "error", None),
        ("die", "allow", "policy", "failed", None),
    ]
    assert lines[1]["arguments"] == {"a": 1}


async def test_server_errors_are_reported(start_rig: StartRig, connect: StartCaller) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig)
    code, message = await caller.refused("mcp__x__refuse")
    assert re.search(r"'x'.*: No such thing", message)
    assert code == "UPSTREAM_UNAVAILABLE"
    code, message = await caller.refused("mcp__x__die")
    assert re.search(r"'x'.*\b7: out of memory", message)
    assert code == "UPSTREAM_UNAVAILABLE"


async def test_address_without_a_server_is_reported(start_rig: StartRig, connect: StartCaller) -> None:
    port, remote = free_port(), RemoteServer()
    async with http_server(remote, port) as url:
        rig: Rig = await start_rig({"x": {"type": "http", "url": url}}, rules(ALLOW_ALL), toolsets="hub-tools")
        caller: Caller = await connect(rig)
        await caller.text("mcp__x__echo")
        remote.gone = True
        _, message = await caller.refused("mcp__x__echo")
        assert re.search(r"'x'.*HTTP 404", message)
        remote.gone = False
        await disconnect(rig.hub, "x")


@EITHER
async def test_a_call_waits_for_a_server_that_is_still_starting(
    start_rig: StartRig, connect: StartCaller, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_proxy, "_LIST_TIMEOUT", 0.1)
    servers = {"x": program(FULL_SERVER, "slow=1"), "bad": {"command": "/nowhere"}}
    rig: Rig = await start_rig(servers, rules('allow = ["mcp__*"]'), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    assert await caller.text("mcp__x__echo", word="hi") == '{"word": "hi"}'
    code, message = await caller.refused("mcp__bad__echo")
    assert code == "UPSTREAM_UNAVAILABLE"
    assert re.search(r"'bad'.*'/nowhere'", message)
    with pytest.raises(MCPError, match="mcp__x__nothing"):
        await caller.call("mcp__x__nothing")


@BOTH
async def test_server_logs_during_a_call_reach_its_caller_at_the_chosen_level(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program(A_SERVER, "logs")}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    other: Caller = await connect(rig, mode)

    async def logged(level: str | None) -> list[str]:
        caller.changes.clear()
        meta: dict[str, Any] = {}
        if mode == MODERN and level is not None:
            meta = {types.LOG_LEVEL_META_KEY: level}
        elif level is not None:
            request = types.SetLevelRequest(params=types.SetLevelRequestParams.model_validate({"level": level}))
            await caller.client.session.send_request(request, types.EmptyResult)
        await asyncio.wait_for(caller.client.call_tool("mcp__x__log", {}, meta=meta or None), LONG)  # type: ignore[arg-type]
        return [change for change in caller.changes if change.startswith("x: work: ")]

    known = [f"x: work: said at {level}" for level in ("debug", "info", "error")]
    assert await logged(None) == (known[1:] if mode == LEGACY else [])
    assert await logged("debug") == (known if mode == LEGACY else known[1:])
    assert await logged("warning") == known[2:]
    assert not any(change.startswith("x: work: ") for change in other.changes)


@EITHER
async def test_a_server_asks_the_model_of_the_caller(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    rig: Rig = await start_rig({"x": program(A_SERVER, "logs")}, rules(ALLOW_ALL), toolsets="hub-tools")
    asked: list[str] = []

    async def answer(_: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        asked.append(str(params.messages[0].content))
        content = types.TextContent(type="text", text="four")
        return types.CreateMessageResult(role="assistant", content=content, model="a-model")

    caller: Caller = await connect(rig, mode, None, answer)
    reply = await caller.text("mcp__x__sample")
    assert "four" in reply
    assert "a-model" in reply
    assert len(asked) == 1
    assert "2+2?" in asked[0]
    without: Caller = await connect(rig, mode)
    assert "model" in await without.text("mcp__x__sample")


@EITHER
async def test_a_tool_that_runs_only_as_a_task_is_called_as_one(
    start_rig: StartRig, connect: StartCaller, mode: str, tmp_path: Path
) -> None:
    rig: Rig = await start_rig({"x": program(A_SERVER, "tasks")}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    listed = {tool.name: tool for tool in (await caller.client.list_tools()).tools}
    assert listed["mcp__x__long"].execution is None
    assert await caller.text("mcp__x__long") == "done as a task"
    note = tmp_path / "note"
    calling = asyncio.ensure_future(caller.call("mcp__x__long", note=str(note)))
    await until(note.exists)
    calling.cancel()
    await until(lambda: note.read_text() == "cancelled")


async def test_a_caller_calls_a_server_no_more_than_its_limits_allow(
    start_rig: StartRig, connect: StartCaller, tmp_path: Path
) -> None:
    servers = {"x": program(limits={"callsAtOnce": 1}), "y": program(limits={"callsPerMinute": 2})}
    rig: Rig = await start_rig(servers, rules('allow = ["mcp__*"]'), toolsets="hub-tools")
    caller: Caller = await connect(rig)
    calling = asyncio.ensure_future(caller.call("mcp__x__wait", note=str(tmp_path / "note")))
    await until((tmp_path / "note").exists)
    code, message = await caller.refused("mcp__x__echo")
    assert (code, "1 calls to 'x' " in message) == ("LIMIT_REACHED", True)
    calling.cancel()
    await until(lambda: (tmp_path / "note").read_text() == "cancelled")
    for _ in range(2):
        await caller.text("mcp__y__echo")
    code, message = await caller.refused("mcp__y__echo")
    assert (code, "2 calls to 'y' " in message) == ("LIMIT_REACHED", True)
    assert rig.notes.called[-1].details["code"] == "LIMIT_REACHED"
    assert await caller.text("mcp__x__echo") == "{}"


@EITHER
async def test_tools_that_a_server_adds_after_it_has_asked_reach_the_client(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode, Person([types.ElicitResult(action="decline")]))
    assert "mcp__x__new10" not in await caller.names()
    await caller.text("mcp__x__ask")
    await caller.text("mcp__x__change")
    assert "mcp__x__new10" in await caller.names()
    assert await caller.text("mcp__x__new10") == "new10"


@BOTH
async def test_a_changed_list_of_tools_reaches_clients(start_rig: StartRig, connect: StartCaller, mode: str) -> None:
    rig: Rig = await start_rig({"x": program()}, rules(ALLOW_ALL), toolsets="hub-tools")
    caller: Caller = await connect(rig, mode)
    assert "mcp__x__new10" not in await caller.names()
    if mode == LEGACY:
        await caller.text("mcp__x__change")
        await until(lambda: caller.changes)
    else:
        async with caller.client.listen(tools_list_changed=True) as changes:
            await caller.text("mcp__x__change")
            async with asyncio.timeout(LONG):
                await anext(aiter(changes))
    assert "mcp__x__new10" in await caller.names()


@pytest.mark.soak
async def test_servers_that_come_and_go_do_not_flood_clients(start_rig: StartRig, connect: StartCaller) -> None:
    servers = {"x": program(), "bad": program(A_SERVER, "brief"), "gone": {"command": "/nowhere"}}
    rig: Rig = await start_rig(servers, toolsets="hub-tools")
    caller: Caller = await connect(rig)
    assert "mcp__x__echo" in await caller.names()
    with stopped_clock() as clock:
        for _ in range(20):  # as a client does that asks anew at every change, and more often
            assert "mcp__x__echo" in await caller.names()
        before = caller.changes.count("tools")
        assert before <= 2, "one that was under way, and one more"
        await clock.advance(0.5)
        for _ in range(20):
            assert "mcp__x__echo" in await caller.names()
        assert caller.changes.count("tools") <= before + 1


@pytest.mark.parametrize("mode", [LEGACY])
async def test_the_tools_of_claude_code_itself_are_behind_the_policy(
    start_rig: StartRig, connect: StartCaller, mode: str
) -> None:
    ours = str(Path(sys.executable).parent / "claude-code-mcp")  # runs the Claude Code that the server would use
    entry = {"command": ours, "args": ["claude", "mcp", "serve"]}
    policy = rules('allow = ["mcp__claude__Read"]\ndeny = ["mcp__claude__Bash"]')
    rig: Rig = await start_rig({"claude": entry}, policy, toolsets="hub-tools", mcp_timeout_ms=60_000)
    file = rig.sandbox.project / "file.txt"
    file.write_text("what it says", encoding="utf-8")
    person = Person([decide("Deny")])
    caller: Caller = await connect(rig, mode, person)
    await rig.hub.connect(timeout=LONG)
    names = set(await caller.names())
    assert {"mcp__claude__Read", "mcp__claude__Write"} <= names
    assert "mcp__claude__Bash" not in names  # what is denied whatever its arguments are is not listed
    assert "what it says" in await caller.text("mcp__claude__Read", file_path=str(file))
    assert (await caller.refused("mcp__claude__Bash", command="true"))[0] == "PERMISSION_DENIED"
    changed = {"file_path": str(file), "content": "changed"}
    assert (await caller.refused("mcp__claude__Write", **changed))[0] == "PERMISSION_DENIED"
    assert len(person.shown) == 1
    assert file.read_text(encoding="utf-8") == "what it says"
