"""Programs that the tests need from the system: installed once where its package manager may be used.

As a program, this installs all of `NEEDED` and prints what is still missing; `make test` runs it before the tests.
"""

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from filelock import FileLock

NEEDED = {"bwrap": "bubblewrap", "git": "git"}
"""The package of each program; the name is the same in all package managers below."""

_INSTALL_SECONDS = 240
_MANAGERS = {
    "apt-get": (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends")),
    "dnf": (("install", "-y", "-q"),),
    "apk": (("add", "--quiet"),),
}


@cache
def missing(program: str) -> str | None:
    """Install the program if it is missing. Return None if it is there, else why not."""
    if shutil.which(program) is not None:
        return None
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return f"{program} is not installed"
    with FileLock(Path(tempfile.gettempdir()) / "claude-code-mcp-tests-packages.lock"):
        problem = None if shutil.which(program) else _install(NEEDED[program])
    return None if shutil.which(program) else problem or f"{program} is not installed"


def _install(package: str) -> str | None:
    """Return why the installation failed; None if it succeeded or if no known package manager is here."""
    for manager, commands in _MANAGERS.items():
        if shutil.which(manager) is None:
            continue
        for arguments in commands:
            command = [manager, *arguments] if arguments[0] == "update" else [manager, *arguments, package]
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_INSTALL_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return f"{manager} took longer than {_INSTALL_SECONDS} s to install {package}"
            # A failed update is no reason to stop: the lists that are there may do.
            if done.returncode and arguments[0] != "update":
                return f"{manager} could not install {package}: " + " ".join(done.stderr.split())[:200]
    return None


def require(program: str) -> None:
    """Skip the test, with the reason, if the program is missing and cannot be installed."""
    if reason := missing(program):
        pytest.skip(reason)


def main() -> None:
    for program in NEEDED:
        if reason := missing(program):
            print(f"Tests that need {program} are skipped: {reason}")


if __name__ == "__main__":
    main()
