"""Limits how many servers connect at once.

Local servers, each of which starts a process, have fewer slots than remote ones. Only the start of an attempt is
throttled, not the connection.
"""

import asyncio

import anyio

from .config_entry import ServerConfig

_MAX_HOLD = 1.0
"""Seconds after which a slot is released even if the server is not connected: a hanging server must not block those
behind it."""


class ConnectSlot:
    """The slot of one connecting server. Released once, by the first of several possible callers."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Wait for a slot, and hold it until `release`, but no longer than `_MAX_HOLD`."""
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_MAX_HOLD, self.release)

    def release(self) -> None:
        """Release the slot; a no-op if it is not held (any more)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class ConnectThrottle:
    """The slots for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def slot(self, config: ServerConfig) -> ConnectSlot:
        return ConnectSlot(self._local if config.is_local else self._remote)
