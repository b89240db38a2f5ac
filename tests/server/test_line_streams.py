"""A connection that speaks in lines, over a real socket."""

import asyncio
import json
import socket

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from claude_code_mcp.server.transports.stdio import MOST_UNREAD, LineConnection, line_streams

REQUESTS = MOST_UNREAD + 500


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
        while taken < MOST_UNREAD:
            await anyio.lowlevel.checkpoint()
        await anyio.wait_all_tasks_blocked()
        assert MOST_UNREAD <= taken < REQUESTS
        answered = {json.loads(await client_reader.readline())["id"] for _ in range(REQUESTS)}
        assert answered == set(range(REQUESTS))
        tasks.cancel_scope.cancel()
    for end in (client_writer, writer):
        end.close()
        await end.wait_closed()
