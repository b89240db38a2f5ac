"""A connection that speaks in lines, over a real socket."""

import asyncio
import json
import socket
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage

from claude_code_mcp.server.sdk import Context, notification_line, send_lines, takes_lines, with_line_outbox
from claude_code_mcp.server.transports.stdio import MAX_UNREAD, LineConnection, line_streams

REQUESTS = MAX_UNREAD + 500


async def test_a_client_that_does_not_read_is_not_read_either_until_it_does() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    client_reader, client_writer = await asyncio.open_connection(sock=theirs)
    connection = LineConnection(reader)
    connection.output = writer  # type: ignore[assignment]
    answer = {"text": "x" * 2000}
    taken = 0
    async with line_streams(connection) as (inbox, outbox), inbox, outbox, anyio.create_task_group() as tasks:

        async def reply(message: types.JSONRPCRequest) -> None:
            await outbox.send(SessionMessage(types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result=answer)))

        async def work() -> None:
            nonlocal taken
            async for item in inbox:
                assert isinstance(item, SessionMessage)
                assert isinstance(item.message, types.JSONRPCRequest)
                taken += 1
                tasks.start_soon(reply, item.message)

        async def ask() -> None:
            for number in range(REQUESTS):
                client_writer.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode() + b"\n")
            await client_writer.drain()

        tasks.start_soon(work)
        tasks.start_soon(ask)
        while taken < MAX_UNREAD:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert MAX_UNREAD <= taken < REQUESTS
        answered = {json.loads(await client_reader.readline())["id"] for _ in range(REQUESTS)}
        assert answered == set(range(REQUESTS))
        tasks.cancel_scope.cancel()
    for end in (client_writer, writer):
        end.close()
        await end.wait_closed()


async def test_a_call_writes_lines_on_its_own_connection_and_none_when_it_is_over() -> None:
    contexts: list[Context] = []

    async def call(context: Context, _: types.CallToolRequestParams) -> types.CallToolResult:
        contexts.append(context)
        taken = [takes_lines(each) for each in contexts]
        await send_lines(context, [notification_line("notifications/own", {"number": len(contexts)})])
        return types.CallToolResult(content=[types.TextContent(text=str(taken))])

    server: Server[Any] = Server("lines", on_call_tool=call)
    server.middleware[:] = [with_line_outbox]
    said = [await _said_by(server), await _said_by(server)]
    for number, lines in enumerate(said, 1):
        (own,) = [line["params"]["number"] for line in lines if line.get("method") == "notifications/own"]
        (result,) = [line["result"]["content"][0]["text"] for line in lines if line.get("id") == 2]
        # In the second call the first one is over.
        assert (own, result) == (number, str([False] * (number - 1) + [True]))
    assert not any(map(takes_lines, contexts))


async def _said_by(server: Server[Any]) -> list[dict[str, Any]]:
    """What the server writes to a client that begins, calls a tool and leaves."""
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "any"}},
    ]
    output = _Collected()
    connection = LineConnection()
    connection.output = output
    for message in messages:
        connection.reader.feed_data(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    connection.reader.feed_eof()
    async with line_streams(connection) as (inbox, outbox):
        await server.run(inbox, outbox, server.create_initialization_options())
    return [json.loads(line) for line in output.written.splitlines()]


class _Collected:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        """There is always room."""

    async def close(self) -> None:
        """There is nothing to close."""
