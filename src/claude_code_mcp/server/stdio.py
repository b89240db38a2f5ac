"""MCP over this process's stdin and stdout, on asyncio pipes.

The SDK's own transport reads and writes through threads, which more than doubles the time of a call; it serves where
there are no pipes. While serving, fd 1 leads to stderr and fd 0 to nowhere, so that neither a stray print nor a child
can touch the protocol.
"""

import asyncio
import json
import os
import sys
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
import mcp_types as types
from mcp.server.stdio import stdio_server
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams
from mcp.shared.message import SessionMessage

from ..front import on_pipes
from ..greeting import Heard

LONGEST_LINE = 64 << 20
_LAST_ANSWERS = 0.5
"""Seconds after the end of input in which requests may still be answered: some clients are a `printf` into a pipe."""
_LAST_WORDS = 1.0
"""Seconds that a slow client has for what was written before the end."""

Inbox = ContextReceiveStream[SessionMessage | Exception]
Outbox = ContextSendStream[SessionMessage]


@asynccontextmanager
async def stdio_streams(heard: Heard) -> AsyncIterator[tuple[Inbox, Outbox]]:
    """The two streams of the transport, beginning with what was heard before it was there."""
    if not on_pipes():
        async with stdio_server() as (inbox, outbox):
            yield inbox, outbox
        return
    async with _open_wire(heard.unread) as wire, anyio.create_task_group() as tasks:
        inbox_in, inbox = create_context_streams[SessionMessage | Exception](0)
        outbox, outbox_out = create_context_streams[SessionMessage](0)
        tasks.start_soon(_receive, wire, inbox_in)
        tasks.start_soon(_send, wire, outbox_out, set(heard.answered))
        yield inbox, outbox
        tasks.cancel_scope.cancel()


class _Wire(FlowControlMixin):
    """Lines from the client and lines to it. As the protocol of stdout it hears when nobody reads them any more."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = asyncio.StreamReader(limit=LONGEST_LINE)
        self.open = anyio.CancelScope()
        """Cancelled when the client reads no more: then there is nobody to serve."""
        self.unanswered = _Unanswered()
        self._closed = asyncio.Event()
        self._stdout: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._stdout = transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed.set()
        self.open.cancel()

    async def line(self) -> bytes:
        """The next line, empty at the end of input. What is too long comes out as something that nobody can parse."""
        try:
            return await self.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            return end.partial
        except asyncio.LimitOverrunError as overrun:
            await self.reader.readexactly(overrun.consumed)
            await self.line()
            return b"a line that is too long"

    async def write(self, message: types.JSONRPCMessage) -> None:
        """Sends a message, or nothing when nobody reads any more."""
        if self._closed.is_set():
            return
        self._stdout.write(message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
        with suppress(ConnectionError):
            await self._drain_helper()  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Ends it when all is written, or after a while in any case."""
        self._stdout.close()
        with anyio.move_on_after(_LAST_WORDS, shield=True):
            await self._closed.wait()
        if not self._closed.is_set():
            self._stdout.abort()


class _Unanswered:
    """The requests that the client may still wait for."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()
        self._none = asyncio.Event()

    def note(self, message: types.JSONRPCMessage) -> None:
        """A message from the client: a request is to be answered, unless it is called off."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._ids.discard((message.params or {}).get("requestId", ""))

    def strike(self, message: types.JSONRPCMessage) -> None:
        """A message to the client."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._ids.discard(message.id)
            if not self._ids:
                self._none.set()

    async def none_left(self) -> None:
        while self._ids:
            self._none.clear()
            await self._none.wait()


async def _receive(wire: _Wire, inbox: ContextSendStream[SessionMessage | Exception]) -> None:
    with wire.open, suppress(anyio.BrokenResourceError):
        async with inbox:
            while line := await wire.line():
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:
                    if (refusal := _refusal(line)) is not None:
                        await wire.write(refusal)
                else:
                    wire.unanswered.note(message)
                    await inbox.send(SessionMessage(message))
            with anyio.move_on_after(_LAST_ANSWERS):
                await wire.unanswered.none_left()


async def _send(wire: _Wire, outbox: ContextReceiveStream[SessionMessage], answered: set[types.RequestId]) -> None:
    async with outbox:
        async for item in outbox:
            message = item.message
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id in answered:
                answered.discard(message.id)
            else:
                await wire.write(message)
            wire.unanswered.strike(message)


def _refusal(line: bytes) -> types.JSONRPCError | None:
    """What JSON-RPC says to a line that is no message. Silence is kept only towards blanks and broken responses."""
    try:
        message = json.loads(line) if line.strip() else {}
    except (ValueError, RecursionError):
        return _error(None, types.PARSE_ERROR, "Parse error")
    if not isinstance(message, dict):
        return _error(None, types.INVALID_REQUEST, "Invalid request: batches and bare values are not accepted")
    if "method" not in message:
        return None
    request_id = message.get("id")
    known = request_id if type(request_id) in (int, str) else None
    return _error(known, types.INVALID_REQUEST, "Invalid request")


def _error(request_id: types.RequestId | None, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=message))


@asynccontextmanager
async def _open_wire(unread: bytes) -> AsyncIterator[_Wire]:
    loop, wire = asyncio.get_running_loop(), _Wire()
    wire.reader.feed_data(unread)
    with _claimed(0, os.devnull) as stdin, _claimed(1, None) as stdout:
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(wire.reader), os.fdopen(os.dup(stdin), "rb", 0)
        )
        await loop.connect_write_pipe(lambda: wire, os.fdopen(os.dup(stdout), "wb", 0))
        try:
            yield wire
        finally:
            reading.close()
            await wire.close()


@contextmanager
def _claimed(fd: int, instead: str | None) -> Iterator[int]:
    """A private duplicate of a standard descriptor, which meanwhile leads elsewhere: to `instead`, or to stderr.

    Whoever shares the pipe with us gets it back as it was: asyncio makes it non-blocking for everybody.
    """
    private, blocking = os.dup(fd), os.get_blocking(fd)
    elsewhere = os.dup(2) if instead is None else os.open(instead, os.O_RDONLY)
    sys.stdout.flush()
    os.dup2(elsewhere, fd)
    os.close(elsewhere)
    try:
        yield private
    finally:
        os.set_blocking(private, blocking)
        os.dup2(private, fd)
        os.close(private)
