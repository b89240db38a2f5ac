"""MCP over this process's stdin and stdout: on asyncio pipes, or with a thread for each direction if stdin or stdout is
not a pipe.

The SDK's own transport reads and writes through threads, which more than doubles the time of a call, and a thread that
reads a terminal keeps the process from ending. While serving, fd 1 is redirected to stderr and fd 0 to /dev/null, so
that neither a stray print nor a child can disturb the protocol.
"""

import asyncio
import json
import logging
import os
import queue
import sys
import threading
from asyncio.streams import FlowControlMixin
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Protocol

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from ...core import json_text
from ...startup.greeting.first_answers import GreetedInput
from ...startup.greeting.loop import on_pipes
from ..message_streams import ReceiveStream, SendStream, message_streams
from ..sdk import DirectOutbox, LineOutbox, NotificationLines, answer_on, line_outbox, sound_line

log = logging.getLogger(__name__)

MAX_LINE = 64 << 20
_CHUNK = 1 << 16
_READ_AHEAD = 64
"""Maximum chunks that a thread reads ahead."""
_ANSWER_GRACE = 0.5
"""Seconds after the end of input in which requests may still be answered: some clients are a `printf` into a pipe."""
MAX_UNREAD = 2000
"""Maximum requests accepted from a client that does not read the answers."""
_FLUSH_TIMEOUT = 1.0
"""Seconds that a slow client has to read everything written before the end."""

Inbox = ReceiveStream[SessionMessage | Exception]
Outbox = SendStream[SessionMessage]


@asynccontextmanager
async def stdio_streams(greeted: GreetedInput) -> AsyncIterator[tuple[Inbox, Outbox]]:
    """The two streams of the transport, starting with the input that the greeting left unread. Requests that the
    greeting already answered are passed on, but not answered a second time."""
    connection, piped = LineConnection(), on_pipes()
    # First: it arrived before the data that is still in the pipe.
    if greeted.unread:
        connection.reader.feed_data(greeted.unread)
    with _redirected(0, os.devnull) as stdin, _redirected(1, None) as stdout:
        # Duplicates: a thread's descriptor stays open, since one closed under it could be reused for another file.
        read_from, write_to = os.dup(stdin), os.dup(stdout)
        if piped:
            loop, output = asyncio.get_running_loop(), _PipeOutput(connection)
            reading, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(connection.reader), os.fdopen(read_from, "rb", 0)
            )
            await loop.connect_write_pipe(lambda: output, os.fdopen(write_to, "wb", 0))
            connection.output = output
        else:
            if sys.platform != "win32":
                for descriptor in (stdin, stdout):
                    os.set_blocking(descriptor, True)
            connection.output = _ThreadOutput(connection, write_to)
            _read_in_a_thread(read_from, connection.reader)
        try:
            async with line_streams(connection, greeted.answered) as streams:
                yield streams
        finally:
            if piped:
                reading.close()
            await connection.output.close()


@asynccontextmanager
async def line_streams(
    connection: "LineConnection", answered: Iterable[types.RequestId] = (), *, direct: bool = False
) -> AsyncIterator[tuple[Inbox, Outbox]]:
    """The two streams of a line-based connection; requests in `answered` are not answered again. With `direct`,
    messages are written by the sending tasks, for connections whose `send` usually does not wait."""
    async with anyio.create_task_group() as tasks:
        inbox_in, inbox = message_streams()
        outbox: LineOutbox
        if direct:
            outbox = DirectOutbox(connection.send_unqueued)
        else:
            outbox, outbox_out = line_outbox()
            tasks.start_soon(_send, connection, outbox_out, set(answered))
        tasks.start_soon(_receive, connection, inbox_in, outbox)
        yield inbox, outbox
        tasks.cancel_scope.cancel()


class ClientOutput(Protocol):
    """Where lines to the client go."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait while the client is slow. ConnectionError if it has disconnected."""

    async def close(self) -> None:
        """Close it after everything is written, or after a timeout."""


class LineConnection:
    """The client at the other end: lines from it and lines to it."""

    def __init__(self, reader: asyncio.StreamReader | None = None) -> None:
        self.reader = reader or asyncio.StreamReader(limit=MAX_LINE)
        self.open = anyio.CancelScope()
        """Cancelled when the client stops reading, to end the connection."""
        self.unanswered = Unanswered()
        self.output: ClientOutput

    async def line(self) -> bytes:
        """The next line, empty at the end of input. A line that is too long is skipped, and replaced by one that
        cannot be parsed, so that the client gets an error for it."""
        try:
            return await self.reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as end:
            return end.partial
        except asyncio.LimitOverrunError as overrun:
            await self.reader.readexactly(overrun.consumed)
            await self.line()
            return b"a line that is too long"

    async def send(self, item: SessionMessage) -> None:
        """Send a message of the server, or several notifications."""
        if isinstance(item, NotificationLines):
            await self._write_out(b"".join([line + b"\n" for line in item.lines]))
        else:
            await self.write(item.message)

    async def send_unqueued(self, item: SessionMessage) -> None:
        """Like `send`, for an outbox without a queue."""
        await self.send(item)
        # After it was written: the end of input waits for this.
        self.unanswered.sent(item.message)

    async def write(self, message: types.JSONRPCMessage) -> None:
        """Send a message, unless the client stopped reading. A message that cannot be written is dropped; an answer is
        replaced by an error."""
        try:
            line = sound_line(message)
        except ValueError as error:
            log.error("dropped a message to the client: %s", error)
            return
        await self._write_out(line)

    async def _write_out(self, data: bytes) -> None:
        self.output.write(data)
        with suppress(ConnectionError):
            await self.output.drain()


class _PipeOutput(FlowControlMixin):
    """stdout as a pipe. It is the pipe's asyncio protocol, so it notices when the client closes its end, and then ends
    the connection."""

    def __init__(self, connection: LineConnection) -> None:
        super().__init__()
        self._connection = connection
        self._closed = asyncio.Event()
        self._stdout: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._stdout = transport

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._closed.set()
        self._connection.open.cancel()

    def write(self, data: bytes) -> None:
        if not self._closed.is_set():
            self._stdout.write(data)

    async def drain(self) -> None:
        await self._drain_helper()  # type: ignore[attr-defined]

    async def close(self) -> None:
        self._stdout.close()
        # Shielded: written data is sent even if the server was cancelled.
        with anyio.move_on_after(_FLUSH_TIMEOUT, shield=True):
            await self._closed.wait()
        if not self._closed.is_set():
            self._stdout.abort()


class _ThreadOutput:
    """stdout as anything else, such as a file or a terminal; a daemon thread writes to it, so that it never blocks the
    loop."""

    def __init__(self, connection: LineConnection, descriptor: int) -> None:
        self._connection = connection
        self._descriptor = descriptor
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        threading.Thread(target=self._work, name="stdout", daemon=True).start()

    def write(self, data: bytes) -> None:
        self._lines.put(data)

    async def drain(self) -> None:
        """Return at once: the thread's queue is not bounded, because files and terminals do not block for long."""

    async def close(self) -> None:
        self._lines.put(None)
        with anyio.move_on_after(_FLUSH_TIMEOUT, shield=True):
            await self._ended.wait()

    def _work(self) -> None:
        with suppress(OSError):  # the client stopped reading
            while (data := self._lines.get()) is not None:
                while data:
                    data = data[os.write(self._descriptor, data) :]
        with suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._ended.set()
        self._connection.open.cancel()


def _read_in_a_thread(descriptor: int, reader: asyncio.StreamReader) -> None:
    """Feed the reader from a daemon thread. The thread is never joined, because a blocking read of a terminal cannot be
    cancelled and must not keep the process from ending."""
    loop, capacity = asyncio.get_running_loop(), threading.Semaphore(_READ_AHEAD)

    def feed(data: bytes) -> None:
        if data:
            reader.feed_data(data)
        else:
            reader.feed_eof()
        capacity.release()

    def read_chunks() -> None:
        data = b"-"
        with suppress(RuntimeError):  # the loop is closed
            while data:
                # Waits for the loop: otherwise the thread would read any amount into memory.
                capacity.acquire()
                try:
                    data = os.read(descriptor, _CHUNK)
                except OSError:
                    data = b""
                loop.call_soon_threadsafe(feed, data)

    threading.Thread(target=read_chunks, name="stdin", daemon=True).start()


class Unanswered:
    """The requests that the client may still be waiting for."""

    def __init__(self) -> None:
        self._ids: set[types.RequestId] = set()
        self._idle = asyncio.Event()

    def received(self, message: types.JSONRPCMessage) -> None:
        """Note a request that must be answered unless the client cancels it."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            cancelled = (message.params or {}).get("requestId")
            if isinstance(cancelled, int | str):
                self._settled(cancelled)

    def sent(self, message: types.JSONRPCMessage) -> None:
        """Note the answer to a request."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._settled(message.id)

    def _settled(self, request_id: types.RequestId) -> None:
        self._ids.discard(request_id)
        if not self._ids:
            self._idle.set()

    @property
    def count(self) -> int:
        return len(self._ids)

    async def wait_until_answered(self) -> None:
        """Wait until every request is answered or cancelled."""
        while self._ids:
            # No await between the check and `clear`: a later answer sets it again.
            self._idle.clear()
            await self._idle.wait()


async def _receive(
    connection: LineConnection, inbox: SendStream[SessionMessage | Exception], outbox: LineOutbox
) -> None:
    answer_on(outbox)
    with connection.open, suppress(anyio.BrokenResourceError):
        async with inbox:
            while line := await connection.line():
                try:
                    message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                except (ValueError, RecursionError):
                    if (refusal := _refusal(line)) is not None:
                        await connection.write(refusal)
                else:
                    # Before `send`: the answer may arrive before it returns.
                    connection.unanswered.received(message)
                    await inbox.send(SessionMessage(message))
                # Back-pressure: nothing more is read from a client that does not read its answers.
                if connection.unanswered.count >= MAX_UNREAD:
                    with suppress(ConnectionError):
                        await connection.output.drain()
            # The input has ended, and closing `inbox` would end the server: running requests get a moment.
            with anyio.move_on_after(_ANSWER_GRACE):
                await connection.unanswered.wait_until_answered()


async def _send(
    connection: LineConnection, outbox: ReceiveStream[SessionMessage], answered: set[types.RequestId]
) -> None:
    async with outbox:
        async for item in outbox:
            message = item.message
            if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id in answered:
                answered.discard(message.id)
            else:
                await connection.send(item)
            # After it was written: the end of input waits for this.
            connection.unanswered.sent(message)


def _refusal(line: bytes) -> types.JSONRPCError | None:
    """The JSON-RPC error for a line that is not a message; None for blank lines and broken responses."""
    try:
        message = json.loads(line) if line.strip() else {}
    except (ValueError, RecursionError):
        return _error(None, types.PARSE_ERROR, "Parse error")
    if not isinstance(message, dict):
        return _error(None, types.INVALID_REQUEST, "Invalid request: batches and bare values are not accepted")
    if "method" not in message:
        return None
    request_id = message.get("id")
    is_valid_id = type(request_id) in (int, str) and json_text.flaw(request_id) is None
    return _error(request_id if is_valid_id else None, types.INVALID_REQUEST, "Invalid request")


def _error(request_id: types.RequestId | None, code: int, message: str) -> types.JSONRPCError:
    return types.JSONRPCError(jsonrpc="2.0", id=request_id, error=types.ErrorData(code=code, message=message))


@contextmanager
def _redirected(fd: int, instead: str | None) -> Iterator[int]:
    """A private duplicate of a standard descriptor, which is redirected in the meantime: to `instead`, or to stderr.

    At the end the descriptor is restored, including blocking mode: asyncio makes the open file non-blocking, which
    affects every process that shares it.
    """
    private, blocking = os.dup(fd), None if sys.platform == "win32" else os.get_blocking(fd)
    elsewhere = os.dup(2) if instead is None else os.open(instead, os.O_RDONLY)
    # Earlier output must not appear after the redirection.
    if sys.stdout is not None:
        sys.stdout.flush()
    os.dup2(elsewhere, fd)
    os.close(elsewhere)
    try:
        yield private
    finally:
        if blocking is not None:
            os.set_blocking(private, blocking)
        os.dup2(private, fd)
        os.close(private)
