"""A value that the CLI does not know is refused before anything is started, by what this CLI itself says."""

import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import (
    TESTED_CHOICES,
    check_against,
    check_values,
    find_executable,
    read_help,
)
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import SessionOptions

posix = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands in for the CLI")


def help_program(path: Path, words: str) -> str:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{words}\nEND\n")
    path.chmod(0o755)
    return str(path)


def test_the_help_of_the_real_cli_reports_what_is_known_beforehand(environment: dict[str, str]) -> None:
    help_text = subprocess.check_output([find_executable(), "--help"], env=environment, text=True)
    assert read_help(help_text) == TESTED_CHOICES


async def test_delegate_is_refused_naming_the_modes_there_are(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="'delegate' is not known") as caught:
        await check_values(SessionOptions(permission_mode="delegate"), find_executable(), environment)
    assert caught.value.data["field"] == "permission_mode"
    assert {"acceptEdits", "bypassPermissions", "plan"} <= set(caught.value.data["choices"])
    assert all(choice in caught.value.message for choice in caught.value.data["choices"])


@posix
async def test_a_mode_that_only_a_newer_cli_has_is_accepted(tmp_path: Path, environment: dict[str, str]) -> None:
    newer = help_program(
        tmp_path / "claude",
        '  --permission-mode <mode>   Permission mode\n     (choices: "plan",\n     "delegate")',
    )
    await check_values(SessionOptions(permission_mode="delegate"), newer, environment)
    await check_values(SessionOptions(permission_mode="default"), newer, environment)
    with pytest.raises(InvalidArgument, match="default, delegate, plan"):
        await check_values(SessionOptions(permission_mode="other"), newer, environment)


@posix
async def test_an_effort_that_only_a_newer_cli_has_is_accepted(tmp_path: Path, environment: dict[str, str]) -> None:
    newer = help_program(
        tmp_path / "claude", "  --effort <level>   Effort level for the\n   session (low, medium, giant)"
    )
    await check_values(SessionOptions(effort="giant"), newer, environment)


async def test_a_known_value_needs_no_look_at_the_cli(environment: dict[str, str]) -> None:
    await check_values(SessionOptions(permission_mode="plan", effort="max"), "/no/such/program", environment)


async def test_a_cli_that_reports_nothing_leaves_what_is_known_beforehand(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="acceptEdits"):
        await check_values(SessionOptions(permission_mode="delegate"), "/no/such/program", environment)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("permission_mode", SessionOptions(permission_mode="yolo")),
        ("effort", SessionOptions(effort="some")),
        ("setting_sources", SessionOptions(setting_sources=("user", "enterprise"))),
        ("betas", SessionOptions(betas=("unheard-of",))),
    ],
)
def test_each_option_with_fixed_choices_is_checked(field: str, options: SessionOptions) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_against(options, TESTED_CHOICES)
    assert caught.value.data["field"] == field


def test_choices_missing_in_the_help_come_from_the_tested_version() -> None:
    assert read_help("Usage: claude") == TESTED_CHOICES
