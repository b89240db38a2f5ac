"""The files that Claude Code reads when it starts, as a fingerprint.

The CLI reads settings, instructions (CLAUDE.md), agents, skills, MCP configuration and the state of the git repository
once, at its start, and a conversation keeps that state. Files are identified by time, size and number, not by content.
In doubtful cases there is no fingerprint: too many files, a settings file that cannot be read, or hooks that run at the
start, which would run for a process that is never used. Blocks on the disk.
"""

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model.paths import config_directory, user_file
from ..private_files import GIT_FILE, named_in, read_regular
from .user_config import MAX_BYTES

_MAX_FILES = 5000
_MAX_IMPORTS = 100
_MAX_TEXT = 1 << 20
_IMPORT = re.compile(r"(?<!\S)@([^\s`]{1,1000})")
_NAMES = ("CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", ".mcp.json")
_SETTINGS = ("settings.json", "settings.local.json", "managed-settings.json")
_CONFIGURED = (*_SETTINGS, "CLAUDE.md", ".credentials.json", "rules", "agents", "skills", "commands", "output-styles")
"""The relevant files of a configuration directory: the user's, and one in each project."""
_OF_USER_FILE = ("mcpServers", "oauthAccount", "primaryApiKey", "customApiKeyResponses", "env")
_OF_PROJECT = (
    *("mcpServers", "enabledMcpServers", "disabledMcpServers", "enabledMcpjsonServers", "disabledMcpjsonServers"),
    *("allowedTools", "ignorePatterns", "hasTrustDialogAccepted", "hasClaudeMdExternalIncludesApproved"),
)
_GIT = ("HEAD", "index", "packed-refs", "config", "logs/HEAD")
_NOT_WATCHED = frozenset(
    {".git", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Directories that git usually ignores and that contain too many files to check."""
_LATER_HOOKS = frozenset(
    {
        *("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied", "Notification"),
        *("UserPromptSubmit", "Stop", "StopFailure", "SubagentStart", "SubagentStop", "PreCompact", "PostCompact"),
    }
)
"""Hooks that do not run before the first message."""
_MANAGED = {
    "darwin": "/Library/Application Support/ClaudeCode",
    "win32": r"C:\Program Files\ClaudeCode",
}


class _InputUnknown(Exception):
    """The initial input of a process cannot be determined."""


def start_inputs(environment: Mapping[str, str], cwd: str, directories: Sequence[str], executable: str) -> str | None:
    """A fingerprint of everything that a process would read if it started now; None if it cannot be determined."""
    # The day counts too: the CLI gives the model the date of its start.
    digest = hashlib.sha256(time.strftime("%Y-%m-%d").encode())
    try:
        for line in _lines(environment, Path(cwd), directories, executable):
            digest.update(line.encode("utf-8", "surrogateescape") + b"\0")
    # Other programs write these files: an unexpected structure makes the start doubtful and is not an error of ours.
    except (_InputUnknown, OSError, ValueError, RuntimeError, AttributeError, TypeError):
        return None
    return digest.hexdigest()


def _lines(environment: Mapping[str, str], cwd: Path, directories: Sequence[str], executable: str) -> Iterator[str]:
    config, home = Path(config_directory(environment)), Path(environment.get("HOME") or Path.home())
    managed = Path(_MANAGED.get(sys.platform, "/etc/claude-code"))
    above = [cwd, *cwd.parents]
    places = [*above, *(cwd / added for added in directories)]
    configured = [config, *(place / ".claude" for place in places)]
    # First, because it can decide without the long list of files.
    for directory in (managed, *configured):
        for name in _SETTINGS:
            _refuse_start_hooks(directory / name)
    yield _facts(Path(executable))
    yield _facts(Path(os.path.realpath(executable)))
    yield _user_file(user_file(environment), places)
    files = [home / ".gitconfig", managed]
    files += [directory / name for directory in configured for name in _CONFIGURED]
    files += [config / "plugins" / name for name in ("installed_plugins.json", "known_marketplaces.json")]
    files += [place / name for place in places for name in _NAMES]
    budget = [_MAX_FILES]
    for file in files:
        yield from _tree(file, budget)
    yield from _imports([file for file in files if file.name.endswith(".md")])
    for place in above:
        if (place / ".git").exists():
            yield from _repository(place, budget)
            return


def _user_file(file: Path, places: Sequence[Path]) -> str:
    """The parts of the user's `.claude.json` that a session depends on. The CLI writes other data there all the
    time."""
    try:
        content = json.loads(read_regular(file, MAX_BYTES))
    except FileNotFoundError:
        return "none"
    projects = content.get("projects") or {}
    wanted = {str(place): projects.get(str(place)) or {} for place in places}
    parts = [_chosen(content, _OF_USER_FILE), {name: _chosen(entry, _OF_PROJECT) for name, entry in wanted.items()}]
    return json.dumps(parts, sort_keys=True)


def _chosen(entry: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: entry[name] for name in names if name in entry}


def _facts(path: Path) -> str:
    try:
        found = path.lstat()
    except OSError:
        return f"{path} none"
    return f"{path} {found.st_mtime_ns} {found.st_size} {found.st_ino} {found.st_mode}"


def _tree(path: Path, budget: list[int]) -> Iterator[str]:
    """A file, or a directory with everything below it. Links are not followed, but their targets count."""
    yield _facts(path)
    if path.is_symlink():
        yield _facts(Path(os.path.realpath(path)))  # which, unlike `resolve`, takes a link to itself for a path
    if not path.is_dir():
        return
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        budget[0] -= 1
        if budget[0] < 0:
            raise _InputUnknown
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _NOT_WATCHED:
                yield from _tree(Path(entry.path), budget)
        else:
            yield _facts(Path(entry.path))


def _imports(files: Iterable[Path]) -> Iterator[str]:
    """The files that instructions refer to with `@path`, recursively."""
    waiting, seen = list(files), set[Path]()
    while waiting:
        file = waiting.pop()
        if not file.is_file():
            continue
        if len(seen) > _MAX_IMPORTS:
            raise _InputUnknown
        for name in _IMPORT.findall(read_regular(file, _MAX_TEXT).decode("utf-8", "replace")):
            # For an unknown user this leaves the name unchanged: a path that does not exist either.
            target = file.parent / os.path.expanduser(name)
            if target not in seen:
                seen.add(target)
                waiting.append(target)
                yield _facts(target)


def _repository(root: Path, budget: list[int]) -> Iterator[str]:
    """The branch, the last commits and every file of the working tree: the CLI tells the model what has changed."""
    directory = root / ".git"
    if not directory.is_dir():  # of a worktree or a submodule: it names the directory
        named = named_in(directory, GIT_FILE)
        if named is None:
            raise _InputUnknown
        directory = Path(named)
    for name in _GIT:
        yield _facts(directory / name)
    yield from _tree(root, budget)


def _refuse_start_hooks(file: Path) -> None:
    try:
        content = read_regular(file, MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return
    settings = json.loads(content or b"{}")
    hooks = settings.get("hooks") if isinstance(settings, dict) else None
    if hooks and not (isinstance(hooks, dict) and set(hooks) <= _LATER_HOOKS):
        raise _InputUnknown
