"""Rows of the table of parity with servers of others and with slow ones: `make parity`, since they take long."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing.script import tool
from tests.hub.test_foreign_servers import node
from tests.support import npm, pypi

from .conftest import Both, Seen, full
from .parity import check

pytestmark = [
    pytest.mark.time_limit(400),
    pytest.mark.skipif(not os.environ.get("PARITY"), reason="takes long: make parity"),
]
_ADD = "@m.tool()\ndef add(a: int, b: int) -> int:\n    return a + b\nm.run()"
FASTMCP = f"from fastmcp import FastMCP\nm = FastMCP('m')\n{_ADD}"
OF_THE_SDK = f"from mcp.server.mcpserver import MCPServer\nm = MCPServer('m')\n{_ADD}"


def program(requirement: str, name: str, *arguments: str) -> dict[str, Any]:
    """The configuration of a server from PyPI."""
    try:
        return {"command": str(pypi.install(requirement) / name), "args": list(arguments)}
    except npm.Unavailable as error:
        pytest.skip(str(error))


def _node(name: str) -> Callable[[Path], dict[str, Any]]:
    return lambda packages: node(packages, name)


def _program(requirement: str, name: str, *arguments: str) -> Callable[[Path], dict[str, Any]]:
    return lambda _: program(requirement, name, *arguments)


NEW_YEAR = {"source_timezone": "UTC", "time": "00:00", "target_timezone": "UTC"}
SERVERS: dict[str, tuple[Callable[[Path], dict[str, Any]], str, dict[str, Any], str]] = {
    "`server-everything` (npm)": (_node("server-everything"), "echo", {"message": "hi"}, "Echo: hi"),
    "`server-memory` (npm)": (_node("server-memory"), "read_graph", {}, "entities"),
    "`mcp-server-git` (PyPI)": (
        _program("mcp-server-git==2026.10.19", "mcp-server-git"),
        "git_status",
        {"repo_path": "/nowhere"},
        "nowhere",
    ),
    "`mcp-server-time` (PyPI)": (
        _program("mcp-server-time==2026.10.19", "mcp-server-time"),
        "convert_time",
        NEW_YEAR,
        "UTC",
    ),
    "`mcp-server-fetch` (PyPI)": (
        _program("mcp-server-fetch==2026.10.24", "mcp-server-fetch"),
        "fetch",
        {"url": "http://127.0.0.1:1/"},
        "127.0.0.1",
    ),
    "a Rust server with rmcp 0.1 (PyPI)": (_program("biomcp-cli==0.8.10", "biomcp", "serve"), "", {}, ""),
    "a Rust server with rmcp 1.7 (PyPI)": (_program("biomcp-cli==0.9.3", "biomcp", "serve"), "", {}, ""),
    "FastMCP on the SDK of 2025 (PyPI)": (
        _program("fastmcp==2.14.7", "python", "-c", FASTMCP),
        "add",
        {"a": 2, "b": 3},
        "5",
    ),
    "the SDK's own server of 2026 (PyPI)": (
        lambda _: {"command": sys.executable, "args": ["-c", OF_THE_SDK]},
        "add",
        {"a": 2, "b": 3},
        "5",
    ),
}


@pytest.mark.parametrize("what", SERVERS)
async def test_third_party_server_works(both: Both, packages: Path, what: str) -> None:
    make, name, arguments, expected = SERVERS[what]
    steps = [tool(f"mcp__x__{name}", **arguments)] if name else []
    native, hub = await both({"x": make(packages)}, *steps, running=True)

    def describe(one: Seen) -> str:
        count = len(one.tools)
        called = f", {name} answers" if name and expected in one.results[0] else ""
        return f"{count} tools{called}"

    check(what, describe(native), describe(hub))


@pytest.mark.parametrize(
    ("what", "faults"),
    [
        ("a server that stays silent after the first unknown message", ("mute",)),
        ("a server that hangs after the first unknown message", ("stuck",)),
    ],
)
async def test_a_server_that_cannot_take_the_probe(both: Both, what: str, faults: tuple[str, ...]) -> None:
    native, hub = await both({"x": full(*faults)}, tool("mcp__x__echo", word="hi"))
    check(what, *("works" if one.results == ['{"word": "hi"}'] else "missing" for one in (native, hub)))


async def test_a_slow_server_is_there_in_the_first_turn(both: Both) -> None:
    pause = tool("Bash", command="python3 -c 'import time; time.sleep(16)'", description="wait")
    native, hub = await both({"x": full("slow=15")}, pause, tool("mcp__x__echo", word="hi"))
    check(
        "a server that takes 15 s to start, in the first turn",
        *("works" if one.results[1] == '{"word": "hi"}' else "missing" for one in (native, hub)),
    )
