"""The clock of an event loop, in the hands of a test: timers fire when the test says so, and not before."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_TURNS = 20
"""More turns of the loop than any code here needs from a timer to what it sets off."""


class Clock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now = loop.time()

    async def advance(self, seconds: float) -> None:
        """Lets so much time pass at once, and what was due within it happen."""
        self.now += seconds
        await settled()


async def settled() -> None:
    """Lets everything happen that waits for neither time nor another process or thread."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@contextmanager
def stopped_clock() -> Iterator[Clock]:
    """Within this context the time of the running loop moves by `advance` alone; input and output go on as ever.
    NextStep it goes on from where it stands, so that no timer is suddenly late."""
    loop = asyncio.get_running_loop()
    running, clock = loop.time, Clock(loop)
    loop.time = lambda: clock.now  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        behind = running() - clock.now
        loop.time = lambda: running() - behind  # type: ignore[method-assign]
