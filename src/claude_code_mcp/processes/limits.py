"""How much of the machine a child may use, with everything that it starts, and how that is enforced.

| limit         | with a control group of its own (`cgroups.py`) | without |
| ------------- | ---------------------------------------------- | ------- |
| `memory`      | all of it together: the kernel ends its largest process | for each process (`RLIMIT_DATA`, 1 GiB at least); its keeper looks once a second at all of it and ends the largest process |
| `processes`   | all of it together: no more can be started     | in a sandbox, except for root, the same by `RLIMIT_NPROC`; else not at all |
| `cpus`        | so many processors at a time                   | not at all |
| `cpu_seconds` | for each process (`RLIMIT_CPU`)                | the same |
| `file_size`   | for each file (`RLIMIT_FSIZE`)                 | the same |

What the files of a child take up together is not limited. A child with limits writes no core dumps, and when the whole
machine runs out of memory the kernel ends its processes before those of the server.
"""  # noqa: E501 - a table

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from .cgroups import OPTIONAL_FILES, PREFIX, GroupParent

_LEAST_DATA = 1 << 30
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
    """Limits, and the control groups below which a child can have its own."""

    limits: ResourceLimits = NO_LIMITS
    parents: tuple[GroupParent, ...] = ()

    def directives(self, mark: str) -> list[str]:
        """What the keeper of the child with this mark has to do, see `supervisor.py`."""
        return [*self._directives(f"{PREFIX}{mark or uuid.uuid4().hex}")] if self.limits else []

    def grouped(self, controller: str) -> bool:
        """Whether a control group enforces what this controller is for."""
        return any(controller in parent.controllers for parent in self.parents)

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
            yield f"rlimit RLIMIT_DATA {max(limits.memory, _LEAST_DATA)}"
            yield f"memory {limits.memory}"
        for parent in self.parents:
            settings = parent.settings(limits.memory, limits.processes, limits.cpus)
            if settings:
                yield f"group {parent.path}/{name}"
                for file, value in settings.items():
                    kind = "try" if file in OPTIONAL_FILES else "set"
                    yield f"{kind} {value} {parent.path}/{name}/{file}"


UNLIMITED = EnforcedLimits()


def process_limit_command(limit: int, argv: Sequence[str]) -> list[str]:
    """The command with a limit on the processes of its user, which in a user namespace are those of the namespace. Some
    shells call it -u, and others -p."""
    return ["/bin/sh", "-c", 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; exec "$@"', str(limit), *argv]
