"""Where the programs of the hub run, on a machine with sessions that are kept in sandboxes.

The hub starts programs outside of every sandbox. A program may run what it finds where it is started:
`npx` and `uvx` read configuration there, and Python modules. So where sandboxed sessions can write to directories, no
program is started in one of these, and none that lies in one. References to the directory of a session
(`${workspaceFolder}`) are still replaced, as words of the command line.

What the arguments of a configured program name is the operator's to judge: a script of a project among them is run.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .config_entry import ServerConfig, StdioConfig, for_directory, names_relative_path

_MOST_LINKS = 40
"""More of them no system follows."""


class NotStarted(Exception):
    """The program would run what a session may have written; the message says what to configure."""


@dataclass(frozen=True, slots=True)
class ProgramPlace:
    """Where programs run. Without directories that are open to sessions: as configured, else where the server runs."""

    directory: str | None = None
    """Where a program runs that is configured with no directory; None is that of the server."""
    open_to_sessions: Sequence[str] = ()
    """Real paths of the directories that sandboxed sessions can write to; the root where callers choose them, who
    cannot choose a directory of the server's or one with programs of the system."""

    def placed(self, config: ServerConfig, directory: str) -> ServerConfig:
        """The entry as it is for users in `directory`; NotStarted if its program must not run. Looks at the path of
        a program and of its directory, so that nothing can come between this and the start."""
        placed = for_directory(config, directory)
        if not self.open_to_sessions or not isinstance(config, StdioConfig) or not isinstance(placed, StdioConfig):
            return placed
        if not names_relative_path(config):
            placed = placed.model_copy(update={"cwd": config.cwd or self.directory})
        if self.is_open(placed.cwd or self.directory or os.getcwd()):
            raise NotStarted(
                "it would run in a directory that sessions in a sandbox can write to: name ${workspaceFolder} instead "
                "of a relative path, and another cwd"
            )
        if os.path.isabs(placed.command) and os.sep not in self.open_to_sessions and self.is_open(placed.command):
            raise NotStarted("its program lies in a directory that sessions in a sandbox can write to")
        return placed

    def is_open(self, path: str | Path) -> bool:
        """Whether a sandboxed session can write to what this path leads to, or have it lead elsewhere: a link that it
        can replace is its own, whatever that leads to now. Blocks on the disk."""
        if not self.open_to_sessions or self._is_ours(path):
            return False
        places = [Path(os.path.realpath(path)), *_passed(path)]
        return any(place.is_relative_to(directory) for place in places for directory in self.open_to_sessions)

    def _is_ours(self, path: str | Path) -> bool:
        """Whether it lies in the directory for programs, by its name and in fact."""
        if self.directory is None:
            return False
        real = os.path.realpath(self.directory)
        by_name = any(Path(os.path.abspath(path)).is_relative_to(own) for own in (self.directory, real))
        return by_name and Path(os.path.realpath(path)).is_relative_to(real)


def _passed(path: str | Path) -> Iterator[Path]:
    """Everything that the system looks at on its way along a path, links and what they lead to."""
    place = Path(os.path.abspath(path))
    waiting, place, links = list(reversed(place.parts[1:])), Path(place.anchor), 0
    while waiting and links <= _MOST_LINKS:
        part = waiting.pop()
        if part == os.pardir:
            place = place.parent
            continue
        yield place / part
        try:
            target = Path(os.readlink(place / part))
        except OSError:  # no link, or not there
            place = place / part
            continue
        links += 1
        waiting += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        place = Path(target.anchor) if target.is_absolute() else place


AS_CONFIGURED = ProgramPlace()
"""Where no session is in a sandbox."""
