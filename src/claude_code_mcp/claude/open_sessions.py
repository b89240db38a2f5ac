"""Which Claude Code process has a session open: the CLI keeps one small file per process, `sessions/<pid>.json`.

The CLI itself has no lock, and two processes that write to one session split its transcript. A file counts only while
the very process lives that wrote it: a file is left behind when a process is killed, and its number may belong to
another one by then. Functions block on the disk.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from ..processes.leftovers import started_at

_CLOCK_SLACK = 5.0
"""Seconds by which a process may seem to be younger than what it wrote: clocks are set."""


def process_with(session_id: str, config_dir: str) -> int | None:
    """The number of a living process that has this session open, None if there is none."""
    for path in Path(config_dir, "sessions").glob("*.json"):
        entry = _read(path)
        pid = entry.get("pid")
        if entry.get("sessionId") == session_id and isinstance(pid, int) and _is_alive(pid, entry):
            return pid
    return None


def _read(path: Path) -> Mapping[str, Any]:
    try:
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # it has just gone, or is being written
        return {}
    return entry if isinstance(entry, dict) else {}


def _is_alive(pid: int, entry: Mapping[str, Any]) -> bool:
    """Whether the process that wrote this lives. One in another container cannot be seen and does not count."""
    if not _is_in_our_pid_namespace(entry.get("pidDomain")):
        return False
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        written = entry.get("startedAt")
        if isinstance(written, int | float) and process.create_time() > written / 1000 + _CLOCK_SLACK:
            return False
        return _started_then(pid, entry.get("procStart"))
    except (psutil.NoSuchProcess, OSError, ValueError, OverflowError):
        return False
    except psutil.Error:
        return True  # it is there, and no more can be seen of it


def _started_then(pid: int, start: object) -> bool:
    """On Linux the CLI notes the kernel's own count, which no change of the clock moves."""
    if sys.platform != "linux" or not (isinstance(start, str) and start.isascii() and start.isdigit()):
        return True
    return started_at(pid) == int(start)


def _is_in_our_pid_namespace(domain: object) -> bool:
    if sys.platform != "linux" or not isinstance(domain, str) or ":pid:[" not in domain:
        return True
    return domain.endswith(os.readlink("/proc/self/ns/pid"))
