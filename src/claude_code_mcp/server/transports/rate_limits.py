"""How often somebody may: failures of an address, and requests of a caller."""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from ...errors import RateLimited

_WINDOW = 60.0
_MOST_ADDRESSES = 2000
_MOST_CALLERS = 10_000


class FailureLimit:
    """Counts failures of each address: after so many within a minute no more tries are allowed until it is over."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()
        """Since when an address fails, and how often."""

    def check(self, address: str) -> None:
        """RateLimited for an address that has failed too often."""
        since, count = self._failed.get(_network_of(address), (0.0, 0))
        left = since + _WINDOW - self._clock()
        if count >= self._most and left > 0:
            raise RateLimited("Too many tokens or sign-ins have failed; wait a minute.", int(left) + 1)

    def failed(self, address: str) -> None:
        now, address = self._clock(), _network_of(address)
        since, count = self._failed.pop(address, (now, 0))
        self._failed[address] = (since, count + 1) if now - since < _WINDOW else (now, 1)
        # The one that failed longest ago goes first, since each failure puts its address at the end.
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)


class RequestLimit:
    """So many requests of each caller within a minute, with all of them at once if need be: a caller who has used them
    up has one more whenever the part of a minute is over that one is."""

    def __init__(self, per_minute_of: Callable[[str], int | None], clock: Callable[[], float] = time.monotonic) -> None:
        """`per_minute_of` says how many a caller has by now; None for any number."""
        self._per_minute_of = per_minute_of
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Of callers who are limited: when they have last asked, and how many requests they had left then."""

    def take(self, caller: str) -> None:
        """Counts a request; RateLimited if the caller has none left."""
        most = self._per_minute_of(caller)
        if most is None:
            return
        now = self._clock()
        asked, left = self._left.pop(caller, (now, float(most)))
        left = min(float(most), left + (now - asked) * most / _WINDOW)
        self._left[caller] = now, max(0.0, left - 1.0) if left >= 1.0 else left
        while len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)
        if left < 1.0:
            wait = math.ceil((1.0 - left) * _WINDOW / most)
            raise RateLimited(f"You may send {most} requests a minute; wait {wait} s.", wait)


def _network_of(address: str) -> str:
    """All addresses of one IPv6 network count as one: whoever has one of them has them all."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network(f"{found}/64", strict=False)) if found.version == 6 else address
