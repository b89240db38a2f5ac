"""Whether a person is typing at a process's terminal. Blocks on the disk."""

import os
import subprocess
import sys
import time

_AT_KEYBOARD = 30.0
"""Seconds after a key press for which the person counts as present."""
_TIMEOUT = 5.0


def device_of(pid: int) -> str | None:
    """The terminal device of a process; None if it has none or if that cannot be determined. Does not use psutil, which
    reads the list of terminals once and misses later ones."""
    return _open_terminal(pid) if sys.platform == "linux" else _listed_terminal(pid)


def is_used(device: str | None) -> bool:
    """Whether a person has just typed at a terminal."""
    try:
        return device is not None and time.time() - os.stat(device).st_atime < _AT_KEYBOARD
    except OSError:
        return False


def _open_terminal(pid: int) -> str | None:
    """The terminal among a process's standard streams."""
    for number in range(3):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if path.startswith(("/dev/pts/", "/dev/tty")):
            return path
    return None


def _listed_terminal(pid: int) -> str | None:
    command = ["ps", "-o", "tty=", "-p", str(pid)]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"/dev/{listed}" if listed and "?" not in listed else None
