"""The values that options with a fixed set of choices may take.

Those of the CLI this release is tested with are known beforehand and cost nothing to check. A value outside them
is looked up in the `--help` of the executable at hand before it is refused, since a newer CLI may know more.
"""

import asyncio
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from ..child_environment import child_environment
from ..errors import InvalidArgument
from ..model.options import SessionOptions

_HELP_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one CLI accepts."""

    permission_modes: tuple[str, ...]
    efforts: tuple[str, ...]
    setting_sources: tuple[str, ...] = ("user", "project", "local")
    betas: tuple[str, ...] = ("context-1m-2025-08-07",)


TESTED = Dialect(
    permission_modes=("acceptEdits", "auto", "bypassPermissions", "default", "dontAsk", "manual", "plan"),
    efforts=("low", "medium", "high", "xhigh", "max"),
)


async def check_values(options: SessionOptions, executable: str, environment: Mapping[str, str]) -> None:
    """Raises InvalidArgument for a value that this executable does not know."""
    try:
        check_against(options, TESTED)
    except InvalidArgument:
        check_against(options, read_help(await _help_text(executable, environment)))


def check_against(options: SessionOptions, dialect: Dialect) -> None:
    """Raises InvalidArgument for the first value outside the dialect."""
    _check("permission_mode", options.permission_mode, dialect.permission_modes)
    _check("effort", options.effort, dialect.efforts)
    for source in options.setting_sources or ():
        _check("setting_sources", source, dialect.setting_sources)
    for beta in options.betas:
        _check("betas", beta, dialect.betas)


def _check(field: str, value: str | None, choices: tuple[str, ...]) -> None:
    if value is not None and value not in choices:
        raise InvalidArgument(
            f"{field} {value!r} is not known to this Claude Code; it takes {', '.join(choices)}.",
            field=field,
            choices=list(choices),
        )


def read_help(text: str) -> Dialect:
    """The dialect that a `--help` text describes; what it does not tell is taken from the tested one."""
    flat = re.sub(r"\s+", " ", text)
    modes = _quoted(flat, r"--permission-mode <mode>.*?\(choices: ([^)]*)\)")
    efforts = re.search(r"--effort <level>.*?\(([a-z, ]+)\)", flat)
    return Dialect(
        permission_modes=tuple(sorted({*modes, "default"})) if modes else TESTED.permission_modes,
        efforts=tuple(efforts.group(1).replace(" ", "").split(",")) if efforts else TESTED.efforts,
    )


def _quoted(text: str, pattern: str) -> list[str]:
    found = re.search(pattern, text)
    return re.findall(r'"([^"]+)"', found.group(1)) if found else []


async def _help_text(executable: str, environment: Mapping[str, str]) -> str:
    """Empty if it does not tell; then what is known of the tested one must do."""
    try:
        return await asyncio.to_thread(_ask_for_help, executable, environment)
    except (OSError, subprocess.SubprocessError):
        return ""


def _ask_for_help(executable: str, environment: Mapping[str, str]) -> str:
    # In a thread and not on the loop: a caller who is cancelled must not leave a process behind.
    command, quiet = [executable, "--help"], subprocess.DEVNULL
    answer = subprocess.run(
        command,
        stdin=quiet,
        stdout=subprocess.PIPE,
        stderr=quiet,
        env=child_environment(environment),
        timeout=_HELP_TIMEOUT,
        check=False,
    )
    return answer.stdout.decode("utf-8", "replace")
