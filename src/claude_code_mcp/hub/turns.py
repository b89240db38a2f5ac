"""How many servers are being connected to at once: few local ones, which cost processor time, and more remote ones."""

import asyncio

import anyio

from .configuration import ServerConfig

_PATIENCE = 1.0
"""Seconds after which a server that is still not there lets the next one begin: it waits for something, and a server
that hangs must not hold up those behind it."""


class Turn:
    """One server's turn; it ends once, by whoever is first to end it."""

    def __init__(self, places: anyio.Semaphore) -> None:
        self._places = places
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self) -> None:
        await self._places.acquire()
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self.end)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._places.release()


class Turns:
    """Places for local and for remote servers."""

    def __init__(self, local: int, remote: int) -> None:
        self._local = anyio.Semaphore(local)
        self._remote = anyio.Semaphore(remote)

    def turn(self, config: ServerConfig) -> Turn:
        return Turn(self._local if config.is_local else self._remote)
