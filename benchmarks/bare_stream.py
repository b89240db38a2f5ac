"""The least that any server on the SDK has to do: sends recorded notifications during a call, on stdio or HTTP."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

METHOD = "claude-code/messages"


class Message(types.Notification[dict[str, Any], str]):
    method: str = METHOD
    params: dict[str, Any]


def bare_server(recorded: list[dict[str, Any]]) -> Server[Any]:
    async def call(
        context: ServerRequestContext[Any, Any], _: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        for params in recorded:
            notification: Any = Message(params=params)
            await context.session.send_notification(notification, related_request_id=context.request_id)
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return Server("bare", on_call_tool=call)


async def _serve(recorded: list[dict[str, Any]], port: str | None) -> None:
    server = bare_server(recorded)
    if port is None:
        async with stdio_server() as (inbox, outbox):
            await server.run(inbox, outbox, server.create_initialization_options())
    else:
        app = server.streamable_http_app(streamable_http_path="/mcp", host="127.0.0.1")
        config = uvicorn.Config(app, host="127.0.0.1", port=int(port), log_config=None, access_log=False)
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    recorded = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    asyncio.run(_serve(recorded, sys.argv[2] if len(sys.argv) > 2 else None))
