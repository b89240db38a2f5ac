"""Completion, as the shells themselves do it."""

import shutil
import subprocess

import pytest

from claude_code_mcp.cli.parser import COMMANDS, build_parser, commands_of
from tests.support.waiting import HANG_SECONDS

from .test_commands import run


def test_every_command_and_flag_of_the_parser_is_known() -> None:
    commands = {command.path: command for command in commands_of(build_parser())}
    assert set(commands[""].below) == set(COMMANDS)
    assert {"--follow", "--lines", "--json"} <= set(commands["logs"].flags)
    assert "status" in commands["shared"].below
    assert "--http" in commands["shared start"].flags
    assert commands["attach"].takes_session


def completed(shell: str, scripted: str, environment: dict[str, str]) -> list[str]:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"there is no {shell} here")
    made = run(environment, "completion", shell).stdout
    ended = subprocess.run(
        [program, "-c", scripted],
        input=made,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["quest"], ["questions"]),
        (["shared", "sta"], ["status", "start"]),
        (["shared", "start", "--ht"], ["--http"]),
        (["completion", "b"], ["bash"]),
        (["logs", "--fo"], ["--follow"]),
    ],
)
def test_bash_completes(environment: dict[str, str], typed: list[str], expected: list[str]) -> None:
    line = " ".join(["claude-code-mcp", *typed])
    scripted = (
        f'source /dev/stdin; COMP_WORDS=({line}); COMP_CWORD={len(typed)}; _claude_code_mcp; echo "${{COMPREPLY[@]}}"'
    )
    assert completed("bash", scripted, environment) == expected


@pytest.mark.parametrize(("shell", "check"), [("zsh", "source /dev/stdin"), ("fish", "source")])
def test_other_shells_take_the_script(environment: dict[str, str], shell: str, check: str) -> None:
    prelude = "autoload -U compinit && compinit -u -D; " if shell == "zsh" else ""
    completed(shell, f"{prelude}{check}", environment)


def test_fish_completes(environment: dict[str, str]) -> None:
    found = completed("fish", "source; complete -C 'claude-code-mcp shared sta'", environment)
    assert {"start", "status"} <= set(found)
