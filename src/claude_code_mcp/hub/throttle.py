"""How many servers are connected to at the same time: a few local ones, which cost a process each, and more remote
ones. Only the beginning of an attempt is throttled, not the connection."""

import asyncio

import anyio

from .config_entry import ServerConfig

_LONGEST_HOLD = 1.0
"""Seconds after which a slot is released although the server is not connected yet: a server that hangs must not hold
up those behind it."""


class ConnectSlot:
    """The place of one server among those that are connecting. Released once, by the first of several who may."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self) -> None:
        """Waits for a place, and keeps it until `release`, but no longer than `_LONGEST_HOLD`."""
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_LONGEST_HOLD, self.release)

    def release(self) -> None:
        """Does nothing where the slot is not held, or no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class ConnectThrottle:
    """Places for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def slot(self, config: ServerConfig) -> ConnectSlot:
        return ConnectSlot(self._local if config.is_local else self._remote)
