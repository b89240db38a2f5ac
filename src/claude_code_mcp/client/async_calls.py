"""The blocking client for programs on an event loop: each call in a thread of its own that nobody has to wait for.

The threads are daemons: a call that waits at the server for something to happen keeps no program from ending, and one
whose caller has gone ends by itself, with nobody to tell.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What a function returns or raises in another thread. Cancelled, the thread goes on and its result is dropped."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_exception(error) if error is not None else outcome.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value, problem = None, None
        try:
            value = function(*arguments, **named)
        except BaseException as error:
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle, value, problem)

    threading.Thread(target=run, daemon=True).start()
    return await outcome
