"""A server in this very process, at the other end of a linked pair of streams.

Delivery is never re-entrant: what one side sends, the other takes in its own task and turn, so that an exchange of
any length takes no more of the stack than one message.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.shared.message import SessionMessage

from ..streams import Inbox, Outbox, Streams

ServeInProcess = Callable[[Inbox, Outbox], Awaitable[object]]
"""Serves one client on two streams until the first of them ends."""

_FAREWELL = 2.0


def linked_pair() -> tuple[Streams, Streams]:
    """Two ends; what is written to one is read at the other."""
    to_left, left = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_right, right = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    return (left, to_right), (right, to_left)


@asynccontextmanager
async def in_process(serve: ServeInProcess) -> AsyncIterator[Streams]:
    """Runs the server for as long as the block lasts."""
    ours, theirs = linked_pair()
    ended = anyio.Event()

    async def run() -> None:
        try:
            await serve(*theirs)
        finally:
            for stream in theirs:
                await stream.aclose()
            ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        try:
            yield ours
        finally:
            with anyio.CancelScope(shield=True):
                for stream in ours:
                    await stream.aclose()
                with anyio.move_on_after(_FAREWELL):
                    await ended.wait()
            tasks.cancel_scope.cancel()
