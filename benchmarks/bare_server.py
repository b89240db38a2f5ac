"""What ours is measured against: a lowlevel server of the SDK on its own transport, with one tool that does nothing."""

import asyncio
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError


async def _list_tools(_: Any, __: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="nothing", input_schema={"type": "object"})])


async def _call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name != "nothing":
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return types.CallToolResult(content=[])


async def _main() -> None:
    server: Server[Any] = Server("bare", on_list_tools=_list_tools, on_call_tool=_call_tool)
    async with stdio_server() as (inbox, outbox):
        await server.run(inbox, outbox, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(_main())
