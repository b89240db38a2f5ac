"""A server to measure against: on stdio or HTTP with the SDK, or in plain Python, after a moment of waiting."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

_MOMENT = 0.3


def main(kind: str) -> None:
    {"stdio": _stdio, "http": _http, "slow": _slow, "small": _small, "many": _many}[kind]()


def _slow() -> None:
    """As servers do that read a file or ask a service first."""
    time.sleep(_MOMENT)
    _small()


def _many() -> None:
    """With as many tools as the servers of large services have, each described in a sentence."""
    kinds = ("issue", "branch", "release", "comment", "label", "workflow", "commit", "review", "file", "secret")
    acts = {
        "create": "Create a new",
        "get": "Get the details of one",
        "list": "List every",
        "delete": "Delete the given",
    }
    text = {"type": "string", "description": "The name of the repository that it belongs to, as owner/name"}
    schema = {
        "type": "object",
        "properties": {"repository": text, "page": {"type": "integer"}},
        "required": ["repository"],
    }
    _small(
        [
            {"name": f"{act}_{kind}", "description": f"{said} {kind} in a repository.", "inputSchema": schema}
            for kind in kinds
            for act, said in acts.items()
        ]
    )


def _small(tools: Sequence[Any] = ({"name": "echo", "inputSchema": {"type": "object"}},)) -> None:
    """With one tool unless given others, and nothing but the standard library."""
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        },
        "tools/list": {"tools": list(tools)},
        "tools/call": {"content": [{"type": "text", "text": "done"}]},
    }
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result, error = results.get(message["method"]), {"code": -32601, "message": "Method not found"}
        answer = {"error": error} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


def _server() -> Any:
    import mcp_types as types  # noqa: PLC0415
    from mcp.server.lowlevel import Server  # noqa: PLC0415

    async def tools(*_: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema={"type": "object"})])

    async def call(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(params.arguments))])

    return Server("bench", version="1", on_list_tools=tools, on_call_tool=call)


def _stdio() -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415

    async def run() -> None:
        server = _server()
        async with stdio_server() as (inbox, outbox):
            await server.run(inbox, outbox, server.create_initialization_options())

    asyncio.run(run())


def _http() -> None:
    import uvicorn  # noqa: PLC0415

    # Named as TCP, or asyncio does not turn Nagle's algorithm off, which costs 40 ms a call.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    print(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(uvicorn.Config(_server().streamable_http_app(), log_config=None)).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1])
