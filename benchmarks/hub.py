"""The hub: a call through it against a client of one's own, and thirty servers at once against one after another."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.database import Database
from claude_code_mcp.hub.auth.credentials import FileVault
from claude_code_mcp.hub.hub import Hub
from claude_code_mcp.hub.hub_deps import HubDeps
from claude_code_mcp.server.server import McpServer
from tests.support.hub_config import parse_servers

from .common import Figure, Place, benchmark, no_collection, pairs, ratio

_CALLS = 400
_SERVERS = 30
_GOAL = 1.3
_SERVER = str(Path(__file__).parent / "sample_server.py")
Call = Callable[[], Awaitable[object]]


def _hub(place: Place, servers: dict[str, Any], **settings: Any) -> Hub:
    root = place.sandbox.root
    deps = HubDeps(place.environment, Database(root / "hub"), FileVault(root / "vault"), root / ".claude")
    return Hub(parse_servers(servers, place.environment), load_settings({}, **settings), deps)


@benchmark
async def hub_stdio(place: Place) -> Sequence[Figure]:
    """A tool call to a stdio server, through the hub and directly."""
    parameters = StdioServerParameters(command=sys.executable, args=[_SERVER, "stdio"], env=place.environment)
    entry = {"command": sys.executable, "args": [_SERVER, "stdio"]}
    async with Client(parameters) as client, _hub(place, {"x": entry}) as hub:
        return [await _compare("a hub call, stdio", client, hub)]


@benchmark
async def hub_http(place: Place) -> Sequence[Figure]:
    """A tool call over HTTP, through the hub and directly."""
    async with (
        _served(place) as url,
        Client(streamable_http_client(url)) as client,
        _hub(place, {"x": {"url": url}}) as hub,
    ):
        return [await _compare("a hub call, http", client, hub)]


async def _compare(name: str, client: Client, hub: Hub) -> Figure:
    async def direct() -> object:
        return await client.call_tool("echo", {"text": "hello"})

    async def through_hub() -> object:
        return await hub.call("x", "echo", {"text": "hello"})

    bare: list[float] = []
    engine: list[float] = []
    for _ in range(20):
        await direct()
        await through_hub()
    with no_collection():
        for hub_first in pairs(_CALLS):
            for is_hub in (hub_first, not hub_first):
                (engine if is_hub else bare).append(await _timed(through_hub if is_hub else direct))
    return ratio(name, bare, engine, _GOAL)


async def _timed(call: Call) -> float:
    began = time.perf_counter()
    await call()
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _served(place: Place) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, _SERVER, "http", env=place.environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.communicate()


@benchmark
async def hub_connect(place: Place) -> Sequence[Figure]:
    """Thirty servers that take a moment to start, at once and one after another."""
    servers = {f"s{number}": {"command": sys.executable, "args": ["-S", _SERVER, "slow"]} for number in range(_SERVERS)}
    async with _hub(place, servers) as one_by_one:
        began = time.perf_counter()
        for name in servers:
            await one_by_one.reconnect(name)
        serial = time.perf_counter() - began
    async with _hub(place, servers) as at_once:
        began = time.perf_counter()
        states = await at_once.connect()
        parallel = time.perf_counter() - began
    connected = sum(status.state == "connected" for status in states)
    return [
        Figure(
            f"{_SERVERS} servers connected",
            f"{serial:.1f} s",
            f"{parallel:.1f} s",
            f"{parallel / serial:.2f}×, {connected} connected",
            "≤ 0.6×, all",
            parallel / serial <= 0.6 and connected == _SERVERS,
        )
    ]


@benchmark
async def hub_search(place: Place) -> Sequence[Figure]:
    """Context that ten large servers cost a client: all tools listed, and two tools found by one search."""
    servers = {f"s{number}": {"command": sys.executable, "args": ["-S", _SERVER, "many"]} for number in range(10)}
    sizes: dict[str, int] = {}
    async with _hub(place, servers) as hub:
        for toolset in ("hub-tools", "hub-search"):
            settings = load_settings({}, toolsets=toolset, state_dir=place.sandbox.root / "state")
            async with (
                Service(settings, place.environment, hub=hub) as service,
                Client(McpServer(service, hub=hub).server()) as client,
            ):
                listed = await client.list_tools()
                sizes[toolset] = len(listed.model_dump_json(by_alias=True, exclude_none=True))
                if toolset == "hub-search":
                    found = await client.call_tool("claude_mcp_search", {"query": "create an issue"})
                    sizes["search"] = len(json.dumps(found.structured_content))
    needed = sizes["hub-search"] + sizes["search"]
    share = needed / sizes["hub-tools"]
    return [
        Figure(
            "400 hub tools, listed or searched",
            f"{sizes['hub-tools']:,} B",
            f"{needed:,} B",
            f"{share:.1%}",
            "≤ 5%",
            share <= 0.05,
        )
    ]
