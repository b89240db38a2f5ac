"""How much memory there is, and how much a child and all that it started use.

On Linux this is read from /proc, a few small files for each process. What counts of a process is the memory that it
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
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MAX_PROCESSES = 10_000
"""How many descendants of one child are measured."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The memory in bytes of the machine, or of the container that this process runs in."""

    total: int
    available: int


def machine() -> MachineMemory | None:
    """The machine's current memory; None if the system does not report it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, KeyError, ValueError):
            facts = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines())
            total, available = (int(facts[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
            return MachineMemory(min(total, _container_limit() or total), available)
    import psutil  # noqa: PLC0415 - takes a while, and the start of a server on Linux does not need it

    try:
        memory = psutil.virtual_memory()
    except (OSError, psutil.Error, RuntimeError):
        return None
    return MachineMemory(min(memory.total, _container_limit() or memory.total), memory.available)


def _container_limit() -> int | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            return int(_CONTAINER_LIMIT.read_text())  # `max` where there is no limit
    return None


def trees(children: Iterable[int]) -> dict[int, int | None]:
    """The bytes used by each child and all its descendants, by process id; None if unknown."""
    measure = _tree_in_proc if sys.platform == "linux" else _tree_elsewhere
    return {pid: measure(pid) for pid in children}


def _tree_in_proc(pid: int) -> int | None:
    try:
        own = _own_memory(pid)
        below = _descendants(_reaper_of(pid) or pid)
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


def _reaper_of(pid: int) -> int | None:
    """The parent of a child that the supervisor started, to which the child's leftovers belong."""
    fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    parent = int(fields[1])
    return parent if parent not in (0, 1, os.getpid()) else None


def _descendants(pid: int) -> Iterator[int]:
    waiting, seen = [pid], 0
    while waiting and seen < _MAX_PROCESSES:
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
