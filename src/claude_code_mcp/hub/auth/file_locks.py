"""Locks between processes.

`file_lock` is ours; the system releases it when its holder exits. `directory_lock` is Claude Code's: a directory that
is created and removed; an old one counts as released.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from filelock import FileLock, Timeout

from ...core.private_files import DIRECTORY, FILE, private_directory

_PAUSE = 0.02
"""Seconds between two attempts: there is no event when another process releases the lock."""


@asynccontextmanager
async def file_lock(file: Path, timeout: float) -> AsyncIterator[None]:
    """Context that holds the lock. TimeoutError if others hold it for longer than `timeout` seconds."""
    await asyncio.to_thread(private_directory, file.parent)
    lock = FileLock(file, mode=FILE, thread_local=False)

    def taken() -> bool:
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return False
        return True

    await _until(taken, timeout)
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def directory_lock(directory: Path, timeout: float, stale: float) -> AsyncIterator[None]:
    """Context that holds the lock and must take less than `stale` seconds. TimeoutError if others hold it for longer
    than `timeout` seconds."""

    def taken() -> bool:
        with contextlib.suppress(FileNotFoundError):  # removed in the meantime
            if time.time() - directory.stat().st_mtime > stale:
                _remove(directory)
        try:
            directory.mkdir(mode=DIRECTORY)
        except FileExistsError:
            return False
        return True

    await _until(taken, timeout)
    try:
        yield
    finally:
        _remove(directory)


async def _until(taken: Callable[[], bool], timeout: float) -> None:
    # Tried on the event loop without blocking: in a thread it could succeed after its caller was cancelled.
    with anyio.fail_after(timeout):
        while not taken():  # noqa: ASYNC110 - another process has it
            await anyio.sleep(_PAUSE)


def _remove(directory: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
