"""MCP over this process's stdin and stdout, on asyncio pipes.

The SDK's own transport reads and writes through threads, which more than doubles the time of a call. While serving,
fd 1 leads to stderr and fd 0 to nowhere, so that neither a stray print nor a child can touch the protocol.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import mcp_types as types
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared.message import SessionMessage

_LIMIT = 64 << 20

Inbox = ContextReceiveStream[SessionMessage | Exception]
Outbox = ContextSendStream[SessionMessage]


@asynccontextmanager
async def stdio_streams(
    preface: Iterable[bytes] = (), swallow: frozenset[types.RequestId] = frozenset()
) -> AsyncIterator[tuple[Inbox, Outbox]]:
    """The two streams of the transport.

    `preface` are lines that were read before; responses to the request ids in `swallow` are not written, because
    they were answered before.
    """
    reader, writer = await _open_pipes()
    inbox_in, inbox = create_context_streams[SessionMessage | Exception](0)
    outbox, outbox_out = create_context_streams[SessionMessage](0)

    async def read() -> None:
        async with inbox_in:
            for line in preface:
                await inbox_in.send(_parse(line))
            while line := await reader.readline():
                if line.strip():
                    await inbox_in.send(_parse(line))

    async def write() -> None:
        unanswered = set(swallow)
        async with outbox_out:
            async for item in outbox_out:
                message = item.message
                if unanswered and isinstance(message, types.JSONRPCResponse) and message.id in unanswered:
                    unanswered.discard(message.id)
                    continue
                writer.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_until_closed, read)
        tasks.start_soon(_until_closed, write)
        yield inbox, outbox
        tasks.cancel_scope.cancel()


async def _until_closed(work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError, ValueError):
        await anyio.lowlevel.checkpoint()


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _open_pipes() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    wire_in, wire_out = _claim_descriptors()
    reader = asyncio.StreamReader(limit=_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(wire_in, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.streams.FlowControlMixin(loop), os.fdopen(wire_out, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def _claim_descriptors() -> tuple[int, int]:
    """Private duplicates of stdin and stdout; the standard ones are led elsewhere."""
    wire_in, wire_out = os.dup(0), os.dup(1)
    sys.stdout.flush()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    os.dup2(2, 1)
    return wire_in, wire_out
