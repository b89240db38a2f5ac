"""Watches the first message to a server, the probe, which some servers cannot handle."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..streams import ObservedInbox, TransportFailure

_MUTE = 1.5
"""Seconds of silence after which a server that has read the probe counts as unable to answer it."""
_GRACE_OF_MUTE = 0.1
_LOOK_EVERY = 0.1


class Probe:
    """Watches whether the first message to a server is answered in time; some servers cannot handle it."""

    def __init__(self, failure: TransportFailure) -> None:
        self._failure = failure
        self._read_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.inbox: ObservedInbox | None = None
        """Set when the transport is open."""

    @property
    def got_no_answer(self) -> bool:
        """Whether the server was reached but has not answered anything."""
        return self.inbox is not None and not self.inbox.has_answered

    @contextmanager
    def watching(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Context in which, until `stop`, `give_up` is called if a server has read the probe and not answered for
        `_MUTE` seconds. A server that has not read it yet is just slow to start."""
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
            self._timer = loop.call_later(_LOOK_EVERY, look)  # there is no event for reading a pipe

        look()
        try:
            yield
        finally:
            self.stop()

    def stop(self) -> None:
        """Stop watching, because the server has answered."""
        if self._timer is not None:
            self._timer.cancel()
