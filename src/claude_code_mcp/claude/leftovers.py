"""Finds and ends what a Claude Code process leaves behind, by the mark in its environment and by nothing else.

A mark is `owner.created.unique`: the process that started it, when that one was created, and one process of the
CLI. Children inherit it. Whatever carries the mark of an owner that no longer lives may be ended by anyone.
"""

import asyncio
import contextlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from .environment import MARK

_ROUNDS = 5
_SAME_MOMENT = 2.0
_PREFIX = "claude-code-mcp-"


def new_mark() -> str:
    """A mark for one new process of this owner."""
    return f"{os.getpid()}.{int(psutil.Process().create_time())}.{uuid.uuid4().hex}"


def scratch_directory(mark: str) -> Path:
    """A fresh private directory for the files of the process with this mark."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{mark}-"))


async def sweep(mark: str) -> int:
    """Ends everything that carries this mark; tells how many processes that were."""
    return await asyncio.to_thread(_end_all, lambda found: found == mark)


async def sweep_stale() -> int:
    """Ends whatever owners that no longer live have left behind, and removes their files."""
    return await asyncio.to_thread(_sweep_stale)


def marked(wanted: Callable[[str], bool]) -> Iterator[psutil.Process]:
    """The living processes whose mark is wanted."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark is not None and wanted(mark) and process.status() != psutil.STATUS_ZOMBIE:
                yield process


def _end_all(wanted: Callable[[str], bool]) -> int:
    ended = 0
    for _ in range(_ROUNDS):  # what is ended may have started something in the meantime
        found = [process for process in marked(wanted) if process.pid != os.getpid()]
        if not found:
            break
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
        ended += len(found)
    return ended


def _sweep_stale() -> int:
    ended = _end_all(_owner_is_gone)
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.*.*-*"):
        if _owner_is_gone(directory.name.removeprefix(_PREFIX)):
            shutil.rmtree(directory, ignore_errors=True)
    return ended


def _owner_is_gone(mark: str) -> bool:
    try:
        pid, created, _ = mark.split(".", 2)
        return abs(psutil.Process(int(pid)).create_time() - int(created)) > _SAME_MOMENT
    except psutil.NoSuchProcess:
        return True
    except (ValueError, psutil.Error):
        return False
