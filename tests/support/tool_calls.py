"""Tool calls of an `mcp.Client`, with the outcome that the test expects. No call lasts longer than `HANG_SECONDS`."""

import asyncio
from typing import Any

import mcp_types as types
from mcp import Client

from .waiting import HANG_SECONDS


async def called(client: Client, tool: str, arguments: dict[str, Any]) -> types.CallToolResult:
    async with asyncio.timeout(HANG_SECONDS):
        return await client.call_tool(tool, arguments)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a call that must succeed."""
    result = await called(client, tool, arguments)
    assert not result.is_error, result.content
    return dict(result.structured_content or {})


async def finished(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The report of a call that waits for a turn, once the turn is over."""
    return await until_finished(client, await call(client, tool, **arguments))


async def until_finished(client: Client, report: dict[str, Any]) -> dict[str, Any]:
    """The report of a session once its turn is over: on a busy machine that takes longer than a call may wait."""
    async with asyncio.timeout(HANG_SECONDS):
        while report.get("status") == "running":
            report |= await call(client, "claude_get_status", sessionId=report["sessionId"], waitSeconds=50)
    return report


async def refused(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """The error of a call that must fail: `code`, `message` and its data."""
    result = await called(client, tool, arguments)
    assert result.is_error, result.structured_content
    return dict((result.structured_content or {})["error"])
