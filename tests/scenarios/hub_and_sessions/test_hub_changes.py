"""Servers that come, go and change while sessions and clients are there."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.caller import LOCAL
from claude_code_mcp.core.private_files import replace_file
from claude_code_mcp.hub.config_changes import HubSource, following
from claude_code_mcp.hub.provider import HubProvider, signs_in_apart
from claude_code_mcp.testing.script import tool
from tests.support.hub_config import parse_servers

from .conftest import LONG, Caller, Rig, StartCaller, StartRig, program, rules, until
from .test_mcp_bridge import offered

ALLOWED = ("mcp__x", "mcp__y", "mcp__z")


def apply(rig: Rig, **servers: Any) -> None:
    rig.hub.apply(parse_servers(servers, {}))


async def test_servers_come_change_and_go_for_a_running_session_that_began_without_any(start_rig: StartRig) -> None:
    own = {"z": {"type": "stdio", **program()}}
    rig: Rig = await start_rig({})
    session, before = await rig.first(tool("mcp__z__pid"), "${tool_result}", allowed_tools=ALLOWED, mcp_servers=own)
    pid = session.pid
    apply(rig, x=program(env={"V": "1"}))
    await until(lambda: session_knows(session, {"x"}))
    first = (await rig.say(session, tool("mcp__x__pid"), "${tool_result}")).result
    apply(rig, x=program(env={"V": "2"}))
    second = (await rig.say(session, tool("mcp__x__pid"), "${tool_result}")).result
    assert first.split()[0] != second.split()[0], "a changed entry is another program"
    apply(rig, x=program(env={"V": "2"}), y=program())
    await until(lambda: session_knows(session, {"x", "y"}))
    assert (await rig.say(session, tool("mcp__y__echo", a=1), "${tool_result}")).result == '{"a": 1}'
    assert (await rig.say(session, tool("mcp__z__pid"), "${tool_result}")).result == before, "its own is left alone"
    apply(rig, y=program())
    await until(lambda: session_knows(session, {"y"}))
    assert "No such tool" in (await rig.say(session, tool("mcp__x__echo", a=1), "${tool_result}")).result
    assert (await rig.say(session, tool("mcp__y__echo", b=2), "${tool_result}")).result == '{"b": 2}'
    assert session.pid == pid, "it is the same process"


def session_knows(session: Any, names: set[str]) -> bool:
    """Whether the process was told of just these servers of the hub."""
    bridge = session.process.live.bridge
    return {*bridge._announced} == names


@pytest.mark.soak
async def test_a_server_that_was_disabled_when_a_session_began_is_there_when_it_is_enabled(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program(disabled=True)})
    session, _ = await rig.first("hello")
    assert offered(rig, session.id) == set()
    rig.hub.enable("x")
    await until(lambda: session_knows(session, {"x"}))
    assert (await rig.say(session, tool("mcp__x__echo", a=1), "${tool_result}")).result == '{"a": 1}'


async def test_unchanged_servers_keep_their_connection(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    await rig.hub.connect()
    client = rig.hub._pools["x"].shown.client
    apply(rig, x=program(), y=program())
    assert rig.hub._pools["x"].shown.client is client
    assert rig.hub.servers == ("x", "y")


async def test_a_session_that_wants_some_servers_gets_no_others(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program(), "y": program()})
    session, _ = await rig.first("hello", hub_servers=("y",))
    assert {name.split("__")[1] for name in offered(rig, session.id)} == {"y"}
    apply(rig, x=program(), y=program(), z=program())
    await rig.say(session, "done")
    assert {name.split("__")[1] for name in offered(rig, session.id)} == {"y"}


async def test_clients_see_an_edit_of_the_file_and_are_notified(
    start_rig: StartRig, connect: StartCaller, tmp_path: Path
) -> None:
    rig: Rig = await start_rig({}, rules('allow = ["mcp__x"]'), toolsets="hub,hub-tools")
    caller: Caller = await connect(rig)
    file = tmp_path / "mcp.json"
    source = HubSource(load_settings({}, hub_file=file), {})
    async with following(rig.hub, parse_servers({}, {}), source):
        assert await caller.names() == ["claude_mcp_servers"]
        file.write_text(json.dumps({"mcpServers": {"x": program(), "bad": 3}}))
        await until(lambda: rig.hub.servers == ("x",) and "tools" in caller.changes)
        assert await caller.text("mcp__x__echo", a=1) == '{"a": 1}'
        listed = await caller.ok("claude_mcp_servers", action="list")
        assert "mcpServers.bad: must be an object" in listed["problems"][0]
        file.write_text('{"mcpServers": {')  # in the middle of an edit
        await until(lambda: "cannot be read" in str(rig.hub.problems))
        assert rig.hub.servers == ("x",)
        file.unlink()
        await until(lambda: rig.hub.servers == ())
        assert "mcp__x__echo" not in await caller.names()


class ErrorSeen(logging.Handler):
    """Sets an event when an error is logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.event = asyncio.Event()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = self.format(record)
        self.event.set()


@pytest.mark.parametrize("principals", [(), ("anna",)], ids=["one hub", "a hub for each"])
async def test_a_hub_that_cannot_be_opened_is_logged_and_opened_when_the_file_changes(
    start_rig: StartRig, tmp_path: Path, principals: tuple[str, ...]
) -> None:
    rig: Rig = await start_rig({})
    file, state = tmp_path / "servers" / "mcp.json", tmp_path / "other-state"
    state.mkdir()
    database = state / "state.sqlite3"
    database.symlink_to("elsewhere")  # which is refused
    seen, has_servers = ErrorSeen(), asyncio.Event()
    log = logging.getLogger("claude_code_mcp.hub.provider")
    log.addHandler(seen)
    settings = load_settings({}, hub_file=file, state_dir=state, principal_sign_in=True)
    try:
        async with HubProvider(settings, principals=principals) as provider:
            assert provider.shared_hub is not None
            hosts = [provider.shared_hub, *provider.hubs_by_principal.values()]
            hosts[-1].watch_servers(lambda _: has_servers.set())
            provider.connect(rig.service)
            file.parent.mkdir()
            replace_file(file, json.dumps({"mcpServers": {"x": program()}}).encode())
            await asyncio.wait_for(seen.event.wait(), LONG)
            assert str(file) in seen.text
            assert "is a link" in seen.text
            assert provider.hub is None
            database.unlink()
            replace_file(file, json.dumps({"mcpServers": {"x": program(), "y": program()}}).encode())
            await asyncio.wait_for(has_servers.wait(), LONG)
            assert [host.servers for host in hosts] == [("x", "y")] * len(hosts)
            await provider.close()
    finally:
        log.removeHandler(seen)


@pytest.mark.parametrize("late", [False, True], ids=["servers are there", "servers come later"])
async def test_a_caller_who_comes_later_has_a_hub_of_its_own(start_rig: StartRig, tmp_path: Path, late: bool) -> None:
    rig: Rig = await start_rig({})
    file, content = tmp_path / "mcp.json", json.dumps({"mcpServers": {"x": program()}}).encode()
    if not late:
        replace_file(file, content)
    settings = load_settings(
        {}, hub_file=file, state_dir=tmp_path / "other-state", http_tokens_file=tmp_path / "tokens"
    )
    async with HubProvider(settings, principals=("anna",)) as provider:
        provider.connect(rig.service)
        assert await provider.open_for("ben") is None
        assert await provider.open_for(LOCAL) is None
        assert set(provider.hubs_by_principal) == {"anna", "ben"}
        has_servers = asyncio.Event()
        ben = provider.hubs_by_principal["ben"]
        ben.watch_servers(lambda _: has_servers.set())
        if late:
            replace_file(file, content)
            await asyncio.wait_for(has_servers.wait(), LONG)
        assert ben.servers == ("x",)
        hubs = [provider.hub, *(host.opened for host in provider.hubs_by_principal.values())]
        assert len({id(hub) for hub in hubs}) == 3
        await provider.close()


@pytest.mark.parametrize(
    ("chosen", "apart"),
    [
        ({}, False),
        ({"http_tokens_file": "tokens"}, True),
        ({"http_tokens_file": "tokens", "oauth_issuer": "https://a"}, False),
        ({"http_tokens_file": "tokens", "proxy_user_header": "X-User"}, False),
        ({"http_tokens_file": "tokens", "principal_sign_in": False}, False),
        ({"principal_sign_in": True}, True),
        ({"principal_sign_in": True, "hub": "off"}, False),
    ],
)
def test_callers_whom_a_file_names_sign_in_for_themselves_unless_it_is_said_otherwise(
    chosen: dict[str, Any], apart: bool
) -> None:
    assert signs_in_apart(load_settings({}, **chosen)) is apart
