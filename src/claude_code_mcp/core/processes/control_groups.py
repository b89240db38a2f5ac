"""Control groups of version 2, where they are delegated to us.

They are available in a service with `Delegate=yes`, in a container with a separate group, or as root. The kernel does
not allow a group to have both processes and limited groups below it, so our own processes first move into a group
`server`, unless other programs are in our group. The next server removes the groups that a killed server has left
behind.
"""

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .leftovers import owner_is_gone

PREFIX = "claude-code-mcp-"
"""The prefix of our groups' names; the child's mark follows, see `leftovers.py`."""
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD = 100_000
"""The period, in microseconds, of the processor share."""
_OWN_GROUP = "server"
OPTIONAL_FILE = "memory.swap.max"
"""A setting that kernels without swap accounting lack."""


@dataclass(frozen=True, slots=True)
class GroupParent:
    """A directory in which groups can be created, and which limits it supports."""

    path: str
    controllers: frozenset[str]

    def settings(self, memory: int | None, processes: int | None, cpus: float | None) -> dict[str, str]:
        """The files of a group and their contents for these limits, in order."""
        settings: dict[str, str] = {}
        if "memory" in self.controllers and memory is not None:
            # Without swap: a child that is out of memory must not slow down all others instead.
            settings |= {"memory.max": str(memory), OPTIONAL_FILE: "0"}
        if "pids" in self.controllers and processes is not None:
            settings["pids.max"] = str(processes)
        if "cpu" in self.controllers and cpus is not None:
            settings["cpu.max"] = f"{int(cpus * _PERIOD)} {_PERIOD}"
        return settings


def find_parent() -> GroupParent | None:
    """Where groups for children of this process can be created; None if that is impossible. May move this process and
    its children into a separate group. Blocks briefly."""
    if sys.platform != "linux":
        return None
    # If the group cannot be used, the limits that work without one still apply.
    with contextlib.suppress(OSError):
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
        path = own_group(mounts, groups)
        controllers = delegated(path) if path is not None else None
        if path is not None and controllers:
            _remove_stale(path)
            return GroupParent(path, controllers)
    return None


def own_group(mounts: str, groups: str) -> str | None:
    """The directory of the cgroup v2 group of a process, from its `mountinfo` and `cgroup`; None if it is not mounted.
    Pure."""
    path = next((line.removeprefix("0::") for line in groups.splitlines() if line.startswith("0::")), None)
    if path is None:
        return None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) > 4 and kind and kind[0] == "cgroup2":
            root, target = place[3].rstrip("/"), place[4]
            if path == place[3] or path.startswith(f"{root}/"):
                return os.path.normpath(f"{target}/{path[len(root) :]}")
    return None


def delegated(path: str, controllers: Iterable[str] = _CONTROLLERS) -> frozenset[str]:
    """Prepares a group and returns the controllers available in groups below it. Raises OSError if that is
    impossible."""
    group = Path(path)
    available = {*controllers} & {*(group / "cgroup.controllers").read_text().split()}
    enabled = {*(group / "cgroup.subtree_control").read_text().split()}
    missing = available - enabled
    # Only the root group may contain processes itself.
    if missing and (group / "cgroup.type").exists() and not _move_own(group):
        return frozenset()
    # One at a time: the kernel refuses the whole line if one of its controllers cannot be enabled.
    for name in sorted(missing):
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{name}")
            enabled.add(name)
    return frozenset(available & enabled) if os.access(path, os.W_OK) else frozenset()


def _move_own(group: Path) -> bool:
    """Moves the processes of a group into a subgroup; False if some of them are not ours."""
    processes = [int(number) for number in (group / "cgroup.procs").read_text().split()]
    if not all(_is_ours(pid) for pid in processes):
        return False
    own = group / _OWN_GROUP
    own.mkdir(exist_ok=True)
    for pid in processes:
        # It has ended since the list was read, and so has left the group.
        with contextlib.suppress(ProcessLookupError):
            (own / "cgroup.procs").write_text(str(pid))
    return True


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or was started by it."""
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return False


def _remove_stale(path: str) -> None:
    """Removes the groups of dead servers; a group with a process in it stays."""
    for name in os.listdir(path):
        if name.startswith(PREFIX) and owner_is_gone(name.removeprefix(PREFIX)):
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(path, name))
