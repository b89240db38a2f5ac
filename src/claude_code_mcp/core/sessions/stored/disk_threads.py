"""Threads for reading transcripts.

A transcript can be large, and a session's commands can make it larger. The event loop's few default threads serve
everything else, so transcripts are read in separate threads, one set for each configuration directory of the CLI. With
several callers each has its own directory, so that callers do not wait for each other's reads.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class DiskThreads:
    """A limited number of threads, started when first needed."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="disk")

    async def run(self, work: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """Run `work` in a thread, in order, and return its result. If the caller is cancelled, work that has started
        continues and keeps its thread, so that cancelled calls count toward the limit; work that has not started is
        dropped."""
        called = partial(contextvars.copy_context().run, partial(work, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._pool, called)
