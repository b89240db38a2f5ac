"""How many HTTP connections there may be, and how long one may take to send the head of a request.

Without this, a few hundred connections that send nothing use up all descriptors, and nobody is served any more. A
connection beyond the limits, in all or of one address, is answered with 503 and closed at once; one whose head is not
complete in time is closed. Peers that are trusted proxies stand for many people and have no limit of their own.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

log = logging.getLogger(__name__)

_HEAD_SECONDS = 20.0
_KEPT_FREE = 128
"""Descriptors that are left for files, sessions and MCP servers."""
_WANTED_DESCRIPTORS = 65_536
_ACCEPT_FAILED = "socket.accept() out of system resource"
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 5\r\nContent-Length: 21\r\n"
    b"Connection: close\r\n\r\ntoo many connections\r\n"
)


class ConnectionLimits:
    """The connections of one server, counted by address."""

    def __init__(self, most: int, most_of_one: int, proxies: Collection[str] = ()) -> None:
        self._most = min(most, max(8, (raise_descriptor_limit() - _KEPT_FREE) // 2))
        self._most_of_one = most_of_one
        self._proxies = frozenset(proxies)
        self._open: Counter[str] = Counter()

    def admit(self, host: str) -> bool:
        """Counts a connection, unless there are too many. One that was admitted must be released."""
        own = self._open[host]
        if self._open.total() >= self._most or (own >= self._most_of_one and host not in self._proxies):
            return False
        self._open[host] += 1
        return True

    def release(self, host: str) -> None:
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]

    def protocol(self, head_seconds: float = _HEAD_SECONDS) -> Callable[..., asyncio.Protocol]:
        """What uvicorn makes for every connection."""

        def make(*arguments: Any, **named: Any) -> asyncio.Protocol:
            return _LimitedProtocol(self, head_seconds, *arguments, **named)

        return make


class _LimitedProtocol(H11Protocol):
    def __init__(self, limits: ConnectionLimits, head_seconds: float, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._head_seconds = head_seconds
        self._admitted: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
        if not self._limits.admit(host):
            transport.write(_REFUSAL)
            transport.close()
            return
        self._admitted = host
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._admitted is None:
            return
        super().data_received(data)
        # Between two requests of a connection uvicorn waits for the next; from its first byte on the time counts.
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._admitted is not None:
            self._limits.release(self._admitted)
            self._admitted = None
            super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._head_seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def raise_descriptor_limit() -> int:
    """Raises the soft limit on descriptors of this process as far as it may; returns how many it may have."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return _WANTED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _WANTED_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return _WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft


def report_accept_failures_sparingly(
    loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.monotonic
) -> None:
    """Connections that cannot be accepted are logged at most once a second: asyncio reports each of thousands."""
    before, last = loop.get_exception_handler(), float("-inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal last
        if context.get("message") != _ACCEPT_FAILED:
            (before or type(loop).default_exception_handler)(loop, context)
        elif clock() - last >= 1.0:
            last = clock()
            log.error("connections cannot be accepted: %s", context.get("exception"))

    loop.set_exception_handler(handle)
