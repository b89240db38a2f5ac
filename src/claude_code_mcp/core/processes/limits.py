"""What of the machine a child may use and does use, and how that is enforced: memory, processors, programs.

Control groups of version 2 are used where they are delegated to us: in a service with `Delegate=yes`, in a container
with a group of its own, or as root. The kernel allows no group to have both processes and limited groups below it, so
our own processes move into a group `server` first, unless other programs are in our group.

Groups that a killed server has left behind are removed when the next one looks.

| limit         | with a control group of its own                |  without |
| ------------- | ---------------------------------------------- | ------- |
| `memory`      | all of it together: the kernel ends its largest process | for each process (`RLIMIT_DATA`, 1 GiB at least); its reaper looks once a second at all of it and ends the largest process |
| `processes`   | all of it together: no more can be started     | in a sandbox, except for root, the same by `RLIMIT_NPROC`; else not at all |
| `cpus`        | so many processors at a time                   | not at all |
| `cpu_seconds` | for each process (`RLIMIT_CPU`)                | the same |
| `file_size`   | for each file (`RLIMIT_FSIZE`)                 | the same |

What the files of a child take up together is not limited. A child with limits writes no core dumps, and when the whole
machine runs out of memory the kernel ends its processes before those of the server.

How much memory there is, and how much a child uses, is read from /proc on Linux, a few small files for each process. What counts of a process is the memory that it
shares with no other program: its anonymous pages. The executable and its libraries, which all processes of a kind
share, do not count, so that figures of several processes can be added up. On other systems it is the resident memory;
where that cannot be read, nothing is known (None). Functions block on the system and belong into a thread.

`needed_to_start` says which files a program needs to start, for `ChildOptions.executables`: the kernel (Landlock, Linux
5.19 and later) then refuses every other program to the child and to all that it starts, whatever a configuration names
that nobody has looked at.
"""  # noqa: E501 - a table

import contextlib
import os
import struct
import sys
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Literal

from .leftovers import owner_is_gone

PREFIX = "claude-code-mcp-"
"""How the names of our groups begin; the mark of the child follows, see `leftovers.py`."""
_CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD = 100_000
"""Microseconds, over which the share of the processors is counted."""
_OWN_GROUP = "server"
_OPTIONAL_FILE = "memory.swap.max"
"""A setting that a kernel without swap accounting does not have."""


@dataclass(frozen=True, slots=True)
class GroupParent:
    """A directory in which groups can be made, and what can be limited there."""

    path: str
    controllers: frozenset[str]

    def settings(self, memory: int | None, processes: int | None, cpus: float | None) -> dict[str, str]:
        """The files of a group and what has to be in them, in this order, for these limits."""
        settings: dict[str, str] = {}
        if "memory" in self.controllers and memory is not None:
            # Without swap: a child that is out of memory must not slow down all others instead.
            settings |= {"memory.max": str(memory), _OPTIONAL_FILE: "0"}
        if "pids" in self.controllers and processes is not None:
            settings["pids.max"] = str(processes)
        if "cpu" in self.controllers and cpus is not None:
            settings["cpu.max"] = f"{int(cpus * _PERIOD)} {_PERIOD}"
        return settings


def find_parent() -> GroupParent | None:
    """Where groups can be made for children of this process; None where that is not possible. May move this process and
    its children into a group of their own. Blocks for a moment."""
    if sys.platform != "linux":
        return None
    # Where the group cannot be used, the limits that work without one still hold.
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
    """The directory of the group of version 2 that a process is in, from its `mountinfo` and `cgroup`; None if it is
    not mounted. Pure."""
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
    """Which of the controllers groups below this one have, once it is prepared for that. OSError if that
    cannot be done."""
    group = Path(path)
    available = {*controllers} & {*(group / "cgroup.controllers").read_text().split()}
    enabled = {*(group / "cgroup.subtree_control").read_text().split()}
    missing = available - enabled
    # Only the root of all groups may have processes of its own.
    if missing and (group / "cgroup.type").exists() and not _move_own(group):
        return frozenset()
    # One by one: the kernel refuses a line as a whole if one of its controllers cannot be enabled.
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
        # It has ended since the list was read, and is out of the group with that.
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


# -- limits -----------------------------------------------------------------------------------------------------------


_MIN_DATA = 1 << 30
"""Claude Code reserves far more than it uses, and does not start with less."""
_KILLED_FIRST = "500"


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """None is unlimited."""

    memory: int | None = None
    processes: int | None = None
    cpus: float | None = None
    cpu_seconds: int | None = None
    file_size: int | None = None

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return any(value is not None for value in astuple(self))


NO_LIMITS = ResourceLimits()


@dataclass(frozen=True, slots=True)
class EnforcedLimits:
    """Limits, and the control group below which a child can have its own."""

    limits: ResourceLimits = NO_LIMITS
    parent: GroupParent | None = None

    def directives(self, mark: str) -> list[str]:
        """What the reaper of the child with this mark has to do, see `supervisor.py`."""
        return [*self._directives(f"{PREFIX}{mark or uuid.uuid4().hex}")] if self.limits else []

    def grouped(self, controller: str) -> bool:
        """Whether a control group enforces what this controller is for."""
        return self.parent is not None and controller in self.parent.controllers

    def unenforced(self, *, sandboxed: bool, root: bool) -> list[str]:
        """The limits that nothing enforces here, by name."""
        names = []
        if self.limits.processes is not None and not self.grouped("pids") and (root or not sandboxed):
            names.append("processes")
        if self.limits.cpus is not None and not self.grouped("cpu"):
            names.append("cpus")
        return names

    def _directives(self, name: str) -> Iterator[str]:
        limits = self.limits
        yield f"oom {_KILLED_FIRST}"
        yield "rlimit RLIMIT_CORE 0"
        if limits.cpu_seconds is not None:
            yield f"rlimit RLIMIT_CPU {limits.cpu_seconds}"
        if limits.file_size is not None:
            yield f"rlimit RLIMIT_FSIZE {limits.file_size}"
        if limits.memory is not None and not self.grouped("memory"):
            yield f"rlimit RLIMIT_DATA {max(limits.memory, _MIN_DATA)}"
            yield f"memory {limits.memory}"
        if self.parent is not None:
            settings = self.parent.settings(limits.memory, limits.processes, limits.cpus)
            group = f"{self.parent.path}/{name}"
            if settings:
                yield f"group {group}"
            for file, value in settings.items():
                yield f"{'try' if file == _OPTIONAL_FILE else 'set'} {value} {group}/{file}"


UNLIMITED = EnforcedLimits()


def process_limit_command(limit: int, argv: Sequence[str]) -> list[str]:
    """The command with a limit on the processes of its user, which in a user namespace are those of the namespace. Some
    shells call it -u, and others -p."""
    return ["/bin/sh", "-c", 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; exec "$@"', str(limit), *argv]


# -- memory -----------------------------------------------------------------------------------------------------------


_PROC = Path("/proc")
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MAX_PROCESSES = 10_000
"""Descendants of one child that are looked at; a program that starts more is not measured to the end."""


@dataclass(frozen=True, slots=True)
class MachineMemory:
    """The memory of the machine, or of the container that this process runs in, in bytes."""

    total: int
    available: int


def machine() -> MachineMemory | None:
    """The memory of the machine now; None if the system does not report it."""
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
    """For the number of each child of ours the bytes that it uses with all that it started; None where that is not
    known."""
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
    """The parent of a child that was started by the supervisor: what the child has left running belongs to it."""
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


# -- how a child is started ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """How a child is started beside its command line."""

    descriptors: tuple[int, ...] = ()
    """Open in the child under the numbers that they have here; it has no others."""
    sockets: bool = False
    """Whether its stdin and stdout are sockets. They behave as pipes do, but no other process can open them through
    /proc. Only with a supervisor."""
    limits: EnforcedLimits = UNLIMITED
    """How much of the machine it may use. Only with a supervisor."""
    executables: tuple[str, ...] = ()
    """The only files that it and all that it starts can execute, if there are any; see `needed_to_start`. Only
    with a supervisor, and where the kernel can be told so."""
    removal: tuple[str, ...] = ()
    """A command that is run in its environment when it has ended, for what its own end does not remove."""


USUAL_OPTIONS = ChildOptions()


# -- pausing and ending -----------------------------------------------------------------------------------------------


_MAX_ROUNDS = 100
"""Generations of a tree; more are made only by something that starts processes faster than they are found."""


def pause_trees(pids: Collection[int]) -> None:
    """Stops these children and everything that they have started, without ending it."""
    _each_in_trees(pids, "suspend")


def resume_trees(pids: Collection[int]) -> None:
    """Lets them go on."""
    _each_in_trees(pids, "resume")


def kill_trees(pids: Collection[int]) -> None:
    """Ends them at once, whether they are stopped or not."""
    import psutil  # noqa: PLC0415

    # Stopped first, so that nothing new is started meanwhile, and found before their parents are gone.
    for pid in _each_in_trees(pids, "suspend"):
        with contextlib.suppress(psutil.Error):
            psutil.Process(pid).kill()


def _each_in_trees(pids: Collection[int], act: Literal["suspend", "resume"]) -> set[int]:
    """Does this to all of them; returns those that were found. Trees are walked from the top, after their roots were
    stopped: what is stopped starts nothing, so that the walk ends. A container's processes are those of its engine, and
    are not reached."""
    import psutil  # noqa: PLC0415

    if not pids:
        return set()
    seen = set[int]()
    # A supervised child has a reaper of its own above it, whose children are the child and every orphan below it.
    reapers = {parent for pid in pids if (parent := _parent(pid)) not in (None, os.getpid())}
    generation = {*pids, *_children(reapers)}
    for _ in range(_MAX_ROUNDS):
        for pid in generation:
            with contextlib.suppress(psutil.Error):  # it has just ended, or is another user's
                getattr(psutil.Process(pid), act)()
        seen |= generation
        generation = set(_children(seen)) - seen
        if not generation:
            break
    return seen


def _parent(pid: int) -> int | None:
    import psutil  # noqa: PLC0415

    try:
        return int(psutil.Process(pid).ppid())
    except psutil.Error:
        return None


def _children(parents: Collection[int | None]) -> Iterable[int]:
    """One look at the processes of the machine serves any number of parents."""
    import psutil  # noqa: PLC0415

    if not parents:
        return []
    return [process.pid for process in psutil.process_iter(["ppid"]) if process.info["ppid"] in parents]


# -- programs ---------------------------------------------------------------------------------------------------------


_HEADER = struct.Struct("<4sBB10x HHIQQQIHHH")
_SEGMENT = struct.Struct("<IIQQQQ")
_INTERPRETER = 3
_MAX_SEGMENTS = 64


def needed_to_start(program: str) -> tuple[str, ...]:
    """The program itself and its loader; empty if that cannot be said of it, a script for one. Blocks on the disk."""
    program = os.path.realpath(program)
    try:
        with open(program, "rb") as file:
            header = _HEADER.unpack(file.read(_HEADER.size))
            magic, bits, order, segments, size, count = *header[:3], header[7], header[11], header[12]
            if (magic, bits, order) != (b"\x7fELF", 2, 1) or count > _MAX_SEGMENTS:
                return ()
            for number in range(count):
                file.seek(segments + number * size)
                kind, _, offset, _, _, length = _SEGMENT.unpack(file.read(_SEGMENT.size))
                if kind == _INTERPRETER:
                    file.seek(offset)
                    loader = os.fsdecode(file.read(min(length, 4096)).rstrip(b"\0"))
                    return (program, os.path.realpath(loader)) if os.path.isfile(loader) else ()
    except (OSError, struct.error):
        return ()
    return (program,)
