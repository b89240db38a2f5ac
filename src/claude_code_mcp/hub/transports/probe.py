"""Watches over the first message to a server, which some servers cannot take."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..streams import ObservedInbox, TransportFailure

_MUTE = 1.5
"""Seconds of silence after which a server that has read the probe is taken for one that cannot answer it."""
_GRACE_OF_MUTE = 0.1
_LOOK_EVERY = 0.1


class Probe:
    """Watches over the first message to a server, which some cannot take: whether it is answered, and in what time."""

    def __init__(self, failure: TransportFailure) -> None:
        self._failure = failure
        self._read_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.inbox: ObservedInbox | None = None
        """Set when the transport is open."""

    @property
    def was_in_vain(self) -> bool:
        """Whether the server was there and has not answered anything."""
        return self.inbox is not None and not self.inbox.has_answered

    @contextmanager
    def watching(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Within the block, or until `stop`, calls `give_up` when a server has read the probe and is mute for `_MUTE`
        seconds. One that has not read it yet is slow to start, and not mute."""
        loop = asyncio.get_running_loop()

        def look() -> None:
            # First, whatever else there is to read: nothing is left to watch, however long the connection lasts.
            if self.inbox is not None and self.inbox.has_answered:
                return
            if self.inbox is None or not self._failure.has_read_input():
                self._read_at = None
            elif self._read_at is None:
                self._read_at = loop.time()
            elif loop.time() - self._read_at >= _MUTE:
                self._failure.grace = _GRACE_OF_MUTE
                give_up()
                return
            self._timer = loop.call_later(_LOOK_EVERY, look)  # nothing tells when a pipe is read

        look()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """The server has answered: there is nothing left to watch."""
        if self._timer is not None:
            self._timer.cancel()
