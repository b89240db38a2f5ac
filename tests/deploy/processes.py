"""What containers would run, as processes of this machine."""

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import warm_commands
from tests.support.program import started
from tests.support.waiting import HANG_SECONDS


def environment(home: Path, state: Path) -> dict[str, str]:
    """Of a container: its state and home on volumes, our program on PATH, and nothing else of this machine's."""
    return {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(home),
        "CLAUDE_CODE_MCP_STATE_DIR": str(state),
        "CLAUDE_CODE_MCP_TOKEN": "a-token-0123456789abcdefghij",
        "CLAUDE_CODE_PATH": "/nothing",  # no session is started, and to ask for its version takes a second each
        "PYTHONUNBUFFERED": "1",
    }


def output_of(command: Sequence[str], variables: Mapping[str, str]) -> str:
    """What a command prints that ends by itself, and well. Our own program need not load."""
    if command[0] == "claude-code-mcp":
        done = warm_commands.run(command[1:], variables)
    else:
        done = subprocess.run(
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(
    command: Sequence[str], variables: Mapping[str, str], until_it_says: str, exit_codes: Collection[int] = (0,)
) -> Iterator[None]:
    """Run a command until the end of the block; entered when it has printed this text."""
    with started(command, variables, exit_codes=exit_codes) as program:
        program.until_said(until_it_says)
        yield
