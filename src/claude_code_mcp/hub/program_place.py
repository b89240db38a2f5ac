"""Decides in which directories the programs of servers run.

The hub starts programs outside every sandbox. A program may execute files in its working directory: `npx` and `uvx`
read configuration and Python modules there. So no program is started in, or from, a directory that sandboxed sessions
can write to. References to the directory of a session (`${workspaceFolder}`) are still replaced in the command line.

The operator is responsible for the arguments of a configured program: a project script among them is run.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config_entry import (
    ServerConfig,
    StdioConfig,
    for_directory,
    names_relative_path,
)

_MAX_LINKS = 40
"""Maximum links in a path; operating systems follow no more."""


class NotStarted(Exception):
    """The program could execute files that a session has written; the message says what to configure."""


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """Where programs run. Without directories open to sessions: as configured, otherwise the server's directory."""

    directory: str | None = None
    """The working directory of programs without a configured one; None for the server's own."""
    open_to_sessions: Sequence[str] = ()
    """Real paths of the directories that sandboxed sessions can write to; the root if callers choose them, except
    server directories and system program directories, which callers cannot choose."""

    def placed(self, config: ServerConfig, directory: str) -> ServerConfig:
        """The entry for users in `directory`; NotStarted if its program must not run. Call this immediately before the
        start, because it checks the paths of the program and its directory."""
        placed = for_directory(config, directory)
        if not self.open_to_sessions or not isinstance(config, StdioConfig) or not isinstance(placed, StdioConfig):
            return placed
        if not names_relative_path(config):
            placed = placed.model_copy(update={"cwd": config.cwd or self.directory})
        if self.is_open(placed.cwd or self.directory or os.getcwd()):
            raise NotStarted(
                "it would run in a directory that sessions in a sandbox can write to: use ${workspaceFolder} instead "
                "of a relative path, and a different cwd"
            )
        if os.path.isabs(placed.command) and os.sep not in self.open_to_sessions and self.is_open(placed.command):
            raise NotStarted("its program is in a directory that sessions in a sandbox can write to")
        return placed

    def is_open(self, path: str | Path) -> bool:
        """Whether a sandboxed session can write to the target of this path, or redirect it: a link that it can replace
        counts as its own, whatever its target. Blocks on the disk."""
        if not self.open_to_sessions or self._is_ours(path):
            return False
        places = [Path(os.path.realpath(path)), *_passed(path)]
        return any(place.is_relative_to(directory) for place in places for directory in self.open_to_sessions)

    def _is_ours(self, path: str | Path) -> bool:
        """Whether it is in the programs directory, by path and after resolving links."""
        if self.directory is None:
            return False
        real = os.path.realpath(self.directory)
        by_name = any(Path(os.path.abspath(path)).is_relative_to(own) for own in (self.directory, real))
        return by_name and Path(os.path.realpath(path)).is_relative_to(real)


def _passed(path: str | Path) -> Iterator[Path]:
    """Every path component that the system visits when resolving a path, including links and their targets."""
    place = Path(os.path.abspath(path))
    waiting, place, links = list(reversed(place.parts[1:])), Path(place.anchor), 0
    while waiting and links <= _MAX_LINKS:
        part = waiting.pop()
        if part == os.pardir:
            place = place.parent
            continue
        yield place / part
        try:
            target = Path(os.readlink(place / part))
        except OSError:  # not a link, or missing
            place = place / part
            continue
        links += 1
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        place = Path(target.anchor) if target.is_absolute() else place


AS_CONFIGURED = ProgramPlace()
"""Used if no session is sandboxed."""
