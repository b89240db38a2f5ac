"""Waiting for what happens elsewhere, and the one limit that guards every wait of the tests against a hang.

The limit judges nothing: what must happen has happened within seconds, on a busy machine within a minute. It is far
larger, so that only what would never end fails by it. What must not happen is not waited for at all: a test lets
something else happen behind it, in the same queue, and looks then.
"""

import asyncio
import time
from collections.abc import Callable

HANG_SECONDS = 120.0
_PAUSE = 0.02


def until(reached: Callable[[], object], what: str = "it did not happen") -> None:
    """Waits for what another process or thread does, and nobody tells."""
    deadline = time.monotonic() + HANG_SECONDS
    while not reached():
        assert time.monotonic() < deadline, what
        time.sleep(_PAUSE)


async def until_true(reached: Callable[[], object], what: str = "it did not happen") -> None:
    """The same on an event loop."""
    try:
        async with asyncio.timeout(HANG_SECONDS):
            while not reached():  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise AssertionError(what) from None
