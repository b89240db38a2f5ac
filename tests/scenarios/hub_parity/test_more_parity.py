"""More rows of the table of parity: unusual answers, servers that change, remote servers, configuration. `make parity`,
since each runs the CLI twice; what they show of the hub has quick tests of its own."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.hub.factory import hub_configuration
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import tool
from tests.hub.conftest import until_file
from tests.hub.remote import RemoteServer, http_server, sse_server
from tests.hub.test_foreign_servers import node
from tests.scenarios.hub_and_sessions.conftest import LONG, StartRig

from .conftest import Both, Seen, odd, seen_in
from .odd_server import INSTRUCTIONS, PIXEL
from .parity import check, check_descriptions

pytestmark = [
    pytest.mark.time_limit(400),
    pytest.mark.skipif(not os.environ.get("PARITY"), reason="takes long: make parity"),
]


async def test_unusual_git_outputs(both: Both) -> None:
    seen = await both(
        {"x": {**odd("${workspaceFolder}", "${UNSET:-a default}"), "env": {"OPTIONAL": "${UNSET}"}}},
        tool("mcp__x__image"),
        tool("mcp__x__fails"),
        tool("mcp__x__surrogate"),
        tool("mcp__x__not_a_number"),
        tool("mcp__x__arguments"),
        tool("mcp__x__wrong_id"),
        extra={"MCP_TOOL_TIMEOUT": "3000"},
    )
    check_descriptions(
        seen,
        "the server's instructions",
        lambda one: "in the model's context" if INSTRUCTIONS in one.bodies else "lost",
    )
    check_descriptions(
        seen, "a result with an image", lambda one: "shown to the model" if PIXEL in one.bodies else one.results[0]
    )
    check_descriptions(seen, "a tool says that it failed", lambda one: "an error" if one.failed[1] else one.results[1])
    check_descriptions(
        seen, "a lone surrogate in a result", lambda one: "text" if "behind" in one.results[2] else one.results[2]
    )
    check_descriptions(
        seen, "NaN in a result", lambda one: "passed through" if _is_number(one.results[3]) else _end_of(one.results[3])
    )
    check_descriptions(seen, "`${workspaceFolder}` in an entry", lambda one: _filled_in(one, 0))
    check_descriptions(seen, "`${NAME:-default}` in an entry", lambda one: _filled_in(one, 1))
    check_descriptions(
        seen,
        "`${NAME}` in `env` that is not set",
        lambda one: "works" if "mcp__x__echo" in one.tools else "missing",
    )
    check_descriptions(seen, "an answer with a wrong id", lambda one: _end_of(one.results[5]))


def _end_of(result: str) -> str:
    return (
        "waits for `MCP_TOOL_TIMEOUT`" if "timed out" in result else "ends with an error" if "id" in result else result
    )


def _is_number(result: str) -> bool:
    return "a number" in result or "value" in result


def _filled_in(one: Seen, place: int) -> str:
    given = json.loads(one.results[4])[place]
    return {one.cwd: "the session's directory", "a default": "the default"}.get(given, "left as it is")


async def test_a_server_that_changes_and_dies(both: Both) -> None:
    seen = await both(
        {"x": odd()},
        tool("mcp__x__grow"),
        tool("mcp__x__grown", word="hi"),
        tool("mcp__x__die"),
        tool("mcp__x__echo", word="hi"),
    )
    check_descriptions(seen, "a tool that a server adds in the session", lambda one: _called(one.results[1]))
    check_descriptions(seen, "a server that died, at the next call", lambda one: _called(one.results[3]))


def _called(result: str) -> str:
    return "works" if result == '{"word": "hi"}' else result


async def test_an_interrupted_call_is_cancelled_at_the_server(start_rig: StartRig, tmp_path: Path) -> None:
    note = tmp_path / "note"
    servers = {"x": odd(str(note))}
    rig = await start_rig(servers)
    for options in ({"mcp_servers": servers, "hub_servers": ()}, {}):
        session, outcome = await rig.create(tool("mcp__x__wait", note=str(note)), "done", **options)
        await until_file(note, "begun")
        await rig.service.interrupt(session.id)
        await outcome
        await until_file(note, "cancelled")
        await rig.service.cancel(session.id)
    check("an interrupted call", "cancelled at the server", "cancelled at the server")


async def test_configuration_as_people_have_it(start_rig: StartRig, sandbox: Sandbox) -> None:
    """Servers of every scope, for a session below the directory that they are configured for."""
    project, below = sandbox.project, sandbox.project / "packages" / "one"
    below.mkdir(parents=True)
    (project / ".git").mkdir()
    users = {"mcpServers": {"user": odd()}, "projects": {}}
    users["projects"] = {str(project): {"mcpServers": {"local": odd()}, "hasTrustDialogAccepted": True}}
    (sandbox.home / ".claude.json").write_text(json.dumps(users))
    shared = {"mcpServers": {"shared": odd(), "broken": {"command": 5}}}
    (project / ".mcp.json").write_text(json.dumps(shared))
    (project / ".claude").mkdir(exist_ok=True)
    approved = {"enabledMcpjsonServers": ["shared", "commented"]}
    (project / ".claude" / "settings.local.json").write_text(json.dumps(approved))
    (below / ".mcp.json").write_text(f'{{"mcpServers": {{\n// with comments\n"commented": {json.dumps(odd())},\n}},}}')
    settings = load_settings({}, hub="all", hub_file=sandbox.root / "own.json")
    rig = await start_rig(hub_configuration(settings, {"HOME": str(sandbox.home)}, str(below)))
    native = await seen_in(rig, (), cwd=str(below), hub_servers=())
    await rig.hub.connect(timeout=LONG)
    hub = await seen_in(rig, (), cwd=str(below), strict_mcp_config=True)
    seen = native, hub
    check_descriptions(seen, "the user's servers (`~/.claude.json`)", lambda one: _has(one, "user"))
    check_descriptions(
        seen, "servers of local scope, by the root of the git repository", lambda one: _has(one, "local")
    )
    check_descriptions(
        seen, "`.mcp.json` of a directory above, approved in `settings.local.json`", lambda one: _has(one, "shared")
    )
    check_descriptions(seen, "`.mcp.json` with comments and a comma too many", lambda one: _has(one, "commented"))


def _has(one: Seen, server: str) -> str:
    return "available" if f"mcp__{server}__echo" in one.tools else "missing"


async def test_tools_are_searched_for(both: Both) -> None:
    search = tool("ToolSearch", query="select:mcp__x__echo")
    seen = await both({"x": odd()}, search, tool("mcp__x__echo", word="hi"), extra={"ENABLE_TOOL_SEARCH": "true"})
    check_descriptions(seen, "tools on demand (`ToolSearch`)", lambda one: _called(one.results[-1]))


async def test_sessions_share_a_server(both: Both) -> None:
    seen = await both({"x": odd()}, tool("mcp__x__pid"), sessions=2)
    check_descriptions(seen, "two sessions use a server", lambda one: f"{len(set(one.results))} of its processes")


@pytest.mark.parametrize(("kind", "serve"), [("http", http_server), ("sse", sse_server)])
async def test_a_remote_server(both: Both, kind: str, serve: Callable[..., AbstractAsyncContextManager[str]]) -> None:
    async with serve(RemoteServer()) as url:
        seen = await both({"x": {"type": kind, "url": url}}, tool("mcp__x__echo", word="hi"))
    check_descriptions(
        seen, f"a remote server of type `{kind}`", lambda one: "works" if "hi" in one.results[0] else one.results[0]
    )


async def test_headers_of_a_helper(both: Both) -> None:
    sent: list[Mapping[str, str]] = []
    async with sse_server(RemoteServer(), headers=sent) as url:
        entry = {"type": "sse", "url": url, "headersHelper": 'echo \'{"X-Team": "blue"}\''}
        seen = await both({"x": entry}, tool("mcp__x__echo", word="hi"))
    assert all(one.get("x-team") == "blue" for one in sent)
    check_descriptions(seen, "`headersHelper`", lambda one: "works" if "hi" in one.results[0] else one.results[0])


async def test_long_call(both: Both, packages: Path) -> None:
    step = tool("mcp__x__trigger-long-running-operation", duration=61, steps=5)
    seen = await both({"x": node(packages, "server-everything")}, step, running=True)
    check_descriptions(
        seen, "a call of 61 s", lambda one: "its result" if "completed" in one.results[0] else one.results[0]
    )
