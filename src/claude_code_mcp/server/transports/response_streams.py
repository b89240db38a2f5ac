"""The event stream that answers one HTTP request, for a tool that sends thousands of notifications while it runs.

The SDK passes each message of a request through four queues, one at a time, which costs more than all that is done
with it before. A tool may instead write several at once to the response of its own request, as one piece of the body.

Order: what is written here never falls behind what is written here later, and is on its way before the tool returns
its result. It may overtake what the tool has sent through the SDK a moment before.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        """What the SDK sends."""
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._open = False
        await self._send(message)
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
    """The stream of an HTTP request, if messages can be written to it; `request` is what the SDK gives a handler, None
    on other transports."""
    stream = request.scope.get(_KEY) if request is not None else None
    return stream if isinstance(stream, ResponseStream) and stream.usable else None
