"""Threads for reading directories that callers name.

A network file system may not answer for a long time, and a thread that waits for it cannot be stopped. Therefore these
reads run in separate threads, and each caller may use only a few: a caller whose reads hang delays no other caller. The
threads do not keep the program from exiting.
"""

import asyncio
import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ...errors import UpstreamUnavailable

_Result = TypeVar("_Result")
_MAX_OF_CALLER = 2
_MAX_THREADS = 16
_MAX_SECONDS = 10.0


class CallerThreads:
    """Runs each read in a thread, a limited number at once."""

    def __init__(self, max_seconds: float = _MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._all = asyncio.Semaphore(_MAX_THREADS)
        self._of_caller: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_MAX_OF_CALLER))

    async def run(self, principal: str, work: Callable[[], _Result]) -> _Result:
        """The result of `work`. Raises UpstreamUnavailable if it does not end in time. It keeps its thread until it
        ends, so that it counts toward the limits."""
        try:
            async with asyncio.timeout(self._max_seconds):
                return await self._run(self._of_caller[principal], work)
        except TimeoutError:
            raise UpstreamUnavailable("The file system does not respond. Try again later.") from None

    async def _run(self, own: asyncio.Semaphore, work: Callable[[], _Result]) -> _Result:
        await own.acquire()
        try:
            await self._all.acquire()
        except BaseException:
            own.release()
            raise
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()

        def settle(result: _Result | None, error: BaseException | None) -> None:
            self._all.release()
            own.release()
            if done.cancelled():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def read() -> None:
            try:
                ended = partial(settle, work(), None)
            except BaseException as error:
                ended = partial(settle, None, error)
            with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
                loop.call_soon_threadsafe(ended)

        try:
            threading.Thread(target=read, name="directories", daemon=True).start()
        except RuntimeError as error:  # the process has too many threads
            settle(None, error)
        return await done
