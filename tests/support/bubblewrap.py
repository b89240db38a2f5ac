"""Bubblewrap for the tests: installed once where the system's package manager may be used, else the reason why not."""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from filelock import FileLock

from claude_code_mcp.processes.bubblewrap import unavailable

_INSTALL_SECONDS = 240
_COMMANDS = (
    ("apt-get", (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", "bubblewrap"))),
    ("dnf", (("install", "-y", "-q", "bubblewrap"),)),
    ("apk", (("add", "--quiet", "bubblewrap"),)),
)


@cache
def missing() -> str | None:
    """Why there can be no sandbox here, after an attempt to install what is missing; None if there can."""
    reason = unavailable(os.environ)
    if reason is None or shutil.which("bwrap") is not None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return reason
    with FileLock(Path(tempfile.gettempdir()) / "claude-code-mcp-tests-bubblewrap.lock"):
        return unavailable(os.environ) and (_install() or unavailable(os.environ))


def _install() -> str | None:
    """What went wrong; None if it is installed, or if this system's package manager is not known."""
    for manager, commands in _COMMANDS:
        program = shutil.which(manager)
        for arguments in commands if program else ():
            try:
                done = subprocess.run(
                    [str(program), *arguments],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_INSTALL_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"{manager} took longer than {_INSTALL_SECONDS} s"
            if done.returncode and arguments[0] != "update":
                return f"bubblewrap is not installed, and {manager} failed: " + " ".join(done.stderr.split())[:200]
    return None
