"""Which HTTP clients read the stream of their connection: without it, what is sent outside of a call reaches nobody."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADER = b"mcp-session-id"


class OpenStreams:
    """Counts the GET requests that are being answered, by the connection that they belong to."""

    def __init__(self, opened: Callable[[str], None]) -> None:
        """`opened` is told of each that begins."""
        self._opened = opened
        self._open: Counter[str] = Counter()

    def is_open(self, connection: str | None) -> bool:
        return connection is not None and self._open[connection] > 0

    def middleware(self, app: "ASGIApp") -> "ASGIApp":
        """The application, watched."""

        async def watched(scope: "Scope", receive: "Receive", send: "Send") -> None:
            connection = _connection(scope)
            if connection is None:
                await app(scope, receive, send)
                return
            counted = False

            async def noticing(message: "Message") -> None:
                nonlocal counted
                await send(message)
                if message["type"] == "http.response.start" and message["status"] == 200 and not counted:
                    counted = True
                    self._open[connection] += 1
                    self._opened(connection)

            try:
                await app(scope, receive, noticing)
            finally:
                if counted:
                    self._open[connection] -= 1
                    if not self._open[connection]:
                        del self._open[connection]

        return watched


def _connection(scope: "Scope") -> str | None:
    """The connection that a GET request belongs to."""
    if scope["type"] != "http" or scope["method"] != "GET":
        return None
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == _HEADER), None)
