"""A server to measure against: on stdio or HTTP with the SDK, or in plain Python, after a moment of waiting."""

import asyncio
import json
import socket
import sys
import time
from typing import Any

_MOMENT = 0.3


def main(kind: str) -> None:
    {"stdio": _stdio, "http": _http, "slow": _slow, "small": _small}[kind]()


def _slow() -> None:
    """As servers do that read a file or ask a service first."""
    time.sleep(_MOMENT)
    _small()


def _small() -> None:
    """With one tool, and nothing but the standard library."""
    tool = {"name": "echo", "inputSchema": {"type": "object"}}
    results: dict[str, Any] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "small", "version": "1"},
        },
        "tools/list": {"tools": [tool]},
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
