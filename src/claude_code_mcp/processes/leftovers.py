"""Finds and ends what a Claude Code process leaves behind, by the mark in its environment and by nothing else.

A mark is `owner.born.space.unique`: the process that started it, when that one was born, in which space of process
ids these numbers count, and one process of the CLI. Children inherit it. Whatever carries the mark of an owner that
no longer lives may be ended by anyone in the same space.
"""

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import psutil

from .environment import MARK

_PATIENCE = 5.0
_PAUSE = 0.01
_YOUNG = 2.0
_KERNEL_THREADS = 2
_SAME_MOMENT = 2
_PREFIX = "claude-code-mcp-"


def new_mark() -> str:
    """A mark for one new process of this owner."""
    return f"{os.getpid()}.{_born(os.getpid())}.{_space()}.{uuid.uuid4().hex}"


def _born(pid: int) -> int:
    """When a process was born, in a count that no later change of the clock moves."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    else:
        return int(psutil.Process(pid).create_time())


def _space() -> int:
    """The namespace of process ids: what runs in a container has an owner that cannot be seen from outside."""
    return os.stat("/proc/self/ns/pid").st_ino if sys.platform == "linux" else 0


def scratch_directory(mark: str) -> Path:
    """A fresh private directory for the files of the process with this mark."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{mark}-"))


async def sweep(mark: str) -> int:
    """Ends everything that carries this mark; tells how many processes that were."""
    return await asyncio.to_thread(_end_all, lambda found: found == mark)


async def sweep_stale() -> int:
    """Ends whatever owners that no longer live have left behind, and removes their files."""
    return await asyncio.to_thread(_sweep_stale)


def end_stale(pid: int) -> None:
    """Ends this process and its like if its owner no longer lives; any other is left alone."""
    try:
        mark = _mark_of(psutil.Process(pid))
    except psutil.Error:
        return
    if mark and _owner_is_gone(mark):
        _end_all(lambda found: found == mark)


def _end_all(wanted: Callable[[str], bool]) -> int:
    """Looks again until nothing is found: what is ended may have started something in the meantime."""
    ended: set[int] = set()
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        look = [(process, mark) for process in psutil.process_iter() if (mark := _mark_of(process)) is not None]
        found = [process for process, mark in look if mark and wanted(mark)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        ended.update(process.pid for process in found)
        if not found and all(mark for _, mark in look):
            break
        time.sleep(_PAUSE)
    return len(ended)


def _mark_of(process: psutil.Process) -> str | None:
    """The mark of a living process, None if it has none; empty if that cannot be told yet."""
    try:
        environment = process.environ()
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return None
        return environment.get(MARK) or None if environment else _not_yet(process)
    except (psutil.Error, OSError):
        return None


def _not_yet(process: psutil.Process) -> str | None:
    """In the middle of `exec` a process shows no environment. Those of the kernel and of old never do."""
    young = time.time() - process.create_time() < _YOUNG
    return "" if young and process.ppid() != _KERNEL_THREADS else None


def _sweep_stale() -> int:
    ended = _end_all(_owner_is_gone)
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*.*.*.*-*"):
        if _owner_is_gone(directory.name.removeprefix(_PREFIX)):
            shutil.rmtree(directory, ignore_errors=True)
    return ended


def _owner_is_gone(mark: str) -> bool:
    try:
        pid, born, space, _ = mark.split(".", 3)
        return int(space) == _space() and abs(_born(int(pid)) - int(born)) > _SAME_MOMENT
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return True
    except (ValueError, OSError, psutil.Error):
        return False
