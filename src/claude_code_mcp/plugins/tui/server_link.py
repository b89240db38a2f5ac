"""The connection to the server, reopened when it is lost. A lost connection affects only running reads: sessions and
questions belong to the server."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ...client.connections import McpClient, NotRunning, in_thread
from ...client.live_sessions import LiveSessions
from ...core.errors import ClaudeCodeError

T = TypeVar("T")
_FIRST_PAUSE, _MAX_PAUSE = 0.5, 5.0


class ServerLink:
    """The connection to one server, while this program runs."""

    def __init__(self, open_client: Callable[[], McpClient]) -> None:
        """`open_client` blocks, and raises ClaudeCodeError or NotRunning without a server."""
        self._open = open_client
        self._client: McpClient | None = None
        self._connected = asyncio.Event()
        self._lost = asyncio.Event()
        self.problem = ""
        """Why there is no connection; empty while there is one."""
        self.has_notifications = False
        """Whether the server reports changes."""
        self._on_change: Callable[[str], None] = lambda _: None

    async def run(self, changed: Callable[[], None], resource_changed: Callable[[str], None]) -> None:
        """Keeps a connection until cancelled. `changed` is called when it is opened or lost, `resource_changed` with
        the address of every changed resource."""
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            try:
                client = await in_thread(self._open)
            except (ClaudeCodeError, NotRunning, OSError) as error:
                self.problem = str(error)
                changed()
                await asyncio.sleep(pause)
                pause = min(2 * pause, _MAX_PAUSE)
                continue
            pause = _FIRST_PAUSE

            def notified(method: str, params: Mapping[str, Any]) -> None:
                if method == "notifications/resources/updated":
                    with contextlib.suppress(RuntimeError):  # the loop is closed
                        loop.call_soon_threadsafe(resource_changed, str(params.get("uri")))

            self._client, self.problem = client, ""
            self.has_notifications = client.listen(notified)
            # Before the connection is announced: a call that fails right after that must not be missed.
            self._lost.clear()
            self._connected.set()
            changed()
            await self._lost.wait()
            self._connected.clear()
            changed()
            await in_thread(client.close)

    async def connected(self) -> None:
        """Returns when there is a connection."""
        await self._connected.wait()

    async def do(self, work: Callable[[LiveSessions], T]) -> T:
        """Sends a request, once there is a connection. Raises CallFailed if the server refuses, NotRunning if it exits
        meanwhile."""
        await self._connected.wait()
        client = self._client
        assert client is not None
        try:
            return await in_thread(work, LiveSessions(client))
        except NotRunning as error:
            # A call on an earlier connection says nothing about the current one.
            if client is self._client:
                self.problem = str(error)
                self._lost.set()
            raise

    async def close(self) -> None:
        """Disconnects. Pending requests end with NotRunning."""
        if self._client is not None:
            await in_thread(self._client.close)
