"""Completion, as the shells themselves do it."""

import shutil
import subprocess

import pytest

from tests.support.waiting import HANG_SECONDS

from .test_commands import run


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
    assert completed("bash", in_bash(typed), environment) == expected


def in_bash(typed: list[str]) -> str:
    """Completes the last word as bash does when Tab is pressed."""
    words = " ".join(["claude-code-mcp", *(word or '""' for word in typed)])
    return (
        f"source /dev/stdin; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; "
        "function=$(complete -p claude-code-mcp | sed 's/.* -F \\([^ ]*\\) .*/\\1/'); "
        '$function claude-code-mcp "${COMP_WORDS[COMP_CWORD]}"; echo "${COMPREPLY[@]}"'
    )


def test_bash_completes_ids_of_sessions(environment: dict[str, str]) -> None:
    sessions = "claude-code-mcp() { [ \"$1 $2 $3\" = 'ps --all --ids' ] && echo 5f0c-1 7a-2; }; "
    for command in (["logs"], ["sessions", "show"], ["interrupt"]):
        assert completed("bash", sessions + in_bash([*command, "5f"]), environment) == ["5f0c-1"]


@pytest.mark.parametrize(("shell", "check"), [("zsh", 'eval "$(cat)"'), ("fish", "source")])
def test_other_shells_take_the_script(environment: dict[str, str], shell: str, check: str) -> None:
    prelude = "autoload -U compinit && compinit -u -D; " if shell == "zsh" else ""
    completed(shell, f"{prelude}{check}", environment)


def test_fish_completes(environment: dict[str, str]) -> None:
    found = completed("fish", "source; complete -C 'claude-code-mcp shared sta'", environment)
    assert {"start", "status"} <= set(found)
