"""Tasks that belong to a service and to no caller."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)

_GRACE = 1.0
"""Seconds that tasks have to end by themselves when the service closes."""


class BackgroundTasks:
    """Keeps every task until it is done, so that none is garbage-collected half way, and logs its failure."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the service failed", exc_info=task.exception())

    async def close(self, timeout: float) -> None:
        """Lets tasks that are about to end do so, such as a note about a cost; cancels those that wait for something
        outside, such as a person who was sent to sign in, and waits up to `timeout` seconds for them to be gone."""
        if not self._tasks:
            return
        _, waiting = await asyncio.wait(self._tasks, timeout=_GRACE)
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting, timeout=timeout)
