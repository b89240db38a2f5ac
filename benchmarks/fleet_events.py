"""A machine of a fleet whose one tool sends recorded events as fast as it can.

python -m benchmarks.fleet_events NATS_URL MACHINE_ID RECORDED
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server

from claude_code_mcp.plugins.fleet.connection import connect
from claude_code_mcp.plugins.fleet.machine_server import MachineBackend, MachineServer
from claude_code_mcp.server import sdk
from claude_code_mcp.server.transports.stdio import Inbox, Outbox

from .bare_stream import METHOD


class Sender:
    """What `MachineServer` needs of a server, with one tool."""

    def __init__(self, recorded: list[dict[str, Any]]) -> None:
        self._recorded = recorded
        self.service = self

    async def serve(self, inbox: Inbox, outbox: Outbox) -> None:
        server: Server[Any] = Server("sender", on_call_tool=self._send)
        await server.run(inbox, outbox, server.create_initialization_options())

    async def _send(
        self, context: sdk.Context, _: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        for event in self._recorded:  # each by itself: what gathers in a real stream costs less
            await sdk.send_all(context, [(METHOD, event)])
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    async def end_caller(self, name: str, calls_over: Callable[[], Awaitable[None]]) -> None: ...

    async def admit(self, *_: object) -> str | None:
        return None

    async def why_restart_for(self, _: str) -> str | None:
        return None

    def assign(self, *_: object) -> None: ...


async def _serve(url: str, machine_id: str, recorded: list[dict[str, Any]]) -> None:
    connection = await connect(url)
    sender: MachineBackend = Sender(recorded)
    async with anyio.create_task_group() as tasks:
        await tasks.start(MachineServer(connection, machine_id, sender).serve)
        print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], json.loads(Path(sys.argv[3]).read_text(encoding="utf-8"))))
