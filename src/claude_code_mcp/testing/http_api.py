"""The Messages API as bytes: HTTP/1.1 requests and responses, and answers as JSON or as server-sent events.

Implements only the part of HTTP that Claude Code uses. The functions that turn an answer into bytes are pure; events
with no pause between them are joined into one piece, so that ten thousand deltas cost one write.
"""

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, NamedTuple
from uuid import uuid4

from claude_code_mcp.testing.script import Block, Fault, ModelAnswer

_PIECE_BYTES = 256 * 1024
_DELTA = "content_block_delta"
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_EMPTY_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


# -- HTTP -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has been read completely; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None if the client has closed it or does not use HTTP."""
    try:
        method, path, _version = (await reader.readline()).decode("latin-1").split(" ", 2)
        headers: dict[str, str] = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return Request(method, path, headers, await _read_body(reader, headers))
    except (ValueError, asyncio.IncompleteReadError):
        return None


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", "0")))
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


async def write_json(
    writer: asyncio.StreamWriter, status: int, value: Any, headers: Mapping[str, str] | None = None
) -> None:
    """A complete response."""
    body = json.dumps(value).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    writer.write(_response_head(status, fields) + body)
    await writer.drain()


def stream_head(headers: Mapping[str, str]) -> bytes:
    """The head of a response whose body is a chunked stream of events."""
    return _response_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked", **headers})


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _response_head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Scripted')}", f"request-id: req_{uuid4().hex[:24]}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


# -- answers ----------------------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Bytes to write at once, the seconds to wait after them, and whether to wait for the answer's file."""

    data: bytes
    pause: float = 0.0
    waits: bool = False
    event: str = ""
    """The event's name, if the piece is a single event."""


def message_of(answer: ModelAnswer, requested_model: str) -> dict[str, Any]:
    """The whole message, as the response to a request without `stream`."""
    return {
        **_head(answer, requested_model),
        "content": [_with_id(block.content) for block in answer.blocks],
        "stop_reason": _stop_reason(answer),
        "usage": _usage(answer),
    }


def pieces_of(answer: ModelAnswer, requested_model: str, fault: Fault | None = None) -> Iterator[Piece]:
    """The stream of the message; with a fault, only the part before the fault."""
    events = _events(answer, requested_model, fault)
    return _pieces(events if fault is None else _events_before(fault, list(events)))


def error_body(error_type: str, message: str) -> dict[str, Any]:
    """The body of an HTTP error."""
    return {"type": "error", "error": {"type": error_type, "message": message}}


def _events_before(fault: Fault, events: Sequence[Piece]) -> Sequence[Piece]:
    """The first half of the events for a cut; for a stall, the events up to the first delta."""
    if fault.kind == "cut":
        return events[: len(events) // 2]
    first = next((number for number, event in enumerate(events) if event.event == _DELTA), 0)
    return events[: first + 1]


def _pieces(events: Iterable[Piece]) -> Iterator[Piece]:
    parts: list[bytes] = []
    size = 0
    for event in events:
        parts.append(event.data)
        size += len(event.data)
        if event.pause or event.waits or size >= _PIECE_BYTES:
            yield Piece(b"".join(parts), event.pause, event.waits)
            parts, size = [], 0
    if parts:
        yield Piece(b"".join(parts))


def _events(answer: ModelAnswer, requested_model: str, fault: Fault | None) -> Iterator[Piece]:
    usage = _usage(answer)
    start = {**_head(answer, requested_model), "content": [], "stop_reason": None}
    yield _event("message_start", message={**start, "usage": {**usage, "output_tokens": 1}})
    blocks = [replace(block, content=_with_id(block.content)) for block in answer.blocks]
    for index, block in enumerate(blocks):
        waits = answer.until is not None and index == len(blocks) - 1
        yield from _block_events(index, block, 2 if fault else 1, waits=waits)
    delta = {"stop_reason": _stop_reason(answer), "stop_sequence": None, **_safety_check(answer, blocks)}
    yield _event("message_delta", delta=delta, usage=usage)
    yield _event("message_stop")


def _safety_check(answer: ModelAnswer, blocks: Sequence[Block]) -> dict[str, Any]:
    """The result of the check that auto mode relies on."""
    if answer.blocked is None:
        return {}
    outcome = {"outcome": "flagged", "explanation": answer.blocked} if answer.blocked else {"outcome": "not_flagged"}
    calls = [block.content["id"] for block in blocks if block.content["type"] == "tool_use"]
    results = {call: {"type": "evaluated", **outcome} for call in calls}
    return {
        "safeguard_results": [{"type": "dangerous_tool_use", "status": {"type": "available", "tool_uses": results}}]
    }


def _block_events(index: int, block: Block, least_chunks: int, *, waits: bool) -> Iterator[Piece]:
    content = _with_id(block.content)
    start = _event("content_block_start", index=index, content_block={**content, **_EMPTY_BLOCKS[content["type"]]})
    kind, field = _DELTAS[content["type"]]
    parts = _split(_streamed_text(content), max(block.chunks, least_chunks))
    deltas = _deltas(index, kind, field, parts, block.interval)
    if waits:
        *before, next_to_last, last = start, *deltas
        yield from (*before, next_to_last._replace(waits=True), last)
    else:
        yield start
        yield from deltas
    if "signature" in content:
        yield from _deltas(index, "signature_delta", "signature", [content["signature"]], 0)
    yield _event("content_block_stop", index=index)


def _deltas(index: int, kind: str, field: str, parts: Iterable[str], pause: float) -> Iterator[Piece]:
    head = f'event: {_DELTA}\ndata: {{"type":"{_DELTA}","index":{index},"delta":{{"type":"{kind}","{field}":'
    for part in parts:
        yield Piece(f"{head}{json.dumps(part)}}}}}\n\n".encode(), pause, event=_DELTA)


def _split(text: str, chunks: int) -> list[str]:
    size = max(1, -(-len(text) // chunks))
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]


def _event(name: str, **fields: Any) -> Piece:
    return Piece(f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode(), event=name)


def _head(answer: ModelAnswer, requested_model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex[:24]}",
        "type": "message",
        "role": "assistant",
        "model": answer.model or requested_model,
        "stop_sequence": None,
    }


def _with_id(content: dict[str, Any]) -> dict[str, Any]:
    if content["type"] != "tool_use":
        return content
    return {**content, "id": content["id"] or f"toolu_{uuid4().hex[:24]}"}


def _stop_reason(answer: ModelAnswer) -> str:
    calls_tool = any(block.content["type"] == "tool_use" for block in answer.blocks)
    return answer.stop_reason or ("tool_use" if calls_tool else "end_turn")


def _usage(answer: ModelAnswer) -> dict[str, Any]:
    """Invented but constant counts: a hundred input tokens, and one output token for every four characters."""
    characters = sum(len(_streamed_text(block.content)) for block in answer.blocks)
    return {
        "input_tokens": 100,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": max(1, characters // 4),
        **answer.usage,
    }


def _streamed_text(content: dict[str, Any]) -> str:
    """The part of a block that is sent as deltas: its text, thinking, or tool input as JSON."""
    kind = content["type"]
    return json.dumps(content["input"]) if kind == "tool_use" else str(content[kind])
