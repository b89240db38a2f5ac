"""`claude`: runs the Claude Code that the server would use."""

import os
import subprocess
from collections.abc import Sequence
from typing import Any

from ..core.claude.executable import (
    find_executable,
)
from ..core.config import load_settings
from ..core.errors import ProcessFailed
from ..core.processes.environment import DEPTH, child_environment, depth


def add_to(commands: Any) -> None:
    """Add the command to the help only: its arguments belong to Claude Code, so they bypass this parser."""
    commands.add_parser(
        "claude",
        help="run the Claude Code that the server uses, for example `claude auth login`",
        add_help=False,
    )


def run_claude(arguments: Sequence[str]) -> int:
    """Replace this process with Claude Code; on Windows, run it as a child and return its exit code.

    Raises ExecutableNotFound, InvalidArgument for invalid settings, and ProcessFailed if the executable cannot be
    started.
    """
    path = find_executable(load_settings().claude_path)
    environment = child_environment(os.environ)
    # This is not a session of a server: what runs in it, also a server of ours, is nested no deeper than this command.
    environment[DEPTH] = str(depth(os.environ))
    command = [path, *arguments]
    try:
        if os.name == "posix":
            os.execve(path, command, environment)  # noqa: S606 - becoming it is the purpose
        return subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise ProcessFailed(f"{path} cannot be run: {error.strerror or error}.") from None
