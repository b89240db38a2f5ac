"""What the policy reads is what bash, dash and zsh run, and what passes beside a denial does not run what is denied:
random commands, recorded attacks, and every command that was once read wrongly.

`make soak` reads a million commands; here it is a small part.
"""

import shlex
from pathlib import Path

import pytest

from benchmarks.sealed_shells import missing, sealed_shells
from benchmarks.shell_commands import AROUND, BEHIND, IN_CODE, SPELLINGS
from benchmarks.shell_fuzz import decide, is_read, lines_that_do_harm, problems_in, try_plain
from benchmarks.shells import MAIN, SHELLS, Shell, effects, scratch_directory
from claude_code_mcp.core.policy.rules import Decision

pytestmark = pytest.mark.programs

SEED = 1
INPUTS = 2000
_ESCAPES = str.maketrans({"␤": "\n", "␉": "\t", "␍": "\r", "␀": "\0", "␠": "\u00a0"})


def recorded(name: str) -> list[tuple[str, str]]:
    """The decisions and lines of a file of data. Characters that cannot stand in a line are written with their
    pictures: ␤ for a line end."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    entries = (line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    return [(decision, line.translate(_ESCAPES)) for decision, line in entries]


ATTACKS = recorded("shell_attacks.txt")
ORDINARY = recorded("shell_ordinary.txt")

needs_sandbox = pytest.mark.usefixtures("sandbox_for_shells")


@pytest.fixture(scope="module")
def sandbox_for_shells() -> None:
    if reason := missing():
        pytest.skip(reason)


ONCE_ALLOWED = [
    "git diff &</dev/null touch X",
    "git diff & </dev/null touch X",
    "git diff; </dev/null touch X",
    "git diff &>/dev/null touch X",
    "git diff &>>/dev/null touch X",
    "git diff&>/dev/null touch X",
    "git diff <>/dev/null",
    "git diff 1&>/dev/null",
    'git diff ""~',
    "git diff 2>&1 2>/dev/null || 2>/dev/null touch X",
    "git diff |",
    "git diff &&",
    "git diff ;; touch X",
    "echo a &| >&2\n",
    "git diff 'a''b'",
    "git diff =ls",
    "if git diff",
    "git diff; - touch X",
    "test -v 'a[$(touch X)]'",
    "printf -v 'a[$(touch X)]' b",
]
"""Found by the random commands or by an attacker: read as `git diff` alone, or as words that a shell does not see."""


def present(shell: Shell) -> Shell:
    if shell.path is None:
        pytest.skip(f"{shell.argv[0]} is not installed")
    return shell


def in_code(template: str, command: str) -> str:
    return template.replace("{}", command).replace("{{", "{").replace("}}", "}")


HIDDEN = [
    *(f"{behind} rm x" for behind in BEHIND),
    *(in_code(around, shlex.quote("rm x")) for around in AROUND),
    *(in_code(code, "rm x") for code in IN_CODE),
    *(spelling.replace("{bin}", "/bin") + " x" for spelling in SPELLINGS),
    "echo 'r\\m x' | tee f; sh f",
    "echo 'r\\m x' | tee f; nice sh f",
    "echo cm0geA== | base64 -d | tee f; sh f",
    "echo sm x | tr s r | tee f; nice ./f",
    "echo 'import os' | python3 -m code",
    "echo 'rm x' | builtin . /dev/stdin",
    "echo 'rm x' | find . -maxdepth 0 -execdir sh ';'",
    "echo rm x | xargs ./run",
    "cp /bin/rm z; ./z x",
    "cat /bin/rm | tee z; chmod +x z; ./z x",
    "make MAKEFILES=/dev/stdin",
    "hash -p /bin/rm z; z x",
    """eval 'eval 'exec r'"'"''"'"'m x''""",
    "eval r'\"\"'m x",
    "echo cm0geA== | base64 -d | sh -o vi",
    "echo cm0geA== | base64 -d | bash -O extglob",
    "cd /dev; echo cm0geA== | base64 -d | sh stdin",
    "echo cm0geA== | base64 -d | SH",
    "uv run python -c 'import os'",
    "docker exec -i box sh",
    "npx -y tsx -e 'x()'",
    "/lib64/ld-linux-x86-64.so.2 /bin/rm x",
    "unheard-of-wrapper -c 'rm x'",
    "unheard-of-wrapper -crm x",
    "unheard-of-wrapper '$(echo r)m x'",
    "unheard-of-wrapper '/bin/r?' x",
]


@pytest.mark.parametrize(
    "shell",
    # Of each family one: busybox reads what dash does, and options add to what zsh reads.
    [
        shell if shell.name in ("bash", "busybox", "zsh with options") else pytest.param(shell, marks=pytest.mark.soak)
        for shell in SHELLS
    ],
    ids=lambda shell: shell.name,
)
def test_allowed_commands_match_what_a_shell_runs(shell: Shell) -> None:
    count = try_plain(SEED, 0, INPUTS, [present(shell)])
    assert count.allowed > INPUTS / 5
    assert count.problems == []


@pytest.mark.parametrize("command", ONCE_ALLOWED)
def test_what_was_once_read_wrongly_is_asked(command: str) -> None:
    assert not is_read(command)


@pytest.mark.parametrize("shell", MAIN, ids=lambda shell: shell.name)
def test_recorded_commands_that_run_more_than_parsed_are_not_allowed(shell: Shell) -> None:
    with scratch_directory() as place:
        done = effects(present(shell), ["git diff &</dev/null touch X", "git diff >X"], place)
    assert ("touch", "X") in done[0].calls
    assert done[1].files == ("X",)
    assert problems_in(["git diff; $(echo touch) X"], [shell]) != []


def test_however_a_denied_program_is_hidden_the_command_is_denied_or_asked() -> None:
    assert [command for command in HIDDEN if decide(command) is Decision.ALLOW] == []


def test_attacks_are_denied_or_asked_as_they_are_recorded() -> None:
    assert len({line for _, line in ATTACKS}) == len(ATTACKS) > 200
    assert {decision for decision, _ in ATTACKS} == {"ask", "deny"}
    assert [(line, decide(line)) for decision, line in ATTACKS if decide(line) != decision] == []


def test_ordinary_lines_are_decided_as_they_are_recorded() -> None:
    assert [(line, decide(line)) for decision, line in ORDINARY if decide(line) != decision] == []


@needs_sandbox
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.soak)])
def test_recorded_attacks_do_harm_where_they_are_run(step: int) -> None:
    some = [line for _, line in ATTACKS[::step]]
    with sealed_shells() as sealed:
        done = sealed.effects("bash", some)
    assert sum(effect.called or bool(effect.changed) for effect in done) > len(some) / 2


@needs_sandbox
def test_ordinary_lines_that_are_allowed_do_no_harm() -> None:
    assert lines_that_do_harm([line for decision, line in ORDINARY if decision == "allow"], ["bash"]) == []


@needs_sandbox
def test_harmful_commands_are_detected() -> None:
    lines = ["rm x", "ls", "sort -o x f", "git branch q", "/bin/rm x &", "find . -name x -delete"]
    found = lines_that_do_harm(lines, ["bash"])
    assert [any(repr(line) in problem for problem in found) for line in lines] == [True, False, *([True] * 4)]
