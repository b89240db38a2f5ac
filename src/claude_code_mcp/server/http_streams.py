"""The event streams of HTTP clients: a connection's standing stream, and a request's response stream.

The SDK passes each message of a request through four queues, one at a time, which costs more than producing it. A tool
may instead write several messages at once to the response of its own request (`ResponseStream`), as one piece of the
body. Messages written there stay in order and are sent before the tool returns its result. They may overtake messages
that the tool sent through the SDK just before.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

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
                # After it was sent: only now the client reads the stream.
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


_KEY = "claude_code_mcp.response_stream"
_EVENT = b"event: message\r\ndata: %b\r\n\r\n"


class ResponseStream:
    """The response of one request, from the point where it becomes an event stream until it ends."""

    def __init__(self, send: "Send") -> None:
        self._send = send
        self._open = False
        self._used: bool | None = None

    @property
    def usable(self) -> bool:
        """Whether messages can be written here. The first result is final: if some messages went here and others
        through the SDK, later ones could overtake earlier ones."""
        if self._used is None:
            self._used = self._open
        return self._used

    async def write(self, messages: Iterable[bytes]) -> None:
        """Write messages (each one line of JSON); wait while the client does not read. Messages after the end of the
        response, or to a disconnected client, are dropped."""
        if self._open:
            body = b"".join([_EVENT % message for message in messages])
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def pass_on(self, message: "Message") -> None:
        """Pass on a message of the SDK, and note whether messages can be written here."""
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
    """The stream of an HTTP request, if messages can be written to it; `request` is the object that the SDK passes to a
    handler."""
    stream = request.scope.get(_KEY)
    return stream if isinstance(stream, ResponseStream) and stream.usable else None
