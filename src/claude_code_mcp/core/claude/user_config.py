"""The files that Claude Code keeps for its user: its processes with their sessions, and registered MCP servers.

The CLI has no lock, and two processes that write to one session split its transcript; but each process keeps a small
file `sessions/<pid>.json`. Such a file counts only while the very process lives that wrote it: it is left behind when
that process is killed, and its number may belong to another one by then. Functions block on the disk.
"""

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import SessionBusy
from ..model.paths import user_file
from ..model.tool_names import is_this_server
from ..private_files import entries_at, open_at, read_regular, remove_at
from ..processes.leftovers import created_at, has_ended, started_at

_Commands = tuple[tuple[str, ...], ...]
MAX_BYTES = 64 << 20
"""Larger files are not read."""

CONVERSATIONS = ("projects", "file-history", "todos", "tasks", "plans")
"""Data that sessions write into the configuration directory, the transcripts first."""
USER_SETTINGS = (
    *("settings.json", "CLAUDE.md", "agents", "commands", "skills", "output-styles", "plugins", "rules"),
    *("themes", "workflows", "hooks", "keybindings.json"),
)
"""The user's configuration there, the settings first."""


def own_registrations(environment: Mapping[str, str], cwd: str) -> _Commands:
    """The configured command lines that would start this server in a session in `cwd`, from the user's `.claude.json`
    and the `.mcp.json` of the directory and its parents; missing or malformed files are ignored. Blocks on the disk."""
    files = [user_file(environment)]
    files += [directory / ".mcp.json" for directory in (Path(cwd), *Path(cwd).parents)]
    return tuple(dict.fromkeys(command for file in files for command in _registered_in(str(file))))


def _registered_in(file: str) -> _Commands:
    try:
        facts = os.stat(file)
    except (OSError, ValueError):
        return ()
    return _read_commands(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=256)
def _read_commands(file: str, changed: int, size: int) -> _Commands:
    """Cached by time and size of the file: `.claude.json` can be large, and every process start needs it."""
    try:
        content = json.loads(read_regular(file, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(_own_commands(content))


def _own_commands(content: object) -> Iterator[tuple[str, ...]]:
    projects = _mapping(_mapping(content).get("projects"))
    for scope in (content, *projects.values()):
        for entry in _mapping(_mapping(scope).get("mcpServers")).values():
            command, arguments = _mapping(entry).get("command"), _mapping(entry).get("args") or []
            if not isinstance(command, str) or not isinstance(arguments, list):
                continue
            argv = (command, *map(str, arguments))
            if is_this_server(argv[0], argv[1:]):
                yield argv


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_CLOCK_SLACK = 5.0
"""Seconds by which a process may seem younger than its file, because clocks are adjusted."""
_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Read failures that say nothing about the file. They must not count as its absence."""


def process_with(session_id: str, config_dir: str) -> int | None:
    """The pid of a living process that has this session open; None if there is none. Raises SessionBusy if that cannot
    be determined, for example without a free file descriptor."""
    try:
        for path in _registrations(config_dir, lambda name: name.endswith(".json")):
            entry = _read(path)
            pid = entry.get("pid")
            if entry.get("sessionId") == session_id and isinstance(pid, int) and _is_alive(pid, entry):
                return pid
    except OSError as error:
        raise SessionBusy(
            f"Cannot determine whether session {session_id} is open in another Claude Code process "
            f"({error.strerror}). Try again.",
            session_id=session_id,
        ) from error
    return None


def noted_session(pid: int, config_dir: str) -> Mapping[str, Any] | None:
    """What a living process has recorded about its open session; empty if nothing readable, None if the process is
    gone. Raises SessionBusy if that cannot be determined."""
    try:
        entries = [_read(path) for path in _registrations(config_dir, lambda name: name == f"{pid}.json")]
    except OSError as error:
        raise SessionBusy(f"The session of process {pid} cannot be read now ({error.strerror}). Try again.") from error
    entry = entries[0] if entries else {}
    return entry if _is_alive(pid, entry) else None


def noted_sessions(config_dir: str) -> list[Mapping[str, Any]]:
    """What all living processes have recorded about their sessions. Raises SessionBusy like `noted_session`."""
    try:
        entries = [_read(path) for path in _registrations(config_dir, lambda name: name.endswith(".json"))]
    except OSError as error:
        raise SessionBusy(f"The open sessions cannot be read now ({error.strerror}). Try again.") from error
    return [entry for entry in entries if isinstance(pid := entry.get("pid"), int) and _is_alive(pid, entry)]


@dataclass(frozen=True, slots=True)
class Registration:
    """The files that list a process in the CLI's open sessions, with their contents."""

    files: Mapping[Path, bytes] = field(default_factory=dict)

    def restore(self) -> None:
        """Lists the process again. It continues to update the entry and does not notice the gap."""
        for path, content in self.files.items():
            with (
                contextlib.suppress(OSError),
                open(open_at(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file,
            ):
                file.write(content)


def take_registration(session_id: str, config_dir: str) -> Registration:
    """Removes the living process with this session from the list of open sessions, so that no other session finds it
    there. Does nothing without such an entry. Raises SessionBusy if that cannot be determined."""
    pid = process_with(session_id, config_dir)
    files: dict[Path, bytes] = {}
    for path in _registrations(config_dir, lambda name: name.startswith(f"{pid}.")) if pid is not None else ():
        with contextlib.suppress(OSError):
            # The content first: a file that cannot be read could not be restored, so it stays in its place.
            files[path] = _content(path)
            remove_at(str(path))
    return Registration(files)


def _registrations(config_dir: str, wanted: Callable[[str], bool]) -> list[Path]:
    """The files in the list of open sessions. Follows no link below the directory, which sessions may write to. Raises
    OSError if the list cannot be read."""
    directory = os.path.join(os.path.realpath(config_dir), "sessions")
    try:
        return [Path(directory, entry.name) for entry in entries_at(directory, wanted)]
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise
        return []  # then no CLI of this user can have an entry there


def _content(path: Path) -> bytes:
    """Raises OSError for anything but a regular file of plausible size."""
    with open(path, "rb", opener=open_at) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BYTES:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(MAX_BYTES)


def _read(path: Path) -> Mapping[str, Any]:
    try:
        entry = json.loads(_content(path))
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise
        return {}  # it has just disappeared, or the CLI does not write such files
    except (ValueError, RecursionError):  # it is being written
        return {}
    return entry if isinstance(entry, dict) else {}


def _is_alive(pid: int, entry: Mapping[str, Any]) -> bool:
    """Whether the process that wrote this lives. A process in another container is invisible and does not count.
    Unknown counts as alive: a refused session can be requested again, but two writers cannot be undone."""
    if pid <= 0 or not _is_in_our_pid_namespace(entry.get("pidDomain")):
        return False
    try:
        return not has_ended(pid) and _started_as_noted(pid, entry)
    except (FileNotFoundError, ProcessLookupError, ValueError, OverflowError):
        return False  # the last two: no process has such a number, or could have been started then
    except OSError:
        return True


def _started_as_noted(pid: int, entry: Mapping[str, Any]) -> bool:
    """Whether this is the same process, not a later one with its pid. On Linux the CLI records the kernel's start time,
    which is compared if present, because the clock may have been set since."""
    start, written = entry.get("procStart"), entry.get("startedAt")
    if sys.platform == "linux" and isinstance(start, str) and start.isascii() and start.isdigit():
        return started_at(pid) == int(start)
    if isinstance(written, int | float):
        return not created_at(pid) > written / 1000 + _CLOCK_SLACK
    return True


def _is_in_our_pid_namespace(domain: object) -> bool:
    if sys.platform != "linux" or not isinstance(domain, str) or ":pid:[" not in domain:
        return True
    return domain.endswith(os.readlink("/proc/self/ns/pid"))
