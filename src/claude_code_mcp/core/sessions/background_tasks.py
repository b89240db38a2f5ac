"""Tasks that the service owns and that outlive the calls that started them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds that tasks have to finish when the service closes."""
_RESTART_DELAY = 30.0
"""Seconds before a failed watch is restarted."""


class StartTask(Protocol):
    """Starts a task that is kept until it is done. One that is `endless` is cancelled when the service closes."""

    def __call__(self, work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]": ...


class BackgroundTasks:
    """Keeps every task until it is done, so that it is not garbage-collected early, and logs failures."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._endless: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
        """Start a task. `endless` work, such as a watch, can stop anywhere; closing cancels it without waiting for
        it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        if endless:
            self._endless.add(task)
        task.add_done_callback(self._done)
        return task

    def watch(self, work: Callable[[], Coroutine[Any, Any, None]], pause: float = _RESTART_DELAY) -> None:
        """Run work until the service closes. A failure is logged, and the work restarts after `pause` seconds: a server
        runs for days and must keep parking processes and measuring memory."""

        async def run_again_and_again() -> None:
            while True:
                try:
                    return await work()
                except Exception:
                    log.exception("%s failed; restarting it in %g s", _name_of(work), pause)
                await asyncio.sleep(pause)

        self.start(run_again_and_again(), endless=True)

    def cancel_endless(self) -> None:
        for task in self._endless:
            task.cancel()

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        self._endless.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed", _name_of(task.get_coro()), exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Let tasks that are about to finish do so, such as writing a cost. Cancel the others, such as those that wait
        for a person to sign in, and wait up to `timeout` seconds for them."""
        # First: they never finish, and would use up the time of the others.
        self.cancel_endless()
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)


def _name_of(work: object) -> str:
    """The name of the function that a task runs, for the log."""
    work = work.func if isinstance(work, partial) else work
    return getattr(work, "__qualname__", type(work).__name__)
