"""The environment of a Claude Code process, and the mark that finds whatever it leaves behind."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..model.own_server import is_this_server
from ..processes.environment import DEPTH, MARK, child_environment


def build_environment(base: Mapping[str, str], extra: Mapping[str, str], mark: str) -> dict[str, str]:
    """What any child may have of the base, plus the caller's own, plus the mark and the depth, which nobody can set."""
    clean = child_environment(base)
    return {**clean, **extra, MARK: mark, DEPTH: clean[DEPTH]}


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts under this environment."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")


_Commands = tuple[tuple[str, ...], ...]


_LARGEST = 64 << 20


def own_registrations(environment: Mapping[str, str], cwd: str) -> _Commands:
    """The command lines that would start our server in a session there, as they are written. Blocks on the disk."""
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    files = [Path(home or Path.home()) / ".claude.json"]
    files += [directory / ".mcp.json" for directory in (Path(cwd), *Path(cwd).parents)]
    return tuple(dict.fromkeys(command for file in files for command in _registered_in(str(file))))


def _registered_in(file: str) -> _Commands:
    try:
        now = os.stat(file)
    except (OSError, ValueError):
        return ()
    return _read(file, now.st_mtime_ns, now.st_size) if now.st_size < _LARGEST else ()


@lru_cache(maxsize=256)
def _read(file: str, changed: int, size: int) -> _Commands:
    """Read once for each state of the file: `.claude.json` can be large, and is asked for at every start."""
    try:
        with open(file, "rb") as opened:
            content = json.loads(opened.read())
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(_own_commands(content))


def _own_commands(content: object) -> Iterator[tuple[str, ...]]:
    projects = _mapping(_mapping(content).get("projects"))
    for holder in (content, *projects.values()):
        for entry in _mapping(_mapping(holder).get("mcpServers")).values():
            words = _words(_mapping(entry))
            if words and is_this_server(words[0], words[1:]):
                yield words


def _words(entry: Mapping[str, Any]) -> tuple[str, ...]:
    arguments = entry.get("args") or []
    if not isinstance(entry.get("command"), str) or not isinstance(arguments, list):
        return ()
    return (entry["command"], *map(str, arguments))


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
