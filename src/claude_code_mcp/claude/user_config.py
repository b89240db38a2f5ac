"""What the user has configured for Claude Code, as far as this server must know it: where its files are, and whether
this server is registered with it as an MCP server."""

import json
import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..model.own_server import is_this_server

_Commands = tuple[tuple[str, ...], ...]

_MAX_BYTES = 64 << 20
"""A larger file is not read."""


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts under this environment."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")


def user_file_directory(environment: Mapping[str, str]) -> Path:
    """Where the CLI keeps `.claude.json`: beside its configuration directory, or in it if that was set explicitly."""
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home or Path.home())


def own_registrations(environment: Mapping[str, str], cwd: str) -> _Commands:
    """The command lines, as they are configured, that would start this server in a session in `cwd`.

    Read are `.claude.json` of the user and `.mcp.json` of the directory and all above it; a file that is missing or
    malformed has none. Blocks on the disk.
    """
    files = [user_file_directory(environment) / ".claude.json"]
    files += [directory / ".mcp.json" for directory in (Path(cwd), *Path(cwd).parents)]
    return tuple(dict.fromkeys(command for file in files for command in _registered_in(str(file))))


def _registered_in(file: str) -> _Commands:
    try:
        facts = os.stat(file)
    except (OSError, ValueError):
        return ()
    return _read_commands(file, facts.st_mtime_ns, facts.st_size) if facts.st_size < _MAX_BYTES else ()


@lru_cache(maxsize=256)
def _read_commands(file: str, changed: int, size: int) -> _Commands:
    """Cached by time and size of the file: `.claude.json` can be large, and is needed at every start of a process."""
    try:
        with open(file, "rb") as opened:
            content = json.loads(opened.read())
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
