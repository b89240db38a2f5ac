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


_CLOSE_TIMEOUT = 2.0


@asynccontextmanager
async def in_process(serve: ServeInProcess) -> AsyncIterator[Streams]:
    """Run the server within this context; on exit it has `_CLOSE_TIMEOUT` seconds to end."""
    to_us, our_inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    to_them, their_inbox = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    ours, theirs = (our_inbox, to_them), (their_inbox, to_us)
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
