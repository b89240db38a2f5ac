"""Everything of the MCP SDK that is private to it and that this server uses, and which revision of the protocol a
request is of: an upgrade of the SDK has one place to look. The hub, which is a client of the SDK, has its own such
place in `hub/streams.py`.

What every message passes on all transports is here too: a check that it can be written as JSON, and a line in the debug
log, without its contents.

So are the event streams of HTTP clients: the standing one of a connection, and that which answers a request. The SDK
passes each message of a request through four queues, one at a time, which costs more than all that is done with it
before. A tool may instead write several at once to the response of its own request (`ResponseStream`), as one piece of
the body. What is written there never falls behind what is written here later, and is on its way before the tool returns
its result. It may overtake what the tool has sent through the SDK a moment before.
"""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel
import mcp_types as types
from anyio import BrokenResourceError, ClosedResourceError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic_core import to_json

from ..core import json_text
from .message_streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

__all__ = [
    "ChangingServer",
    "Context",
    "DirectOutbox",
    "LineOutbox",
    "NotificationLines",
    "answer_on",
    "ask_client",
    "cancelled_by_client",
    "checked_results",
    "connection_id",
    "end_connections",
    "is_modern",
    "line_outbox",
    "log_pushed",
    "notification_line",
    "notify_client",
    "once_per_connection",
    "send_all",
    "send_lines",
    "send_many",
    "send_notification",
    "sound_line",
    "takes_lines",
    "with_line_outbox",
]

Context = ServerRequestContext[Any, Any]
StateT = TypeVar("StateT")

_STATE_KEY = "claude-code-mcp"
_SENDS_IN_A_ROW = 16


class ChangingServer(Server[Any]):
    """A server whose lists change, and that announces this in its handshake."""

    tools_change = False
    """Whether its tools and prompts change too, and not only its resources."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = notification_options or NotificationOptions(
            prompts_changed=self.tools_change, resources_changed=True, tools_changed=self.tools_change
        )
        return super().create_initialization_options(changing, experimental_capabilities, extensions)


def is_modern(protocol_version: str) -> bool:
    """Whether this is a revision in which the server may not send requests."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


async def send_notification(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """Sends a notification of our own kind on the stream of this call, without building an SDK model for it.

    Parameters that JSON cannot represent are mended first; ValueError if that is not possible.
    """
    log_pushed("notification", method)
    await context.session._request_outbound.notify(method, writable(params))


async def send_many(context: Context, method: str, params: Iterable[Mapping[str, Any]]) -> None:
    """Sends notifications in order, as `send_notification` does, but over HTTP in one piece where that is possible."""
    await send_all(context, ((method, each) for each in params))


async def send_all(context: Context, notifications: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """As `send_many`, of any methods."""
    known = list(notifications)
    if not takes_lines(context):
        for method, params in known:
            await send_notification(context, method, params)
    else:
        await send_lines(context, [notification_line(method, params) for method, params in known])


def takes_lines(context: Context) -> bool:
    """Whether `send_lines` can be used for this call."""
    if context.request is not None:
        return response_stream_of(context.request) is not None
    return _line_outbox(context) is not None


async def send_lines(context: Context, lines: Sequence[bytes]) -> None:
    """Sends notifications that are encoded already, in order and in one piece, on the stream of this call. The SDK
    would pass each through several queues, which costs more than everything else that is done with it."""
    log_pushed("notifications", str(len(lines)))
    stream = response_stream_of(context.request) if context.request is not None else None
    if stream is not None:
        await stream.write(lines)
    elif (outbox := _line_outbox(context)) is not None:
        related = ServerMessageMetadata(related_request_id=context.request_id)
        with suppress(BrokenResourceError, ClosedResourceError):  # the client has left
            await outbox.send(NotificationLines(cast("Any", None), related, lines))


@dataclass
class NotificationLines(SessionMessage):
    """Notifications that are encoded already, among the messages of the SDK."""

    lines: Sequence[bytes] = ()


class LineOutbox(SendStream[SessionMessage]):
    """The outbox of a transport of ours that speaks in lines: it takes `NotificationLines` too."""


def line_outbox() -> tuple[LineOutbox, ReceiveStream[SessionMessage]]:
    """An outbox whose messages are taken at its other end."""
    sending, receiving = anyio.create_memory_object_stream[Any](0)
    return LineOutbox(sending), ReceiveStream(receiving)


class DirectOutbox(LineOutbox):
    """An outbox that hands each message to `write` in the task that sends it, without a queue in between."""

    def __init__(self, write: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._write = write
        self._sent = 0
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        if self._closed:
            raise ClosedResourceError
        await self._write(item)
        self._sent += 1
        # A write that need not wait would never let others run.
        if self._sent % _SENDS_IN_A_ROW == 0:
            await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._closed = True


_outbox_of_sender: ContextVar[LineOutbox | None] = ContextVar("outbox_of_sender", default=None)
_outboxes: WeakKeyDictionary[ServerSession, LineOutbox] = WeakKeyDictionary()
"""The outbox for the answers to each request that is being handled, by the session that the SDK makes for it."""


def answer_on(outbox: LineOutbox) -> None:
    """Has the requests that are passed on in this context from now on answered on this outbox."""
    _outbox_of_sender.set(outbox)


async def with_line_outbox(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK's server: `send_lines` finds the outbox of a call for as long as the call is handled."""
    # The SDK runs this in the context in which the transport has passed the request on.
    outbox = _outbox_of_sender.get()
    if outbox is None or ctx.request_id is None:
        return await call_next(ctx)
    _outboxes[ctx.session] = outbox
    try:
        return await call_next(ctx)
    finally:
        del _outboxes[ctx.session]


def _line_outbox(context: Context) -> LineOutbox | None:
    """The outbox of the transport behind this call, if it takes lines and the call has not ended."""
    return _outboxes.get(context.session)


async def ask_client(
    context: Context, method: str, params: Mapping[str, Any], *, in_call: bool = True
) -> Mapping[str, Any]:
    """Sends a request of any method to the client, on the stream of this call or, if not `in_call`, on that of its
    connection; the result as the client gave it. Raises MCPError with its error, or where it takes no requests."""
    log_pushed("request", method)
    session = context.session
    outbound = session._request_outbound if in_call else session._connection.outbound
    return await outbound.send_raw_request(method, params)


async def notify_client(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """Sends a notification outside of any call, on the connection of this one."""
    log_pushed("notification", method)
    await context.session._connection.outbound.notify(method, writable(params))


def once_per_connection(context: Context, make: Callable[[], StateT], close: Callable[[StateT], None]) -> StateT:
    """The state of this request's connection: made by `make` at the first request, passed to `close` when the
    connection ends."""
    connection = context.session._connection
    if _STATE_KEY not in connection.state:
        state = make()
        connection.state[_STATE_KEY] = state
        connection.exit_stack.callback(close, state)
    existing: StateT = connection.state[_STATE_KEY]
    return existing


def cancelled_by_client(context: Context) -> bool:
    """Whether the client itself has cancelled this call. If not, a cancellation means that the client or the server is
    going away."""
    return bool(context.session._request_outbound.cancel_requested.is_set())


def connection_id(context: Context) -> str | None:
    """The `Mcp-Session-Id` of this connection; None on transports without one."""
    return context.session._connection.session_id


async def end_connections(server: Server[Any], client_id: str, subject: str) -> None:
    """Ends the connections over HTTP that were opened with this credential, and with them every call and stream."""
    manager = server.session_manager
    opened = [
        (session_id, manager._server_instances.get(session_id))
        for session_id, owner in manager._session_owners.items()
        if (owner["client_id"], owner["subject"]) == (client_id, subject)
    ]
    for session_id, transport in opened:
        if transport is not None:
            await manager._discard_session(session_id, transport)


# -- what can be written as JSON ---------------------------------------------------------------------------------------


async def checked_results(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK's server: a result that JSON cannot represent is mended, or becomes an error."""
    if log.isEnabledFor(logging.DEBUG):
        kind, named = "notification" if ctx.request_id is None else "request", (ctx.params or {}).get("name")
        tool = f" {named[:100]!r}" if isinstance(named, str) else ""
        log.debug("<- client %s %s%s%s", kind, ctx.method, tool, _id(ctx))
    try:
        result = await call_next(ctx)
    except MCPError as error:
        _log_sent(ctx, "error", None)
        if json_text.flaw([error.message, error.data]) is None:
            raise
        raise MCPError(error.code, json_text.sound_text(error.message)) from None
    return result if ctx.request_id is None else _checked(ctx, result)


def _checked(context: Context, result: HandlerResult) -> HandlerResult:
    try:
        size = len(to_json(result))
    except ValueError:
        try:
            result = json_text.sound(result)
        except ValueError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The result cannot be written as JSON: {error}") from None
        size = len(to_json(result))
    _log_sent(context, "result", size)
    return result


def writable(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of something that is pushed, mended if need be. ValueError if that is not possible."""
    try:
        to_json(params)
        return params
    except ValueError:
        mended: Mapping[str, Any] = json_text.sound(params)
        return mended


def notification_line(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification as JSON without line breaks, mended if need be. ValueError if that is not possible."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    try:
        return to_json(message, inf_nan_mode="null")
    except ValueError:
        return json_text.encode(message)


def sound_line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. One that JSON cannot represent is mended; an answer that cannot be mended becomes an error
    with its id. ValueError if nothing is left that could be sent."""
    try:
        return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
    except ValueError:
        pass
    try:
        return json_text.encode(message.model_dump(by_alias=True, exclude_unset=True, warnings=False)) + b"\n"
    except ValueError:
        if not isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            raise
    problem = {"code": types.INTERNAL_ERROR, "message": "The result cannot be written as JSON."}
    return json_text.encode({"jsonrpc": "2.0", "id": message.id, "error": problem}) + b"\n"


def _log_sent(context: Context, kind: str, size: int | None) -> None:
    if log.isEnabledFor(logging.DEBUG):
        bytes_ = "" if size is None else f" {size} bytes"
        log.debug("-> client %s of %s%s%s", kind, context.method, _id(context), bytes_)


def log_pushed(kind: str, method: str) -> None:
    """A request or notification that the server sends on its own."""
    log.debug("-> client %s %s", kind, method)


def _id(context: Context) -> str:
    return "" if context.request_id is None else f" id {str(context.request_id)[:100]!r}"


# -- streams over HTTP ------------------------------------------------------------------------------------------------


_HEADER = b"mcp-session-id"


class OpenStreams:
    """Counts the GET requests that are being answered, by the connection that they belong to."""

    def __init__(self, opened: Callable[[str], None]) -> None:
        """`opened` is called with the connection of each stream that begins."""
        self._opened = opened
        self._open: Counter[str] = Counter()

    def is_open(self, connection: str | None) -> bool:
        return connection is not None and self._open[connection] > 0

    def middleware(self, app: "ASGIApp") -> "ASGIApp":
        """The application with the streams of its GET requests counted."""

        async def counting(scope: "Scope", receive: "Receive", send: "Send") -> None:
            connection = _connection_id(scope)
            if connection is None:
                await app(scope, receive, send)
                return
            counted = False

            async def send_counted(message: "Message") -> None:
                nonlocal counted
                await send(message)
                # After it was sent: only now does the client read the stream.
                if message["type"] == "http.response.start" and message["status"] == 200 and not counted:
                    counted = True
                    self._open[connection] += 1
                    self._opened(connection)

            try:
                await app(scope, receive, send_counted)
            finally:
                if counted:
                    self._open[connection] -= 1
                    if not self._open[connection]:
                        del self._open[connection]

        return counting


def _connection_id(scope: "Scope") -> str | None:
    """The connection that a GET request belongs to."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), None)


# -- response streams -------------------------------------------------------------------------------------------------


_KEY = "claude_code_mcp.response_stream"
_EVENT = b"event: message\r\ndata: %b\r\n\r\n"


class ResponseStream:
    """The response of one request, from the moment that it turns out to be an event stream until it ends."""

    def __init__(self, send: "Send") -> None:
        self._send = send
        self._open = False
        self._used: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether messages can be written here. The first answer holds: with some messages here and others through the
        SDK, the later could overtake the earlier."""
        if self._used is None:
            self._used = self._open
        return self._used

    async def write(self, messages: Iterable[bytes]) -> None:
        """Writes messages (each one line of JSON); waits while the client does not read. What is written after the end
        of the response, or to a client that has gone, is dropped."""
        if self._open:
            body = b"".join([_EVENT % message for message in messages])
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def pass_on(self, message: "Message") -> None:
        """Passes on a message of the SDK, and notes from it whether messages can be written here."""
        # Before the last piece: nothing may be written behind it.
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._open = False
        await self._send(message)
        # After the head: no body may come before it.
        if message["type"] == "http.response.start":
            self._open = message["status"] == 200 and any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )


def response_streams(app: "ASGIApp") -> "ASGIApp":
    """Middleware that gives every POST request its `ResponseStream`."""

    async def with_stream(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        stream = ResponseStream(send)
        await app({**scope, _KEY: stream}, receive, stream.pass_on)

    return with_stream


def response_stream_of(request: Any) -> ResponseStream | None:
    """The stream of an HTTP request, if messages can be written to it; `request` is what the SDK gives a handler."""
    stream = request.scope.get(_KEY)
    return stream if isinstance(stream, ResponseStream) and stream.usable else None
