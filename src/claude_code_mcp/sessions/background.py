"""Work beside the calls: tasks that belong to the service, and threads for work on the disk that may take long.

A transcript can be large, and a session's own commands can make it so. The threads of the event loop are few and do
everything: what reads transcripts has its own instead, one set for each configuration directory of the CLI. Of several
callers each has a directory of its own, so that whatever one has read, no other waits for it.
"""

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from ..processes.leftovers import sweep_quietly

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds that tasks have to end by themselves when the service closes."""

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class StartTask(Protocol):
    """Starts a task that is kept until it is done. One that is `endless` is cancelled when the service closes."""

    def __call__(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]": ...


class BackgroundTasks:
    """Keeps every task until it is done, so that none is garbage-collected half way, and logs its failure."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._endless: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], endless: bool = False) -> "asyncio.Task[None]":
        """`endless` is work that leaves nothing undone wherever it stops, such as a watch: nobody waits for its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if endless:
            self._endless.add(task)
        task.add_done_callback(self._done)
        return task

    def cancel_endless(self) -> None:
        for task in self._endless:
            task.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._endless.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the service failed", exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Lets tasks that are about to end do so, such as a note about a cost; cancels those that wait for something
        outside, such as a person who was sent to sign in, and waits up to `timeout` seconds for them to be gone."""
        # First: they never end by themselves, and would use up the time of the others.
        self.cancel_endless()
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)


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


async def sweep_later(start_task: StartTask, delay: float) -> None:
    """Ends what killed servers have left, after so many seconds. A service that is closed before has begun none; one
    that has begun is a task of its own."""
    await asyncio.sleep(delay)
    start_task(sweep_quietly())
