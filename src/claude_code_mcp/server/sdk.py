"""All uses of private parts of the MCP SDK, and the protocol revision of a request.

Check this module when upgrading the SDK, and `hub/streams.py` for the hub, which is a client of the SDK. Every message
of all transports passes through here: it is checked to be valid JSON, and its kind is written to the debug log, without
its contents.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar, cast
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
from .http_streams import response_stream_of
from .message_streams import ReceiveStream, SendStream

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

    prompts_change = False
    """Whether its prompts change too, and not only its resources and tools. Tools change if the greeting did not know a
    plug-in's tools."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = notification_options or NotificationOptions(
            prompts_changed=self.prompts_change, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(changing, experimental_capabilities, extensions)


def is_modern(protocol_version: str) -> bool:
    """Whether this is a revision in which the server may not send requests."""
    return protocol_version in MODERN_PROTOCOL_VERSIONS


async def send_notification(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """Send a notification of our own kind on the stream of this call, without building an SDK model for it.

    Parameters that JSON cannot represent are repaired first; ValueError if that is not possible.
    """
    log_pushed("notification", method)
    await context.session._request_outbound.notify(method, writable(params))


async def send_all(context: Context, notifications: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Send notifications, each with its method, in order like `send_notification`, but in one piece where possible."""
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
    return context.session in _outboxes


async def send_lines(context: Context, lines: Sequence[bytes]) -> None:
    """Send already encoded notifications, in order and in one piece, on the stream of this call. The SDK would pass
    each through several queues, which costs more than producing it."""
    log_pushed("notifications", str(len(lines)))
    stream = response_stream_of(context.request) if context.request is not None else None
    if stream is not None:
        await stream.write(lines)
    elif (outbox := _outboxes.get(context.session)) is not None:
        related = ServerMessageMetadata(related_request_id=context.request_id)
        with suppress(BrokenResourceError, ClosedResourceError):  # the client disconnected
            await outbox.send(NotificationLines(cast("Any", None), related, lines))


@dataclass
class NotificationLines(SessionMessage):
    """Already encoded notifications, among the messages of the SDK."""

    lines: Sequence[bytes] = ()


class LineOutbox(SendStream[SessionMessage]):
    """The outbox of our own line-based transports, which also accepts `NotificationLines`."""


def line_outbox() -> tuple[LineOutbox, ReceiveStream[SessionMessage]]:
    """An outbox, and the end from which its messages are received."""
    sending, receiving = anyio.create_memory_object_stream[Any](0)
    return LineOutbox(sending), ReceiveStream(receiving)


class DirectOutbox(LineOutbox):
    """An outbox that passes each message to `write` in the sending task, without a queue in between."""

    def __init__(self, write: Callable[[SessionMessage], Awaitable[None]]) -> None:
        self._write = write
        self._sent = 0
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        if self._closed:
            raise ClosedResourceError
        await self._write(item)
        self._sent += 1
        # A write that never waits would never let other tasks run.
        if self._sent % _SENDS_IN_A_ROW == 0:
            await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._closed = True


_outbox_of_sender: ContextVar[LineOutbox | None] = ContextVar("outbox_of_sender", default=None)
_outboxes: WeakKeyDictionary[ServerSession, LineOutbox] = WeakKeyDictionary()
"""The outbox for the answers to each current request whose transport takes lines, by the session that the SDK creates
for it."""


def answer_on(outbox: LineOutbox) -> None:
    """Answer the requests passed on in this context on this outbox from now on."""
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


async def ask_client(
    context: Context, method: str, params: Mapping[str, Any], *, in_call: bool = True
) -> Mapping[str, Any]:
    """Send a request of any method to the client, on the stream of this call or, if not `in_call`, on the connection's;
    return the client's result. Raises MCPError with the client's error, or if the client does not accept requests."""
    log_pushed("request", method)
    session = context.session
    outbound = session._request_outbound if in_call else session._connection.outbound
    return await outbound.send_raw_request(method, params)


async def notify_client(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """Send a notification outside any call, on this call's connection."""
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
    """Whether the client itself cancelled this call. Otherwise a cancellation means that the client disconnected or the
    server is stopping."""
    return bool(context.session._request_outbound.cancel_requested.is_set())


def connection_id(context: Context) -> str | None:
    """The `Mcp-Session-Id` of this connection; None on transports without one."""
    return context.session._connection.session_id


async def end_connections(server: Server[Any], client_id: str, subject: str) -> None:
    """End the HTTP connections that were opened with this credential, with all their calls and streams."""
    manager = server.session_manager
    opened = [
        (session_id, manager._server_instances.get(session_id))
        for session_id, owner in manager._session_owners.items()
        if (owner["client_id"], owner["subject"]) == (client_id, subject)
    ]
    for session_id, transport in opened:
        if transport is not None:
            await manager._discard_session(session_id, transport)


async def checked_results(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Middleware of the SDK's server: a result that JSON cannot represent is repaired, or becomes an error."""
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
    if ctx.request_id is None:
        return result
    try:
        size = len(to_json(result))
    except ValueError:
        try:
            result = json_text.sound(result)
        except ValueError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The result cannot be written as JSON: {error}") from None
        size = len(to_json(result))
    _log_sent(ctx, "result", size)
    return result


def writable(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """The parameters of a pushed message, repaired if needed. ValueError if that is not possible."""
    try:
        to_json(params)
        return params
    except ValueError:
        mended: Mapping[str, Any] = json_text.sound(params)
        return mended


def notification_line(method: str, params: Mapping[str, Any]) -> bytes:
    """A notification as JSON without line breaks, repaired if needed. ValueError if that is not possible."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    try:
        return to_json(message, inf_nan_mode="null")
    except ValueError:
        return json_text.encode(message)


def sound_line(message: types.JSONRPCMessage) -> bytes:
    """A message as a line. A message that JSON cannot represent is repaired; an answer that cannot be repaired becomes
    an error with its id. ValueError if nothing can be sent."""
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
    """Log a request or notification that the server sends on its own."""
    log.debug("-> client %s %s", kind, method)


def _id(context: Context) -> str:
    return "" if context.request_id is None else f" id {str(context.request_id)[:100]!r}"
