"""How much memory the machine has, and how much a child uses with everything that it has started.

On Linux both are read from /proc, a few small files for each process. What counts of a process is the memory that it
shares with no other program: its anonymous pages. The executable and its libraries, which all processes of a kind
share, do not count, so that figures of several processes can be added up. On other systems it is the resident memory;
where that cannot be read, nothing is known (None). Functions block on the system and belong into a thread.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MOST_PROCESSES = 10_000
"""Descendants of one child that are looked at; a program that starts more is not measured to the end."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The memory of the machine, or of the container that this process runs in, in bytes."""

    total: int
    available: int


def machine() -> Machine | None:
    """What there is now; None if the system does not tell."""
    import psutil  # noqa: PLC0415 - takes a while, and the start does not need it

    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError):
        return None
    return Machine(min(memory.total, _container_limit() or memory.total), memory.available)


def _container_limit() -> int | None:
    for file in _CONTAINER_LIMITS if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError):
            return int(file.read_text())  # without a limit it says `max`, or a number beyond every machine
    return None


def trees(children: Iterable[int]) -> dict[int, int | None]:
    """By the number of a child of ours the bytes that it and all that it started use; None if that is not known."""
    measure = _tree_in_proc if sys.platform == "linux" else _tree_elsewhere
    return {pid: measure(pid) for pid in children}


def _tree_in_proc(pid: int) -> int | None:
    try:
        own = _own_memory(pid)
        below = _descendants(_keeper_of(pid) or pid)
    except (OSError, ValueError, IndexError):
        return None
    total = own
    for process in below:
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended
            total += _own_memory(process) if process != pid else 0
    return total


def _own_memory(pid: int) -> int:
    _, resident, shared, *_ = (_PROC / str(pid) / "statm").read_bytes().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _keeper_of(pid: int) -> int | None:
    """The parent of a child that was started by the supervisor: what the child has left running belongs to it."""
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    parent = int(fields[1])
    return parent if parent not in (0, 1, os.getpid()) else None


def _descendants(pid: int) -> Iterator[int]:
    waiting, seen = [pid], 0
    while waiting and seen < _MOST_PROCESSES:
        parent = waiting.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(_PROC / str(parent) / "task"):
                for child in (_PROC / str(parent) / "task" / task / "children").read_bytes().split():
                    seen += 1
                    waiting.append(int(child))
                    yield int(child)


def _tree_elsewhere(pid: int) -> int | None:
    import psutil  # noqa: PLC0415

    total = 0
    try:
        process = psutil.Process(pid)
        total = process.memory_info().rss
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                total += child.memory_info().rss
    except (psutil.Error, OSError):
        return None
    return total
