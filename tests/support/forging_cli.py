"""The real Claude Code with a hole in its channel: whatever is written to a pipe comes out as a line of its own output.

It stands for every way in which a command of a session may reach that channel, also for those that are closed today. A
session names its pipe in the variable FORGE; `forge` is the command that writes a frame to it.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PIPE, REAL = "FORGE", "FORGE_REAL_CLI"


def install_forging_cli(directory: Path) -> Path:
    """Writes a launcher into the directory and returns its path, to be used as CLAUDE_CODE_PATH."""
    directory.mkdir(parents=True, exist_ok=True)
    launcher = directory / "claude"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IS {shlex.quote(__file__)} "$@"\n')
    launcher.chmod(0o755)
    return launcher


def forge(*frames: Any) -> str:
    """The command that has these frames come out of the CLI, one after the other, and ends when they have; a string is
    a line as it is."""
    lines = "".join((frame if isinstance(frame, str) else json.dumps(frame)) + "\n" for frame in frames)
    return f"printf %s {shlex.quote(lines)} > $FORGE; until rm $FORGE.done 2> /dev/null; do sleep 0.02; done"


def main() -> int:
    """Be the CLI: pass on what the real one writes, and what comes through the pipe."""
    real = subprocess.Popen([os.environ[REAL], *sys.argv[1:]], stdout=subprocess.PIPE)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: real.send_signal(received))
    writing = threading.Lock()

    def write(line: bytes) -> None:
        with writing:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def pass_forged() -> None:
        pipe = os.environ[PIPE]
        if not os.path.exists(pipe):
            os.mkfifo(pipe)
        while True:
            with open(pipe, "rb") as forged:
                for line in forged:
                    write(line)
            with open(f"{pipe}.done", "w"):
                pass

    if os.environ.get(PIPE):
        threading.Thread(target=pass_forged, daemon=True).start()
    assert real.stdout is not None
    for line in real.stdout:
        write(line)
    return real.wait()


if __name__ == "__main__":
    os._exit(main())
