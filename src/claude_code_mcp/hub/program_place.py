"""Where the programs of the hub run, on a machine with sessions that are kept in sandboxes.

The hub starts programs outside of every sandbox. A program may run what it finds where it is started:
`npx` and `uvx` read configuration there, and Python modules. So where sandboxed sessions can write to directories, no
program is started in one of these, and none that lies in one. References to the directory of a session
(`${workspaceFolder}`) are still replaced, as words of the command line.

What the arguments of a configured program name is the operator's to judge: a script of a project among them is run.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .config_entry import ServerConfig, StdioConfig, for_directory, names_relative_path


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
        """Whether a sandboxed session can write to what this path leads to. Blocks on the disk."""
        real = Path(os.path.realpath(path))
        if self.directory is not None and real.is_relative_to(os.path.realpath(self.directory)):
            return False
        return any(real.is_relative_to(directory) for directory in self.open_to_sessions)


AS_CONFIGURED = ProgramPlace()
"""Where no session is in a sandbox."""
