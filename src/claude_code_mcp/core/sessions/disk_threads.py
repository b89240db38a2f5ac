"""Threads for what reads transcripts.

A transcript can be large, and a session's own commands can make it so. The event loop's default threads are few and
serve everything, so transcripts are read in threads of their own, one set for each configuration directory of the CLI.
With several callers each has such a directory, so nobody waits for what another one reads.
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
    """At most so many threads, which are started when they are first needed."""

    def __init__(self, most: int) -> None:
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="disk")

    async def run(self, work: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """What `work` returns, in a thread, behind what was to be done before. Work that has begun when its caller is
        cancelled is done to its end and keeps its thread until then, so that a caller who asks and leaves gets no more
        threads; work that has not begun is never done."""
        called = partial(contextvars.copy_context().run, partial(work, *args, **kwargs))
        return await asyncio.get_running_loop().run_in_executor(self._pool, called)
