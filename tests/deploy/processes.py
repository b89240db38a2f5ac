"""What containers would run, as processes of this machine."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support import warm_commands
from tests.support.waiting import HANG_SECONDS, until


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
    command: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    until_it_says: str,
    exit_codes: Sequence[int] = (0,),
) -> Iterator[None]:
    """Runs a command until the end of the block, which begins when it has printed this text to its standard output or
    error. A signal ends it, with one of the exit codes. Our own program need not load."""
    process: warm_commands.WarmProcess | subprocess.Popen[bytes]
    with log.open("w") as output, open(os.devnull, "rb") as nothing:
        if command[0] == "claude-code-mcp" and os.name == "posix":
            streams = nothing.fileno(), output.fileno(), output.fileno()
            process = warm_commands.helper().start(command[1:], variables, None, streams)
        else:
            process = subprocess.Popen(
                command, env=dict(variables), stdin=nothing, stdout=output, stderr=subprocess.STDOUT
            )
    try:
        until(lambda: until_it_says in log.read_text() or process.poll() is not None)
        assert until_it_says in log.read_text(), log.read_text()
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) in exit_codes, log.read_text()
