"""`claude`: the Claude Code that the server would use, with whatever arguments: to sign in, to update it."""

import os
import subprocess
from collections.abc import Sequence
from typing import Any

from ..claude.executable import find_executable
from ..config import load_settings
from ..errors import ProcessFailed
from ..processes.environment import DEPTH, child_environment, depth


def add_to(commands: Any) -> None:
    """For the list of commands only: the arguments are not ours to parse, so `run` is called without a parser."""
    told = "run the Claude Code that the server would use, for example `claude auth login`"
    commands.add_parser("claude", help=told, add_help=False)


def run(arguments: Sequence[str]) -> int:
    """Becomes Claude Code; where a process cannot become another one, runs it and returns its exit code.

    ExecutableNotFound and InvalidArgument for settings that do not parse, before anything is started.
    """
    path = find_executable(load_settings().claude_path)
    environment = child_environment(os.environ)
    # A person runs it, or a client: it is no deeper than this command. A server of ours that it starts is a usual one.
    environment[DEPTH] = str(depth(os.environ))
    command = [path, *arguments]
    try:
        if os.name == "posix":
            os.execve(path, command, environment)  # noqa: S606 - becoming it is the purpose
        return subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        raise ProcessFailed(f"{path} cannot be run: {error.strerror or error}.") from None
