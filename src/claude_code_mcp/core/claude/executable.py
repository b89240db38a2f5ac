"""The Claude Code executable: where it is, which versions are supported, and what it reads when it starts.

It is named explicitly, on PATH, or inside the wheel that carries it. The wheel is never imported, which would take most
of a second: only its directory is looked up.

The CLI reads settings, instructions (CLAUDE.md), agents, skills, MCP configuration and the state of the git repository
once, at its start, and a conversation keeps what was there. Files count by their time, size and number, not by their
content. Whatever is doubtful has no fingerprint: too many files, a settings file that cannot be read, and hooks that
run at the start, which would run for a process that nobody uses. Blocks on the disk.
"""

import asyncio
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ExecutableNotFound, InvalidArgument
from ..installation import extra_command
from ..model.options import SessionOptions
from ..model.paths import config_directory, user_file
from ..private_files import GIT_FILE, named_in, read_regular
from ..processes.environment import child_environment, expand_home
from .user_config import MAX_BYTES

_CARRIER = "claude_agent_sdk"
_CLI_TIMEOUT = 30.0


def find_executable(
    explicit: str | None = None, environment: Mapping[str, str] | None = None, *, named_by: str = "CLAUDE_CODE_PATH"
) -> str:
    """The absolute path of the explicit one if that is named, else of `claude` on PATH, else of the bundled one.
    `named_by` is the variable or the option that names it.

    Raises ExecutableNotFound, also for an explicit one that is no executable file: it is not passed over.
    """
    if explicit:
        found = _on_path(os.path.expanduser(expand_home(explicit, environment or {})), environment)
        if found is None:
            raise ExecutableNotFound(
                f"{named_by} names {explicit!r}, which is not an executable file. Correct it, or unset it to use "
                "`claude` on PATH or the bundled one.",
                field=named_by,
            )
        return found
    found = _on_path("claude", environment) or bundled_executable()
    if found is None:
        raise ExecutableNotFound(
            f"No Claude Code executable was found on PATH or bundled. Install it with `{extra_command('cli')}` or set "
            "CLAUDE_CODE_PATH to the executable."
        )
    return found


def bundled_executable() -> str | None:
    """The binary inside the carrier wheel, if that is installed."""
    spec = importlib.util.find_spec(_CARRIER)
    if spec is None or spec.origin is None:
        return None
    name = "claude.exe" if sys.platform == "win32" else "claude"
    candidate = Path(spec.origin).parent / "_bundled" / name
    return str(candidate) if os.access(candidate, os.X_OK) else None


def _on_path(name: str, environment: Mapping[str, str] | None) -> str | None:
    found = shutil.which(name, path=None if environment is None else environment.get("PATH", os.defpath))
    return os.path.abspath(found) if found else None  # it will be run in another directory


MINIMUM_VERSION = (2, 1, 0)
"""The oldest version that the contract tests run on."""
TESTED_VERSION = (2, 1, 325)
"""The version that all other tests run on: the one that the extra `cli` brings."""
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_HELP_TIMEOUT = 20.0


def run_cli(
    path: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    directory: str | None = None,
    timeout: float = _CLI_TIMEOUT,
) -> "subprocess.CompletedProcess[str]":
    """Runs Claude Code with an environment as sessions have it and these `variables`, and waits for its end. Raises
    OSError and SubprocessError."""
    return subprocess.run(
        [path, *arguments],
        env={**child_environment(os.environ), **(variables or {})},
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )


def read_version(text: str) -> tuple[int, int, int] | None:
    """The version in what `claude --version` prints, such as `2.1.325 (Claude Code)`; None if there is none."""
    found = _VERSION.match(text.strip())
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def version_text(version: tuple[int, int, int]) -> str:
    """The version as it is written."""
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True)
class CliChoices:
    """The values that one CLI accepts for its options with fixed choices."""

    permission_modes: tuple[str, ...]
    efforts: tuple[str, ...]
    setting_sources: tuple[str, ...] = ("user", "project", "local")
    betas: tuple[str, ...] = ("context-1m-2025-08-07",)


TESTED_CHOICES = CliChoices(
    permission_modes=("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"),
    efforts=("low", "medium", "high", "xhigh", "max"),
)


async def check_values(options: SessionOptions, executable: str, environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a value that this executable does not know. The executable is asked for its help only
    if the tested version would refuse the value: another one may know more."""
    try:
        check_against(options, TESTED_CHOICES)
    except InvalidArgument:
        check_against(options, read_help(await _help_text(executable, environment)))


def check_against(options: SessionOptions, choices: CliChoices) -> None:
    """Raises InvalidArgument for the first value outside the choices."""
    _check("permission_mode", options.permission_mode, choices.permission_modes)
    _check("effort", options.effort, choices.efforts)
    for source in options.setting_sources or ():
        _check("setting_sources", source, choices.setting_sources)
    for beta in options.betas:
        _check("betas", beta, choices.betas)


def _check(field: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise InvalidArgument(
            f"{field}: {value!r} is not known to this Claude Code; it has {', '.join(choices)}.",
            field=field,
            choices=list(choices),
        )


def read_help(text: str) -> CliChoices:
    """The choices in a `--help` text; those that it does not name are taken from the tested version."""
    flat = re.sub(r"\s+", " ", text)
    listed = re.search(r"--permission-mode <mode>.*?\(choices: ([^)]*)\)", flat)
    modes = re.findall(r'"([^"]+)"', listed.group(1)) if listed else []
    efforts = re.search(r"--effort <level>.*?\(([a-z, ]+)\)", flat)
    return CliChoices(
        permission_modes=tuple(sorted({*modes, "default"})) if modes else TESTED_CHOICES.permission_modes,
        efforts=tuple(efforts.group(1).replace(" ", "").split(",")) if efforts else TESTED_CHOICES.efforts,
    )


async def _help_text(executable: str, environment: Mapping[str, str]) -> str:
    """What `--help` prints; empty if it cannot be had, and then the choices of the tested version apply."""
    try:
        # In a thread and not on the loop: a caller who is cancelled must not leave a process behind.
        answer = await asyncio.to_thread(
            subprocess.run,
            [executable, "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(environment),
            timeout=_HELP_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode("utf-8", "replace")


# -- start inputs -----------------------------------------------------------------------------------------------------


_MAX_FILES = 5000
_MAX_IMPORTS = 100
_MAX_TEXT = 1 << 20
_IMPORT = re.compile(r"(?<!\S)@([^\s`]{1,1000})")
_NAMES = ("CLAUDE.md", "CLAUDE.local.md", "AGENTS.md", ".mcp.json")
_SETTINGS = ("settings.json", "settings.local.json", "managed-settings.json")
_CONFIGURED = (*_SETTINGS, "CLAUDE.md", ".credentials.json", "rules", "agents", "skills", "commands", "output-styles")
"""What is read of a directory with configuration, of which there is one for the user and one in each project."""
_OF_USER_FILE = ("mcpServers", "oauthAccount", "primaryApiKey", "customApiKeyResponses", "env")
_OF_PROJECT = (
    *("mcpServers", "enabledMcpServers", "disabledMcpServers", "enabledMcpjsonServers", "disabledMcpjsonServers"),
    *("allowedTools", "ignorePatterns", "hasTrustDialogAccepted", "hasClaudeMdExternalIncludesApproved"),
)
_GIT = ("HEAD", "index", "packed-refs", "config", "logs/HEAD")
_NOT_WATCHED = frozenset(
    {".git", "node_modules", ".venv", "venv", "__pycache__", ".tox", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Directories whose contents git ignores as a rule, and that hold too many files to look at."""
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


class _Doubtful(Exception):
    """It cannot be said what a process would begin with."""


def start_inputs(environment: Mapping[str, str], cwd: str, directories: Sequence[str], executable: str) -> str | None:
    """The fingerprint of what a process would read if it started now; None if it cannot be determined."""
    # The day counts too: the CLI gives the model the date of its start.
    digest = hashlib.sha256(time.strftime("%Y-%m-%d").encode())
    try:
        for line in _lines(environment, Path(cwd), directories, executable):
            digest.update(line.encode("utf-8", "surrogateescape") + b"\0")
    # The files are written by others: one of an unexpected shape makes the start doubtful, and is no error of ours.
    except (_Doubtful, OSError, ValueError, RuntimeError, AttributeError, TypeError):
        return None
    return digest.hexdigest()


def _lines(environment: Mapping[str, str], cwd: Path, directories: Sequence[str], executable: str) -> Iterator[str]:
    config, home = Path(config_directory(environment)), Path(environment.get("HOME") or Path.home())
    managed = Path(_MANAGED.get(sys.platform, "/etc/claude-code"))
    above = [cwd, *cwd.parents]
    places = [*above, *(cwd / added for added in directories)]
    configured = [config, *(place / ".claude" for place in places)]
    # First, since it decides without the long list of files.
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
    """What of the user's `.claude.json` a session depends on. The CLI notes much else there, all the time."""
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
    """A file, or a directory with everything below it. Links are not followed, but what they lead to counts."""
    yield _facts(path)
    if path.is_symlink():
        yield _facts(Path(os.path.realpath(path)))  # which, unlike `resolve`, takes a link to itself for a path
    if not path.is_dir():
        return
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        budget[0] -= 1
        if budget[0] < 0:
            raise _Doubtful
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in _NOT_WATCHED:
                yield from _tree(Path(entry.path), budget)
        else:
            yield _facts(Path(entry.path))


def _imports(files: Iterable[Path]) -> Iterator[str]:
    """The files that instructions refer to with `@path`, and those that these refer to."""
    waiting, seen = list(files), set[Path]()
    while waiting:
        file = waiting.pop()
        if not file.is_file():
            continue
        if len(seen) > _MAX_IMPORTS:
            raise _Doubtful
        for name in _IMPORT.findall(read_regular(file, _MAX_TEXT).decode("utf-8", "replace")):
            # Of a user that there is not, this leaves the name as it is: a path that is not there either.
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
            raise _Doubtful
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
        raise _Doubtful
