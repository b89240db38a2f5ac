"""What an isolated child is given: files, network, environment. Everything that is not listed does not exist for it.

A `SandboxView` says nothing of how it is enforced: `bubblewrap.py` and `container.py` each turn it into a command line.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .limits import NO_LIMITS, ResourceLimits


@dataclass(frozen=True, slots=True)
class Mount:
    """One thing that a child sees."""

    target: str
    """Where it is found. All directories above it exist for the child too, with nothing else in them."""
    source: str | int | None
    """A path; a descriptor, which cannot be exchanged for another place after it was checked; or None for an empty
    directory in memory that is gone with the child."""
    writable: bool = False

    @classmethod
    def at(cls, path: str, *, writable: bool = False) -> "Mount":
        """A path that is the same inside and outside."""
        return cls(path, path, writable)


@dataclass(frozen=True, slots=True)
class SandboxView:
    """All that a child sees beside the programs of the system."""

    mounts: tuple[Mount, ...]
    """Of two with one target the later one counts. A source that does not exist is left out."""
    cwd: str
    environment: Mapping[str, str] = field(default_factory=dict)
    network: bool = True
    """Whether it has the network of the host, or none at all."""
    limits: ResourceLimits = NO_LIMITS
    """How much of the machine it may use, as far as that is enforced from within."""
    nested: bool = False
    """Whether it may make sandboxes of its own. Then it can write to /proc, and so into the memory of its siblings."""

    def in_order(self) -> Iterator[Mount]:
        """What is to be mounted, a directory before everything inside of it."""
        by_target = {mount.target: mount for mount in self.mounts if _exists(mount)}
        return iter(sorted(by_target.values(), key=lambda mount: len(Path(mount.target).parts)))


def _exists(mount: Mount) -> bool:
    return not isinstance(mount.source, str) or os.path.exists(mount.source)


@dataclass(slots=True)
class Isolated:
    """A command that runs a child in its view, and what it must be started with."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    descriptors: tuple[int, ...] = ()
    """Open ones that the command refers to by number. They are for the command alone: it closes them before the child
    begins, to whom a directory's would open everything around that directory."""
    removal: tuple[str, ...] = ()
    """A command for what is left when the child has ended and its own end does not remove."""

    def close(self) -> None:
        """Closes our copies of the descriptors; to be called when the command was started, or will not be."""
        for descriptor in self.descriptors:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self.descriptors = ()
