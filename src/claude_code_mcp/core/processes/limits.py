"""The machine resources that a child may use, and how the limits are enforced.

| limit         | with a control group of its own                |  without |
| ------------- | ---------------------------------------------- | ------- |
| `memory`      | all of it together: the kernel ends its largest process | for each process (`RLIMIT_DATA`, 1 GiB at least); its reaper looks once a second at all of it and ends the largest process |
| `processes`   | all of it together: no more can be started     | in a sandbox, except for root, the same by `RLIMIT_NPROC`; else not at all |
| `cpus`        | so many processors at a time                   | not at all |
| `cpu_seconds` | for each process (`RLIMIT_CPU`)                | the same |
| `file_size`   | for each file (`RLIMIT_FSIZE`)                 | the same |

The total size of a child's files is not limited. A child with limits writes no core dumps, and when the whole machine
runs out of memory the kernel ends the child's processes before the server's.
"""  # noqa: E501 - a table

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from .control_groups import OPTIONAL_FILE, PREFIX, GroupParent

_MIN_DATA = 1 << 30
"""Claude Code reserves far more than it uses and does not start with less."""
_KILLED_FIRST = "500"


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Resource limits; None means unlimited."""

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
    """Limits, and the control group below which a child can get its own."""

    limits: ResourceLimits = NO_LIMITS
    parent: GroupParent | None = None

    def directives(self, mark: str) -> list[str]:
        """The directives for the reaper of the child with this mark, see `supervisor.py`."""
        return [*self._directives(f"{PREFIX}{mark or uuid.uuid4().hex}")] if self.limits else []

    def grouped(self, controller: str) -> bool:
        """Whether a control group enforces this controller's limit."""
        return self.parent is not None and controller in self.parent.controllers

    def unenforced(self, *, sandboxed: bool, root: bool) -> list[str]:
        """The names of limits that nothing enforces here."""
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
                yield f"{'try' if file == OPTIONAL_FILE else 'set'} {value} {group}/{file}"


UNLIMITED = EnforcedLimits()


def process_limit_command(limit: int, argv: Sequence[str]) -> list[str]:
    """The command with a limit on its user's processes, which in a user namespace are the processes of the namespace.
    Some shells call the option -u, others -p."""
    return ["/bin/sh", "-c", 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; exec "$@"', str(limit), *argv]


@dataclass(frozen=True, slots=True)
class ChildOptions:
    """How to start a child, apart from its command line."""

    descriptors: tuple[int, ...] = ()
    """Descriptors that are open in the child, with the same numbers; it has no others."""
    sockets: bool = False
    """Whether its stdin and stdout are sockets. They behave like pipes, but other processes cannot open them through
    /proc. Needs a supervisor."""
    limits: EnforcedLimits = UNLIMITED
    """Its resource limits. Needs a supervisor."""
    executables: tuple[str, ...] = ()
    """If set, the only files that it and its descendants can execute; see `needed_to_start`. Needs a supervisor and
    kernel support."""
    removal: tuple[str, ...] = ()
    """A command to run in its environment when it has ended, to remove what remains."""


USUAL_OPTIONS = ChildOptions()
