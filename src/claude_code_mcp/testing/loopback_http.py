"""Just enough of HTTP/1.1 for a loopback API: read a request, write a response or a chunked stream."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Request:
    """A request that has been read completely; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request of a connection, or None when the client has closed it or speaks no HTTP."""
    try:
        method, path, _version = (await reader.readline()).decode("latin-1").split(" ", 2)
        headers = await _read_headers(reader)
        return Request(method, path, headers, await _read_body(reader, headers))
    except (ValueError, asyncio.IncompleteReadError):
        return None


async def _read_headers(reader: asyncio.StreamReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    while (line := await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


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
    writer.write(_head(status, fields) + body)
    await writer.drain()


def stream_head() -> bytes:
    """The head of a response whose body is a chunked stream of events."""
    return _head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})


def chunk(data: bytes) -> bytes:
    """One chunk of a chunked body; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _head(status: int, fields: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_phrase(status)}", f"request-id: req_{uuid4().hex[:24]}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Scripted"
