"""Limits per caller and minute: requests, new sessions, model tokens.

A caller may use a minute's amount at once and regains it over the minute. Amounts known only afterward, such as
tokens, may exceed the rest: the caller then waits until the debt is repaid, at most an hour.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from .errors import RateLimited

_MINUTE = 60.0
_MAX_DEBT = 60
"""The maximum minutes that a caller waits for overuse."""
_MAX_CALLERS = 10_000


class MinuteLimit:
    """The amounts of one kind, of all callers of a server. Uses memory only; not for several threads."""

    def __init__(
        self,
        per_minute_of: Callable[[str], int | None],
        clock: Callable[[], float] = time.monotonic,
        sentence: str = "You may send {most} requests per minute",
    ) -> None:
        """`per_minute_of` returns a caller's current limit; None for no limit. A refusal starts with `sentence`."""
        self._per_minute_of = per_minute_of
        self._clock = clock
        self._sentence = sentence
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """For limited callers: the time of their last use, and how much was left then."""

    def take(self, caller: str) -> None:
        """Counts one; RateLimited if the caller has none left."""
        self.take_for(self._per_minute_of(caller), caller)

    def take_for(self, most: int | None, caller: str) -> None:
        """Counts one of a caller who may have up to `most` a minute."""
        self.check_of(most, caller)
        self._use(most, caller, 1)

    def check(self, caller: str) -> None:
        """RateLimited if the caller has less than one left."""
        self.check_of(self._per_minute_of(caller), caller)

    def check_of(self, most: int | None, caller: str) -> None:
        """RateLimited if the caller, who may have up to `most` a minute, has less than one left."""
        if most is None:
            return
        left = self._by_now(caller, most)
        if left < 1.0:
            wait = math.ceil((1.0 - left) * _MINUTE / most)
            raise RateLimited(f"{self._sentence.format(most=most)}; wait {wait} s.", wait)

    def use(self, caller: str, amount: float) -> None:
        """Counts what a caller has used, also where that is more than was left."""
        self._use(self._per_minute_of(caller), caller, amount)

    def _use(self, most: int | None, caller: str, amount: float) -> None:
        if most is None or not amount > 0:
            return
        left = max(self._by_now(caller, most) - amount, -1.0 * _MAX_DEBT * most)
        self._left.pop(caller, None)
        self._left[caller] = self._clock(), left
        # Evicts the caller that was idle longest. With that many callers a debt may be forgotten.
        while len(self._left) > _MAX_CALLERS:
            self._left.popitem(last=False)

    def _by_now(self, caller: str, most: int) -> float:
        now = self._clock()
        used, left = self._left.get(caller, (now, float(most)))
        return min(float(most), left + (now - used) * most / _MINUTE)
