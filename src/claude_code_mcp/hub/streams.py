"""The two streams that every transport yields, and what may be seen on their way.

The SDK's own names for them are private; this is the one place that imports them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from contextvars import Context
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import anyio
import mcp_types as types
from mcp.client._transport import ReadStream, WriteStream
from mcp.shared.message import SessionMessage

Inbox = ReadStream[SessionMessage | Exception]
Outbox = WriteStream[SessionMessage]
Streams = tuple[Inbox, Outbox]
Transport = AbstractAsyncContextManager[Streams]

_FULL = 256
_TURN = 64


def parse_message(line: bytes | str) -> SessionMessage | None:
    """The message in a line; None where there is none, since servers print all sorts of things."""
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return None


def render_message(message: SessionMessage) -> str:
    return message.message.model_dump_json(by_alias=True, exclude_unset=True)


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
        if isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCNotification):
            self._on_notification(item.message.method, item.message.params or {})
        return item

    async def aclose(self) -> None:
        await self._inbox.aclose()
