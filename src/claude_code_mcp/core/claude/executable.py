"""The Claude Code executable: where it is, and which versions and values are supported.

It is named explicitly, on PATH, or inside the wheel that carries it. The wheel is never imported, which would take most
of a second: only its directory is looked up.
"""

import asyncio
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ExecutableNotFound, InvalidArgument
from ..installation import extra_command
from ..model.options import SessionOptions
from ..processes.environment import child_environment, expand_home

_CARRIER = "claude_agent_sdk"
_CLI_TIMEOUT = 30.0


def find_executable(
    explicit: str | None = None, environment: Mapping[str, str] | None = None, *, named_by: str = "CLAUDE_CODE_PATH"
) -> str:
    """The absolute path of the explicit executable if named, otherwise of `claude` on PATH, otherwise of the bundled
    one. `named_by` is the variable or option that names it. Raises ExecutableNotFound, also for an explicit path that
    is not an executable file: it is not skipped."""
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
"""The version that all other tests run on: the one in the extra `cli`."""
_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})")
_HELP_TIMEOUT = 20.0


def run_cli(
    path: str,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    directory: str | None = None,
    timeout: float = _CLI_TIMEOUT,
) -> "subprocess.CompletedProcess[str]":
    """Runs Claude Code in a session-like environment with these `variables`, and waits for its end. Raises OSError and
    SubprocessError."""
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
    """The version in the output of `claude --version`, such as `2.1.325 (Claude Code)`; None if there is none."""
    found = _VERSION.match(text.strip())
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def version_text(version: tuple[int, int, int]) -> str:
    """The version as text."""
    return ".".join(map(str, version))


@dataclass(frozen=True, slots=True)
class CliChoices:
    """The values that a CLI accepts for options with fixed choices."""

    permission_modes: tuple[str, ...]
    efforts: tuple[str, ...]
    setting_sources: tuple[str, ...] = ("user", "project", "local")
    betas: tuple[str, ...] = ("context-1m-2025-08-07",)


TESTED_CHOICES = CliChoices(
    permission_modes=("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"),
    efforts=("low", "medium", "high", "xhigh", "max"),
)


async def check_values(options: SessionOptions, executable: str, environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a value that this executable does not know. The executable's help is read only if the
    tested version would refuse the value: another one may know more."""
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
    """The choices in a `--help` text; missing ones are taken from the tested version."""
    flat = re.sub(r"\s+", " ", text)
    listed = re.search(r"--permission-mode <mode>.*?\(choices: ([^)]*)\)", flat)
    modes = re.findall(r'"([^"]+)"', listed.group(1)) if listed else []
    efforts = re.search(r"--effort <level>.*?\(([a-z, ]+)\)", flat)
    return CliChoices(
        permission_modes=tuple(sorted({*modes, "default"})) if modes else TESTED_CHOICES.permission_modes,
        efforts=tuple(efforts.group(1).replace(" ", "").split(",")) if efforts else TESTED_CHOICES.efforts,
    )


async def _help_text(executable: str, environment: Mapping[str, str]) -> str:
    """The output of `--help`; empty if unavailable, and then the choices of the tested version apply."""
    try:
        # In a thread and not on the loop: a cancelled caller must not leave a process behind.
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
