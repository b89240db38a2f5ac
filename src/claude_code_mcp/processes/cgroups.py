"""Control groups of the Linux kernel: where this process may make some for its children, if anywhere.

Version 2 where it is delegated to us: a service with `Delegate=yes`, a container with a group of its own, or root. The
kernel lets no group have both processes and limited groups below it, so our own processes move into a group `server`
first; where other programs are in our group that is not done. Version 1 where we may write to our groups, as root can.

Groups that a killed server has left behind are removed when the next one looks.
"""

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .leftovers import owner_is_gone

PREFIX = "claude-code-mcp-"
"""How the names of our groups begin; the mark of the child follows, see `leftovers.py`."""
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD = 100_000
"""Microseconds, over which the share of the processors is counted."""
_OWN_GROUP = "server"
_FIRST_VERSION_MEMORY = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
OPTIONAL_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Settings that a kernel without swap accounting does not have."""


@dataclass(frozen=True, slots=True)
class GroupParent:
    """A directory in which groups can be made, and what can be limited there."""

    path: str
    controllers: frozenset[str]
    unified: bool = True
    """Whether it is of version 2."""

    def settings(self, memory: int | None, processes: int | None, cpus: float | None) -> dict[str, str]:
        """The files of a group and what has to be in them, in this order, for these limits."""
        settings: dict[str, str] = {}
        if "memory" in self.controllers and memory is not None:
            # Without swap: a child that is out of memory must not slow down all others instead.
            ours = {"memory.max": str(memory), "memory.swap.max": "0"}
            settings |= ours if self.unified else dict.fromkeys(_FIRST_VERSION_MEMORY, str(memory))
        if "pids" in self.controllers and processes is not None:
            settings["pids.max"] = str(processes)
        if "cpu" in self.controllers and cpus is not None:
            quota = int(cpus * _PERIOD)
            settings |= {"cpu.max": f"{quota} {_PERIOD}"} if self.unified else {"cpu.cfs_quota_us": str(quota)}
        return settings


def find_parents() -> tuple[GroupParent, ...]:
    """Where groups can be made for children of this process; none where that is not possible. May move this process and
    its children into a group of their own. Blocks for a moment."""
    if sys.platform != "linux":
        return ()
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    found = []
    for unified, controllers, path in own_groups(mounts, groups):
        with contextlib.suppress(OSError):
            usable = delegated(path) if unified else _writable(path, controllers)
            if usable:
                _remove_stale(path)
                found.append(GroupParent(path, usable, unified))
    return tuple(found)


def own_groups(mounts: str, groups: str) -> Iterator[tuple[bool, frozenset[str], str]]:
    """The groups that a process is in, from its `mountinfo` and `cgroup`: whether they are of version 2, controllers,
    directory. Those whose directory is not mounted are left out. Pure."""
    mounted = [*_mounted(mounts)]
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        wanted = frozenset(names.split(",")) & {*_CONTROLLERS} if names else frozenset()
        if names and not wanted:
            continue
        for kind, options, root, target in mounted:
            fits = wanted <= options and kind == "cgroup" if names else kind == "cgroup2"
            if fits and (path == root or path.startswith(root.rstrip("/") + "/")):
                yield not names, wanted, os.path.normpath(target + "/" + path[len(root.rstrip("/")) :])
                break


def _mounted(mounts: str) -> Iterator[tuple[str, frozenset[str], str, str]]:
    """Kind, options, root and target of the mounts of control groups."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) > 4 and len(kind) > 2 and kind[0] in ("cgroup", "cgroup2"):
            yield kind[0], frozenset(kind[2].split(",")), place[3], place[4]


def _writable(path: str, controllers: frozenset[str]) -> frozenset[str]:
    return controllers if os.access(path, os.W_OK) else frozenset()


def delegated(path: str, controllers: Iterable[str] = _CONTROLLERS) -> frozenset[str]:
    """Which of the controllers groups below this one of version 2 have, once it is prepared for that. OSError if that
    cannot be done."""
    group = Path(path)
    available = {*controllers} & {*(group / "cgroup.controllers").read_text().split()}
    enabled = {*(group / "cgroup.subtree_control").read_text().split()}
    missing = available - enabled
    # Only the root of all groups may have processes of its own.
    if missing and (group / "cgroup.type").exists() and not _move_own(group):
        return frozenset()
    for name in sorted(missing):
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
            enabled.add(name)
    return frozenset(available & enabled) if os.access(path, os.W_OK) else frozenset()


def _move_own(group: Path) -> bool:
    """Moves the processes of a group into one below it; False if some of them are not ours."""
    processes = [int(number) for number in (group / "cgroup.procs").read_text().split()]
    if not all(_is_ours(pid) for pid in processes):
        return False
    own = group / _OWN_GROUP
    own.mkdir(exist_ok=True)
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            (own / "cgroup.procs").write_text(str(pid))
    return True


def _is_ours(pid: int) -> bool:
    """Whether a process is this one, or was started by it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _remove_stale(path: str) -> None:
    """Removes the groups of servers that no longer live; one with a process in it stays."""
    for name in os.listdir(path):
        if name.startswith(PREFIX) and owner_is_gone(name.removeprefix(PREFIX)):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(path, name))
