"""Finds and ends what a child leaves behind, by the mark in its environment only.

A mark is `owner.start.namespace.unique`: the server process that started the child, that process's start time, the
namespace of its process ids, and an id of the child. Descendants inherit it with the environment. Any server in the
same namespace may end processes whose mark names a dead owner.

Where the supervisor contains children, this is the second line of defense, for the case that supervisor and reaper were
killed together. Elsewhere it is the only one; see `child.py`.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .environment import MARK

if TYPE_CHECKING:
    import psutil

log = logging.getLogger(__name__)

_SWEEP_TIMEOUT = 5.0
"""Seconds after which to give up on processes that cannot be killed."""
_PAUSE = 0.01
_YOUNG = 2.0
"""Seconds after its start in which a process may still be in `exec`."""
_KERNEL_THREADS = 2
"""The parent of all Linux kernel threads."""
_START_TOLERANCE = 2
"""How far two readings of a process's start time may differ: off Linux it is computed from the clock."""
_PF_EXITING = 0x4
"""The kernel's flag for a thread in `exit`, set before its teardown begins and never cleared."""
_SCRATCH_PREFIX = "claude-code-mcp-"


def new_mark() -> str:
    """A mark for one new process of this owner."""
    return f"{os.getpid()}.{started_at(os.getpid())}.{_namespace()}.{uuid.uuid4().hex}"


def started_at(pid: int) -> int:
    """A process's start time: on Linux the kernel's counter, which clock changes do not affect. Raises OSError if there
    is no such process."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name is in brackets and may itself contain spaces and brackets: the fields begin after the last
            # bracket.
            return int(file.read().rpartition(b")")[2].split()[19])
    else:
        return int(created_at(pid))


def created_at(pid: int) -> float:
    """A process's start time by the clock. Raises OSError if there is no such process."""
    import psutil  # noqa: PLC0415 - takes a while, and on Linux the first call needs none

    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None
    except psutil.Error as error:
        raise PermissionError(str(error)) from None


def has_ended(pid: int) -> bool:
    """Whether a process that is still listed will never run its own code again, so that it writes nothing more: it is a
    zombie or being torn down.

    Decided by the kernel's flag of each thread. An empty command line or environment proves nothing: every process has
    one during `exec`, and can clear its own. Nor does the state of the process, which is the state of its first thread:
    that may have ended while others run. Raises OSError if there is no such process, or if this cannot be determined.
    """
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415

        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            raise ProcessLookupError(pid) from None
        except psutil.Error as error:
            raise PermissionError(str(error)) from None
    seen: set[str] = set()
    # Repeats until it finds no new threads: an exiting thread may just have started another.
    while new := set(os.listdir(f"/proc/{pid}/task")) - seen:
        if not all(_is_exiting(f"/proc/{pid}/task/{thread}/stat") for thread in new):
            return False
        seen |= new
    return True


def _is_exiting(stat: str) -> bool:
    try:
        with open(stat, "rb") as file:
            # After the name, which may contain anything: state, parent, group, session, terminal, its group, flags.
            return bool(int(file.read().rpartition(b")")[2].split()[6]) & _PF_EXITING)
    except (FileNotFoundError, ProcessLookupError):  # only this thread has ended, or listing the threads fails next
        return True


def _namespace() -> int:
    """The namespace of process ids: a process in a container may have an owner outside that is invisible there."""
    return os.stat("/proc/self/ns/pid").st_ino if sys.platform == "linux" else 0


def scratch_path(mark: str) -> Path:
    """The path of the private directory of the child with this mark. It is not created here, because most children need
    none."""
    return Path(tempfile.gettempdir()) / f"{_SCRATCH_PREFIX}{mark}-files"


def is_scratch_name(name: str) -> bool:
    """Whether a directory with this name may be the private directory of a child."""
    return name.startswith(_SCRATCH_PREFIX)


async def sweep(mark: str) -> int:
    """Ends everything with this mark; returns the number of processes."""
    return await asyncio.to_thread(_end_all, lambda found: found == mark)


async def sweep_stale() -> int:
    """Ends everything that dead owners left behind, and removes their files."""
    return await asyncio.to_thread(_sweep_stale)


async def sweep_quietly() -> None:
    """`sweep_stale` for a starting server: logs the number of ended processes and never fails."""
    with contextlib.suppress(OSError):
        ended = await sweep_stale()
        if ended:
            log.warning("ended %d processes that a killed server had left behind", ended)


def end_stale(pid: int) -> None:
    """Ends this process, and others with its mark, if its owner is dead; otherwise does nothing."""
    mark = _stale_mark(pid)
    if mark:
        _end_all(lambda found: found == mark)


def is_stale(pid: int) -> bool:
    """Whether the mark of the process names a dead owner, so that `end_stale` would end it."""
    return bool(_stale_mark(pid))


def _stale_mark(pid: int) -> str | None:
    import psutil  # noqa: PLC0415

    try:
        mark = _mark_of(psutil.Process(pid))
    except psutil.Error:
        return None
    return mark if mark and owner_is_gone(mark) else None


def _end_all(wanted: Callable[[str], bool]) -> int:
    """Repeats the search until nothing is found, because a process may start others before it is ended."""
    import psutil  # noqa: PLC0415

    ended: set[int] = set()
    until = time.monotonic() + _SWEEP_TIMEOUT
    while time.monotonic() < until:
        marked = [(process, mark) for process in psutil.process_iter() if (mark := _mark_of(process)) is not None]
        found = [process for process, mark in marked if mark and wanted(mark)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                # Safe even if the id now belongs to another process: psutil compares the start time first.
                process.kill()
        ended.update(process.pid for process in found)
        # A process in the middle of `exec` may turn out to be one of them, so it is checked again.
        if not found and all(mark for _, mark in marked):
            break
        time.sleep(_PAUSE)
    return len(ended)


def _mark_of(process: "psutil.Process") -> str | None:
    """The mark of a living process; None if it has none or has ended, empty if it cannot be read yet."""
    import psutil  # noqa: PLC0415

    try:
        # In a server inside a session our own environment carries the mark of the outer one, which may be gone.
        if process.pid == os.getpid():
            return None
        environment = _environment(process)
        mark = environment.get(MARK) if environment else _mark_of_threads(process.pid)
        if mark:
            return None if has_ended(process.pid) else mark
        return None if environment or has_ended(process.pid) else _unreadable_mark(process)
    except (psutil.Error, OSError):
        return None


def started_by_us(pid: int) -> bool:
    """Whether a child of this or another of our servers, such as a session, started this process, directly or
    indirectly; also True if that cannot be determined."""
    import psutil  # noqa: PLC0415

    try:
        line = [process := psutil.Process(pid), *process.parents()]
    except psutil.Error:
        return True
    # The marks first, then the descent: a command can clear its environment, but cannot choose its ancestors.
    return any(_mark_of(process) for process in line) or os.getpid() in {process.pid for process in line[1:]}


def _environment(process: "psutil.Process") -> dict[str, str]:
    import psutil  # noqa: PLC0415

    try:
        return dict(process.environ())
    except psutil.ZombieProcess:  # its first thread has ended; others may still run
        return {}


def _mark_of_threads(pid: int) -> str | None:
    """The mark read from other threads: the first thread of a process that is being killed may end first, and then
    shows no environment while others still run."""
    if sys.platform != "linux":
        return None
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable.startswith(f"{MARK}=".encode()):
                    return variable.partition(b"=")[2].decode("ascii", "replace")
    return None


def _unreadable_mark(process: "psutil.Process") -> str | None:
    """Empty for a process in `exec`, which has no environment yet; None for one that never will: a kernel thread, or a
    process that cleared it."""
    young = time.time() - process.create_time() < _YOUNG
    return "" if young and process.ppid() != _KERNEL_THREADS else None


def _sweep_stale() -> int:
    # Processes first: one that still runs could write into its directory while that is removed.
    ended = _end_all(owner_is_gone)
    for directory in Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*.*.*.*-*"):
        if owner_is_gone(directory.name.removeprefix(_SCRATCH_PREFIX)):
            shutil.rmtree(directory, ignore_errors=True)
    return ended


def owner_is_gone(mark: str) -> bool:
    """Whether the server that created this mark is dead. False for a string that is not a mark."""
    try:
        pid, start, namespace, _ = mark.split(".", 3)
        # In another namespace the same id is another process, or no process: the owner's state cannot be determined
        # from here.
        if int(namespace) != _namespace():
            return False
        return abs(started_at(int(pid)) - int(start)) > _START_TOLERANCE or has_ended(int(pid))
    except (FileNotFoundError, ProcessLookupError):
        return True
    # An unknown state counts as alive: a leftover is better than killing the children of a running server.
    except (ValueError, OSError):
        return False
