"""The two streams that every transport yields, and what may be seen on their way.

The SDK's own names for them are private; this is the one place that imports them.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import to_json

from .. import json_text

Inbox = ReadStream[SessionMessage | Exception]
Outbox = WriteStream[SessionMessage]
Streams = tuple[Inbox, Outbox]
Transport = AbstractAsyncContextManager[Streams]

_FULL = 256
_TURN = 64


_adapter = types.jsonrpc_message_adapter


def parse_message(line: bytes | str) -> SessionMessage | None:
    """The message in a line; None where there is none, since servers print all sorts of things.

    An answer that cannot be read is an error of its call, which would wait for ever otherwise.
    """
    try:
        return SessionMessage(_adapter.validate_json(line, by_name=False))
    except ValueError:
        return _mended(line)


def _mended(line: bytes | str) -> SessionMessage | None:
    """What can be had from a line that is no proper message."""
    try:
        value = json_text.decode(line)
    except ValueError:
        request_id = id_of_answer(line)
        return None if request_id is None else _unreadable(request_id)
    try:
        return SessionMessage(_adapter.validate_python(value, by_name=False))
    except ValueError:
        is_answer = isinstance(value, dict) and "method" not in value and ("result" in value or "error" in value)
        return _unreadable(value["id"]) if is_answer and type(value.get("id")) in (int, str) else None


def _unreadable(request_id: types.RequestId) -> SessionMessage:
    error = types.ErrorData(code=types.INTERNAL_ERROR, message="The server's answer does not follow the protocol.")
    return SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error))


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]')
_ID = re.compile(rb'\s*:\s*(?:(\d{1,18})|"([\w.:-]{1,100})")\s*[,}]')


def id_of_answer(line: bytes | str) -> types.RequestId | None:
    """The id of an answer that is nested too deeply to be parsed: found by counting brackets, in one pass."""
    data = line.encode("utf-8", "replace") if isinstance(line, str) else line
    if not data.lstrip().startswith(b"{") or not data.rstrip().endswith(b"}"):
        return None
    depth, found, is_answer = 0, None, False
    for token in _TOKEN.finditer(data):
        text = token.group()
        if text in b"{[":
            depth += 1
        elif text in b"}]":
            depth -= 1
        elif depth == 1 and text == b'"id"' and (value := _ID.match(data, token.end())):
            found = int(value[1]) if value[1] else value[2].decode()
        elif depth == 1 and text in (b'"result"', b'"error"'):
            is_answer = True
        elif depth == 1 and text == b'"method"':
            return None
    return found if is_answer and depth == 0 else None


def render_message(message: SessionMessage) -> str:
    """One line of JSON. Raises ValueError for what has no words in it; the outbox lets nothing through that has not."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True)


def sound_params(params: dict[str, Any]) -> dict[str, Any]:
    """The same parameters or result, with what cannot be written replaced; MCPError if they are nested too deeply."""
    try:
        to_json(params)
        return params
    except ValueError:
        pass
    try:
        mended: dict[str, Any] = json_text.sound(params)
    except ValueError as error:
        raise MCPError(types.INVALID_PARAMS, f"The message cannot be written as JSON: {error}") from None
    return mended


def _sound_message(message: types.JSONRPCMessage) -> types.JSONRPCMessage:
    match message:
        case types.JSONRPCResponse():
            return message.model_copy(update={"result": sound_params(message.result)})
        case types.JSONRPCError(error=error):
            told = sound_params({"message": error.message, "data": error.data})
            return message.model_copy(update={"error": error.model_copy(update=told)})
        case _ if message.params is not None:
            return message.model_copy(update={"params": sound_params(message.params)})
    return message


@dataclass(slots=True)
class Trouble:
    """What a transport knows of its own end and tells nobody else."""

    reason: str | None = None
    needs_auth: str | None = None
    """Why somebody has to sign in."""


class _Stream:
    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Nothing to close unless a subclass says so."""


class _Reading(_Stream):
    async def receive(self) -> SessionMessage | Exception:
        raise NotImplementedError

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class BufferedInbox(_Reading):
    """Messages that a callback puts in and one reader takes out; `hold` asks the source to pause or to go on."""

    def __init__(self, hold: Callable[[bool], None]) -> None:
        self._hold = hold
        self._held = False
        self._messages: deque[SessionMessage] = deque()
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None
        self._taken = 0

    def put(self, message: SessionMessage) -> None:
        self._messages.append(message)
        if len(self._messages) >= _FULL and not self._held:
            self._held = True
            self._hold(True)
        self._wake()

    def end(self) -> None:
        self._ended = True
        self._wake()

    async def receive(self) -> SessionMessage | Exception:
        self._taken += 1
        if self._taken % _TURN == 0:
            await asyncio.sleep(0)  # a server that never stops talking must not keep everybody else from their turn
        while not self._messages:
            if self._ended:
                raise anyio.EndOfStream
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._messages.popleft()
        if self._held and not self._messages:
            self._held = False
            self._hold(False)
        return message

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class CalledInbox(_Reading):
    """Messages that come from awaiting a function, which raises EndOfStream at the end."""

    def __init__(self, receive: Callable[[], Any]) -> None:
        self._receive = receive

    async def receive(self) -> SessionMessage | Exception:
        message: SessionMessage = await self._receive()
        return message


class CalledOutbox(_Stream):
    """Messages that go out by awaiting a function, with no task in between."""

    def __init__(self, send: Callable[[SessionMessage], Any]) -> None:
        self._send = send

    async def send(self, item: SessionMessage, /) -> None:
        await self._send(item)


class SoundOutbox(_Stream):
    """An outbox that lets nothing through which the transport behind it could not write: of those, some would end the
    connection with every call on it. A message that cannot be mended fails for its sender, with an MCPError."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def send(self, item: SessionMessage, /) -> None:
        message = _sound_message(item.message)
        await self._outbox.send(SessionMessage(message, metadata=item.metadata))

    async def aclose(self) -> None:
        await self._outbox.aclose()


class Tap(_Reading):
    """An inbox that tells of the notifications passing through it, and of its end."""

    def __init__(
        self, inbox: Inbox, on_notification: Callable[[str, dict[str, Any]], None], on_end: Callable[[], None]
    ) -> None:
        self._inbox = inbox
        self._on_notification = on_notification
        self._on_end = on_end

    @property
    def last_context(self) -> Context | None:
        """The context in which a message was asked for, where the transport keeps it."""
        return getattr(self._inbox, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            item = await self._inbox.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._on_end()
            raise
        if isinstance(item, ValidationError):  # a transport of the SDK passes on what it could not read
            item = _from_failure(item)
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCNotification):
            self._on_notification(item.message.method, item.message.params or {})
        return item

    async def aclose(self) -> None:
        await self._inbox.aclose()


def _from_failure(failure: ValidationError) -> SessionMessage | Exception:
    """The message in a text that was not read: the failure carries it."""
    text = failure.errors(include_url=False)[0].get("input")
    return (_mended(text) if isinstance(text, str | bytes) else None) or failure
