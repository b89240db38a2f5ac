"""The MCP servers of clients with different environments: shared by those that are alike, and by nobody else."""

import asyncio
import json

import psutil
import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.hub.client_hubs import Hubs
from claude_code_mcp.hub.factory import hub_configuration, make_hub
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.scenarios.hub_and_sessions.conftest import program

from .conftest import LONG, ConnectedClient, MakePlace, Server, StartServer
from .test_environments import tool_output

PLAIN = {"ENABLE_TOOL_SEARCH": "false"}  # the model is to be shown the tools themselves


async def server_of(caller: ConnectedClient, model: ScriptedModelThread) -> tuple[str, psutil.Process]:
    """The program that a session of this client reaches through its hub, and the session."""
    ended = await caller.done(script("go", tool("mcp__x__pid"), "done"), allowedTools=["mcp__x"])
    assert ended.data["result"] == "done"
    return ended.session, psutil.Process(int(tool_output(model, ended.session).split()[0]))


@pytest.mark.soak  # their own key and home: test_environments.py
async def test_equal_environments_share_a_hub_and_others_have_their_own(
    start_server: StartServer, make_place: MakePlace, model: ScriptedModelThread, sandbox: Sandbox
) -> None:
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program(env={"WHO": "${WHO}"})}}))
    server: Server = await start_server(linger=0.0, hub_file=file, toolsets="sessions,hub")
    place = make_place("ann")
    one = await server.connect(place.client("one", WHO="ann", **PLAIN))
    two = await server.connect(place.client("two", WHO="ann", TERM="another window", **PLAIN))
    other = await server.connect(place.client("other", WHO="bob", ANTHROPIC_API_KEY="sk-key-of-bob", **PLAIN))
    (_, first), (_, second), (session, third) = [await server_of(caller, model) for caller in (one, two, other)]
    assert first == second
    assert (first.environ()["WHO"], first.environ()["ANTHROPIC_API_KEY"]) == ("ann", "sk-key-of-ann")
    assert (third.environ()["WHO"], third.environ()["ANTHROPIC_API_KEY"]) == ("bob", "sk-key-of-bob")

    await other.call("claude_mcp_servers", action="disable", server="x")
    states = [(await caller.call("claude_mcp_servers", action="list")).data["servers"] for caller in (one, other)]
    assert [state[0]["state"] for state in states] == ["connected", "disabled"], (
        "each steers the servers of its own hub"
    )
    await other.call("claude_mcp_servers", action="enable", server="x")

    again = server.service.session(session)
    other.leave()
    await asyncio.wait_for(other.gone, LONG)
    turn = await server.service.send(session, script("more", tool("mcp__x__pid"), "still there"))
    assert (await asyncio.wait_for(turn.outcome(), LONG)).result == "still there", "its session goes on without it"
    fourth = psutil.Process(int(tool_output(model, session).split()[-2]))
    again.park()
    await asyncio.to_thread(fourth.wait, LONG)
    assert first.is_running(), "in use by those who are there"


async def test_a_client_that_comes_after_a_change_gets_what_the_file_says_now(
    start_server: StartServer, make_place: MakePlace, sandbox: Sandbox
) -> None:
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program()}}))
    server: Server = await start_server(linger=60.0, hub_file=file, toolsets="hub")
    place = make_place("ann")

    async def names() -> list[str]:
        caller = await server.connect(place.client())
        listed = await caller.call("claude_mcp_servers", action="list")
        return [one["name"] for one in listed.data["servers"]]

    assert await names() == ["x"]
    file.write_text(json.dumps({"mcpServers": {"x": program(), "y": program()}}))
    assert await names() == ["x", "y"]


async def test_clients_that_are_like_the_server_itself_use_its_hub(make_place: MakePlace, sandbox: Sandbox) -> None:
    file = sandbox.root / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"x": program()}}))
    settings = load_settings({}, state_dir=sandbox.root / "state", hub_file=file)
    same, other = make_place("ann").client("one"), make_place("bob").client("two")
    configuration = hub_configuration(settings, same.variables)
    hubs = Hubs(settings, linger=0.0)
    async with make_hub(settings, configuration, same.variables) as own:
        hubs.adopt(own, configuration, same.variables)
        async with hubs.use(same) as hub, hubs.use(other) as another:
            assert hub is own
            assert another is not own
        await hubs.close()
        await own.connect()
        assert [status.state for status in own.status()] == ["connected"], "it is closed by its owner only"
