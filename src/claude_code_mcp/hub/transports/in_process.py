"""An MCP server in this process.

Delivery is never re-entrant: each side receives in its own task, so that the stack depth does not grow with the number
of messages.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from mcp.shared.message import SessionMessage

from ..streams import Inbox, Outbox, Streams

ServeInProcess = Callable[[Inbox, Outbox], Awaitable[object]]
"""Serves one client on two streams until either of them ends."""


def linked_pair() -> tuple[Streams, Streams]:
    """Two pairs of streams; messages written to one are read from the other."""
    to_left, left = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_right, right = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    return (left, to_right), (right, to_left)


_CLOSE_TIMEOUT = 2.0


@asynccontextmanager
async def in_process(serve: ServeInProcess) -> AsyncIterator[Streams]:
    """Run the server within this context; on exit it has `_CLOSE_TIMEOUT` seconds to end."""
    ours, theirs = linked_pair()
    ended = anyio.Event()

    async def run() -> None:
        try:
            await serve(*theirs)
        finally:
            # Always: our side must notice the end.
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
                with anyio.move_on_after(_CLOSE_TIMEOUT):
                    await ended.wait()
            tasks.cancel_scope.cancel()
