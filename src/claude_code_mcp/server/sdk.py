"""The private corners of the MCP SDK that this server needs, in one place so that an upgrade has one place to look."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions

from .elicitation.dialogs import Dialogs
from .tools.context import Context
from .transports.wire import log_pushed, writable

DialogsT = TypeVar("DialogsT", bound=Dialogs)

_KEY = "claude-code-mcp"


class ChangingServer(Server[Any]):
    """A server whose list of tools changes, and that says so in its handshake."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changing = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(changing, experimental_capabilities, extensions)


async def notify_on_call(context: Context, method: str, params: Mapping[str, Any]) -> None:
    """A notification of our own kind on the stream of this call, without the cost of a model around it."""
    log_pushed("notification", method)
    await context.session._request_outbound.notify(method, writable(params))


def once_per_connection(context: Context, make: Callable[[], DialogsT], close: Callable[[DialogsT], None]) -> DialogsT:
    """What `make` makes, once for the connection of this request; given to `close` when the connection ends."""
    connection = context.session._connection
    if _KEY not in connection.state:
        made = make()
        connection.state[_KEY] = made
        connection.exit_stack.callback(close, made)
    found: DialogsT = connection.state[_KEY]
    return found


def was_called_off(context: Context) -> bool:
    """Whether the client itself has cancelled this call; otherwise it, or the server, is leaving."""
    return bool(context.session._request_outbound.cancel_requested.is_set())


def connection_id(context: Context) -> str | None:
    """The `Mcp-Session-Id` of this connection; None where there is none."""
    return context.session._connection.session_id
