"""Notifications that a tool writes to the response of its own request."""

import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from claude_code_mcp.server.http_streams import ResponseStream, response_stream_of, response_streams
from claude_code_mcp.server.sdk import notification_line

EVENT_STREAM = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


def start(headers: list[tuple[bytes, bytes]], status: int = 200) -> Message:
    return {"type": "http.response.start", "status": status, "headers": headers}


def piece(body: bytes, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def sent_by(handler: Any, method: str = "POST") -> list[Message]:
    """What reaches the client from an application that answers with `handler(request, send)`."""
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await handler(Request(scope), send)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/mcp", "headers": []}
    await response_streams(app)(scope, None, send)  # type: ignore[arg-type] # nothing is received
    return sent


async def test_several_messages_are_one_piece_between_those_of_the_sdk() -> None:
    async def handler(request: Request, send: Send) -> None:
        await send(start(EVENT_STREAM))
        await send(piece(b"first"))
        stream = response_stream_of(request)
        assert stream is not None
        await stream.write([b'{"a":1}', b'{"a":2}'])
        await send(piece(b"last", more=False))

    _, *pieces = await sent_by(handler)
    bodies = [message["body"] for message in pieces]
    events = b'event: message\r\ndata: {"a":1}\r\n\r\nevent: message\r\ndata: {"a":2}\r\n\r\n'
    assert bodies == [b"first", events, b"last"]


@pytest.mark.parametrize(
    "begun",
    [None, start([(b"content-type", b"application/json")]), start(EVENT_STREAM, 404), start([])],
    ids=["not begun", "JSON", "an error", "untyped"],
)
async def test_only_a_response_that_is_an_event_stream_can_be_written_to(begun: Message | None) -> None:
    found: list[ResponseStream | None] = []

    async def handler(request: Request, send: Send) -> None:
        if begun is not None:
            await send(begun)
        found.append(response_stream_of(request))
        if begun is None:
            await send(start(EVENT_STREAM))
            found.append(response_stream_of(request))  # still none: the second must not overtake the first

    await sent_by(handler)
    assert not any(found)


async def test_a_request_of_another_kind_has_none() -> None:
    async def handler(request: Request, send: Send) -> None:
        await send(start(EVENT_STREAM))
        assert response_stream_of(request) is None

    assert len(await sent_by(handler, "GET")) == 1


async def test_writes_after_the_end_are_dropped() -> None:
    async def handler(request: Request, send: Send) -> None:
        await send(start(EVENT_STREAM))
        stream = response_stream_of(request)
        assert stream is not None
        await send(piece(b"", more=False))
        await stream.write([b"{}"])

    assert len(await sent_by(handler)) == 2


@pytest.mark.parametrize(
    ("value", "written"), [(float("nan"), None), ("half \ud83d", "half \ufffd"), ("a\r\n\u2028b", "a\r\n\u2028b")]
)
def test_a_line_is_json_whatever_is_in_it(value: object, written: object) -> None:
    line = notification_line("some/method", {"value": value})
    assert len(line.splitlines()) == 1
    assert json.loads(line) == {"jsonrpc": "2.0", "method": "some/method", "params": {"value": written}}
