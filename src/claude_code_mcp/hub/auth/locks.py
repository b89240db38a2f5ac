"""Locks between processes, awaited without holding up the event loop.

`file_lock` is ours; the system releases it when its holder ends. `directory_lock` is the one that Claude Code takes, a
directory that is made and removed: one that its holder left behind counts as released when it is old.
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

from ...private_files import DIRECTORY, FILE, private_directory

_PAUSE = 0.02
"""Seconds between two tries: no event tells when another process has let go."""


@asynccontextmanager
async def file_lock(file: Path, timeout: float) -> AsyncIterator[None]:
    """Holds the lock within this context. TimeoutError if others hold it for longer than `timeout` seconds."""
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
    """Holds the lock within this context, which must not take as long as `stale` seconds. TimeoutError if others hold
    it for longer than `timeout` seconds."""

    def taken() -> bool:
        with contextlib.suppress(FileNotFoundError):  # removed between the two
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
    # Each try is made on the event loop and never waits: in a thread it could succeed when nobody wants it any more.
    with anyio.fail_after(timeout):
        while not taken():  # noqa: ASYNC110 - another process has it
            await anyio.sleep(_PAUSE)


def _remove(directory: Path) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(directory)
