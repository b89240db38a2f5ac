"""Which HTTP clients have the GET stream of their connection open: without it, what the server sends outside of a call
reaches nobody."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        """Wraps the application."""

        async def counting(scope: "Scope", receive: "Receive", send: "Send") -> None:
            connection = _connection_id(scope)
            if connection is None:
                await app(scope, receive, send)
                return
            counted = False

            async def send_counted(message: "Message") -> None:
                nonlocal counted
                await send(message)
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
