"""Streams between a transport and the MCP SDK's server that keep the context of each sender.

The SDK runs a handler in the context in which its message was sent, if the stream that it reads has `last_context`.
"""

from contextvars import Context, copy_context
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

ItemT = TypeVar("ItemT")


class _Closable:
    async def aclose(self) -> None:
        raise NotImplementedError

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class SendStream(_Closable, Generic[ItemT]):
    """The end that takes items, each with the context of its sender."""

    def __init__(self, items: MemoryObjectSendStream[tuple[Context, ItemT]]) -> None:
        self._items = items

    async def send(self, item: ItemT, /) -> None:
        await self._items.send((copy_context(), item))

    async def aclose(self) -> None:
        await self._items.aclose()

    async def __aenter__(self) -> "SendStream[ItemT]":
        return self


class ReceiveStream(_Closable, Generic[ItemT]):
    """The end that yields the items."""

    def __init__(self, items: MemoryObjectReceiveStream[tuple[Context, ItemT]]) -> None:
        self._items = items
        self.last_context: Context | None = None
        """The context in which the last item was sent."""

    async def receive(self) -> ItemT:
        self.last_context, item = await self._items.receive()
        return item

    async def aclose(self) -> None:
        await self._items.aclose()

    async def __aenter__(self) -> "ReceiveStream[ItemT]":
        return self

    def __aiter__(self) -> "ReceiveStream[ItemT]":
        return self

    async def __anext__(self) -> ItemT:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


def message_streams() -> tuple[SendStream[Any], ReceiveStream[Any]]:
    """Two ends without a buffer in between: a sender waits until its item is received."""
    sending, receiving = anyio.create_memory_object_stream[tuple[Context, Any]](0)
    return SendStream(sending), ReceiveStream(receiving)
