"""Everything of the MCP SDK that is private to it and that this server uses: an upgrade of the SDK has one place to
look. The hub, which is a client of the SDK, has its own such place in `hub/streams.py`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared._context_streams import ContextReceiveStream, ContextSendStream, create_context_streams

from .transports.response_streams import response_stream_of
from .transports.wire import log_pushed, notification_line, writable

__all__ = [
    "ChangingServer",
    "Context",
    "ContextReceiveStream",
    "ContextSendStream",
    "cancelled_by_client",
    "connection_id",
    "create_context_streams",
    "end_connections",
    "once_per_connection",
    "send_many",
    "send_notification",
]

Context = ServerRequestContext[Any, Any]
StateT = TypeVar("StateT")

_STATE_KEY = "claude-code-mcp"


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


async def send_notification(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """Sends a notification of our own kind on the stream of this call, without building an SDK model for it.

    Parameters that JSON cannot represent are mended first; ValueError if that is not possible.
    """
    log_pushed("notification", method)
    await context.session._request_outbound.notify(method, writable(params))


async def send_many(context: Context, method: str, params: Iterable[Mapping[str, Any]]) -> None:
    """Sends notifications in order, as `send_notification` does, but over HTTP in one piece where that is possible."""
    stream = response_stream_of(context.request)
    if stream is None:
        for each in params:
            await send_notification(context, method, each)
    else:
        lines = [notification_line(method, each) for each in params]
        log_pushed(f"{len(lines)} notifications", method)
        await stream.write(lines)


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
