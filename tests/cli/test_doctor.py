"""`doctor` finds what will not work, and `claude` runs what it found."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.cli.chat import without_repetition
from claude_code_mcp.core.claude.executable import MINIMUM_VERSION, TESTED_VERSION
from claude_code_mcp.core.processes.environment import DEPTH
from tests.support.bubblewrap import missing
from tests.support.ports import free_port

from .test_commands import run

NONE = 'default = "x"\n[profiles.x]\nisolation = "none"'
VERSION = ".".join(map(str, MINIMUM_VERSION))
TOKEN = "ann-5f0c9d2e7b41a86c3d90-and-more"


def examine(environment: dict[str, str]) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code of `doctor --json`, and its findings by what they are about."""
    answer = run(environment, "doctor", "--json")
    report = json.loads(answer.stdout)
    assert report["ok"] is (answer.returncode == 0)
    return answer.returncode, {finding["what"]: finding for finding in report["findings"]}


def wrong(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    code, found = examine(environment)
    assert code == 1
    return {what: finding for what, finding in found.items() if not finding["ok"]}


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def quick(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An environment whose Claude Code says nothing but its version, for findings that are about something else."""
    says = f'test "$1" = --version && echo "{".".join(map(str, MINIMUM_VERSION))} (Claude Code)"'
    (tmp_path / "quick").mkdir()
    return {**environment, "CLAUDE_CODE_PATH": script(tmp_path / "quick" / "claude", says)}


def test_all_is_well_and_said_in_json(environment: dict[str, str]) -> None:
    code, found = examine(environment)
    assert code == 0
    assert {"settings", "Claude Code", "login", "policy", "MCP servers", "state directory"} <= set(found)
    assert all(finding["fix"] is None for finding in found.values())


def test_exports_of_sessions_that_are_gone_are_counted(quick: dict[str, str], tmp_path: Path) -> None:
    kept, gone = "0b60e31c-8e4a-4d4c-9a53-6b6dd0f3c001", "0b60e31c-8e4a-4d4c-9a53-6b6dd0f3c002"
    exports, project = tmp_path / "state" / "exports", tmp_path / "claude" / "projects" / "-src-app"
    exports.mkdir(parents=True)
    project.mkdir(parents=True)
    (project / f"{kept}.jsonl").touch()
    environment = {
        **quick, "CLAUDE_CODE_MCP_STATE_DIR": str(tmp_path / "state"), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
    }  # fmt: skip
    (exports / f"{kept}.md").write_text("kept")
    assert "exports" not in examine(environment)[1]
    (exports / f"{gone}.html").write_text("gone")
    (exports / f"{gone}.patch").write_text("gone")
    assert examine(environment)[1]["exports"]["detail"] == (f"2 of sessions that no longer exist (8 B in {exports})")


def deep(environment: dict[str, str], *more: str) -> tuple[int, str, dict[str, dict[str, Any]]]:
    lines = run(environment, "doctor", "--deep", *more)
    report = json.loads(run(environment, "doctor", "--deep", "--json", *more).stdout)
    return lines.returncode, lines.stdout, {finding["what"]: finding for finding in report["findings"]}


@pytest.mark.soak
def test_the_deep_check_sends_a_request_with_this_key_to_this_address(environment: dict[str, str]) -> None:
    answer = run(environment, "doctor", "--deep")  # on loopback, where it costs nothing
    assert (answer.returncode, answer.stdout.splitlines()[-1]) == (0, "Everything works.")
    found = dict(line.removeprefix("ok").strip().split(": ", 1) for line in answer.stdout.splitlines()[1:-1])
    assert found["API"].startswith("it answered in")
    assert environment["ANTHROPIC_BASE_URL"] in found["API"]
    assert found["a turn on the scripted model"].startswith("answered")
    assert "mcp " in found["versions"]
    assert re.match(r"[\d.,]+ [MGT]B free in .*state", found["disk"])


@pytest.mark.soak
def test_doctor_reports_a_problem_if_no_turn_can_work(environment: dict[str, str]) -> None:
    nowhere = {**environment, "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{free_port()}"}
    code, lines, found = deep(nowhere)
    assert code == 1
    assert "in order" not in lines
    assert not found["API"]["ok"]
    assert "ANTHROPIC_BASE_URL" in found["API"]["fix"]
    assert "in order" not in run(nowhere, "doctor").stdout, "what was not tried is not said to work"


def test_a_request_that_may_cost_is_not_sent_without_a_yes(environment: dict[str, str], tmp_path: Path) -> None:
    sends = f'test "$2" = "Say ok." && touch {tmp_path}/sent'
    says = f'case "$1" in --version) echo "{VERSION} (Claude Code)";; -p) {sends};; *) exit 1;; esac'
    elsewhere = {
        **environment,
        "ANTHROPIC_BASE_URL": "https://user:hunter2@api.example.org",
        "CLAUDE_CODE_PATH": script(tmp_path / "claude", says),
    }
    report = json.loads(run(elsewhere, "doctor", "--deep", "--json").stdout)
    [finding] = [finding for finding in report["findings"] if finding["what"] == "API"]
    assert (finding["ok"], "not checked" in finding["detail"]) == (True, True)
    assert not (tmp_path / "sent").exists()
    sent = run(elsewhere, "doctor", "--deep", "--yes").stdout
    assert (tmp_path / "sent").exists()
    assert "hunter2" not in sent


def test_not_logged_in(environment: dict[str, str]) -> None:
    found = wrong({name: value for name, value in environment.items() if name != "ANTHROPIC_API_KEY"})
    assert list(found) == ["login"]
    assert "claude-code-mcp claude auth login" in found["login"]["fix"]
    assert found["login"]["detail"].startswith("not logged in")


def test_run_without_a_login_says_so_at_once_and_starts_nothing(environment: dict[str, str], tmp_path: Path) -> None:
    says = f'echo "$@" >> {tmp_path}/called; echo \'{{"loggedIn": false}}\''
    no_one = {**environment, "CLAUDE_CODE_PATH": script(tmp_path / "claude", says)}
    del no_one["ANTHROPIC_API_KEY"]
    for options in (["--own"], []):
        answer = run(no_one, "run", *options, "Hello.")
        assert (answer.returncode, answer.stdout) == (1, "")
        assert answer.stderr.count("logged in") == 1
        assert "claude-code-mcp claude auth login" in answer.stderr
    assert {*(tmp_path / "called").read_text().splitlines()} == {"auth status --json"}


def test_text_already_on_the_terminal_is_not_repeated() -> None:
    problem = "api_error: Not logged in · Please run /login (For the server: …)"
    assert without_repetition(problem, "Not logged in · Please run /login") == "api_error (For the server: …)"
    assert without_repetition(problem, "") == without_repetition(problem, "Something else.") == problem


@pytest.mark.parametrize("logged_in", [True, False])
def test_a_cli_that_cannot_say_who_is_logged_in_is_judged_by_what_it_would_use(
    environment: dict[str, str], tmp_path: Path, logged_in: bool
) -> None:
    version = ".".join(map(str, MINIMUM_VERSION))
    says = f'case "$1" in --version) echo "{version} (Claude Code)";; *) echo "unknown command" >&2; exit 1;; esac'
    old = {**environment, "CLAUDE_CODE_PATH": script(tmp_path / "claude", says)}
    if not logged_in:
        del old["ANTHROPIC_API_KEY"]
        assert list(wrong(old)) == ["login"]
    else:
        assert examine(old)[0] == 0


def test_a_cli_that_is_newer_than_the_tested_one_is_named_and_is_no_problem(
    environment: dict[str, str], tmp_path: Path
) -> None:
    major, minor, patch = TESTED_VERSION
    for version, newer in (TESTED_VERSION, False), ((major, minor, patch + 1), True):
        name = ".".join(map(str, version))
        says = f'case "$1" in --version) echo "{name} (Claude Code)";; *) echo "unknown command" >&2; exit 1;; esac'
        cli = script(tmp_path / "claude", says)
        code, found = examine({**environment, "CLAUDE_CODE_PATH": cli})
        assert code == 0
        assert ("newer" in found["Claude Code"]["detail"].partition(cli)[2]) is newer


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ('echo "2.0.99 (Claude Code)"', "older than"),
        ('echo "1.0.128 (Claude Code)"', "older than"),
        ("echo hello", "is not Claude Code"),
        ("exit 3", "is not Claude Code"),
    ],
)
def test_a_cli_that_is_too_old_or_no_cli_at_all(
    environment: dict[str, str], tmp_path: Path, says: str, expected: str
) -> None:
    found = wrong({**environment, "CLAUDE_CODE_PATH": script(tmp_path / "claude", says)})
    assert list(found) == ["Claude Code"]
    assert expected in found["Claude Code"]["detail"]
    assert found["Claude Code"]["fix"]


def test_a_wrong_path_to_the_cli_has_advice_of_its_own(environment: dict[str, str]) -> None:
    found = wrong({**environment, "CLAUDE_CODE_PATH": "/nowhere/claude"})
    assert "CLAUDE_CODE_PATH" in found["Claude Code"]["fix"]
    assert "unset" in found["Claude Code"]["fix"]


BROKEN_FILES = [
    {
        "CLAUDE_CODE_MCP_POLICY": ("[profiles.x]\nroots = 1", "policy"),
        "CLAUDE_CODE_MCP_HUB_FILE": ("{ nonsense", "MCP servers"),
        "CLAUDE_CODE_MCP_TOKENS_FILE": ("", "tokens"),
        "CLAUDE_CODE_DEFAULT_CWD": ("a file, no directory", "default directory"),
        "CLAUDE_CODE_MCP_STATE_DIR": ("a file, no directory", "state directory"),
    },
    {"CLAUDE_CODE_MCP_HUB_FILE": ('{"mcpServers": {"x": {"type": "carrier-pigeon"}}}', "MCP servers")},
]


@pytest.mark.parametrize("broken", BROKEN_FILES, ids=len)
def test_every_broken_file_is_found(quick: dict[str, str], tmp_path: Path, broken: dict[str, tuple[str, str]]) -> None:
    files = {variable: tmp_path / variable for variable in broken}
    for variable, file in files.items():
        file.touch(mode=0o600)
        file.write_text(broken[variable][0])
    found = wrong({**quick, **{variable: str(file) for variable, file in files.items()}})
    assert set(found) == {what for _, what in broken.values()}
    for variable, (_, what) in broken.items():
        assert str(files[variable]) in found[what]["detail"]
        assert found[what]["fix"]


@pytest.mark.parametrize(
    "leading_nowhere",
    [
        {
            "CLAUDE_CODE_MCP_POLICY": ("/nowhere/policy.toml", "policy"),
            "CLAUDE_CODE_MCP_TOKENS_FILE": ("/nowhere/tokens", "tokens"),
            "CLAUDE_CODE_DEFAULT_CWD": ("/nowhere/at/all", "default directory"),
        },
        {
            "CLAUDE_CODE_MCP_PROFILE": ("unheard-of", "policy"),
            "CLAUDE_CODE_MCP_TOKEN": ("hunter2", "tokens"),
        },
        {"CLAUDE_CODE_MCP_TOKEN": ("", "settings")},
    ],
    ids=len,
)
def test_every_setting_that_leads_nowhere_is_found(
    quick: dict[str, str], leading_nowhere: dict[str, tuple[str, str]]
) -> None:
    found = wrong({**quick, **{variable: value for variable, (value, _) in leading_nowhere.items()}})
    assert set(found) == {what for _, what in leading_nowhere.values()}
    assert "hunter2" not in json.dumps(found)


def test_a_state_directory_that_others_may_write_to_is_found(quick: dict[str, str], tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)
    found = wrong({**quick, "CLAUDE_CODE_MCP_STATE_DIR": str(state)})
    assert found["state directory"]["fix"] == f"chmod 700 {state}"


@pytest.mark.parametrize(
    ("variables", "policy", "is_wrong"),
    [
        ({}, "", False),
        ({"CLAUDE_CODE_MCP_TOKEN": TOKEN}, "", False),
        ({"CLAUDE_CODE_MCP_TOKEN": TOKEN}, 'default = "x"\n[profiles.x]\nisolation = "sandbox"', True),
        ({"CLAUDE_CODE_MCP_TOKEN": TOKEN, "CLAUDE_CODE_MCP_TOKENS_FILE": "tokens"}, "", True),
        ({"CLAUDE_CODE_MCP_TOKEN": TOKEN, "CLAUDE_CODE_MCP_TOKENS_FILE": "tokens"}, NONE, False),
    ],
    ids=["stdio", "one caller", "the policy says so", "two callers", "two callers and an operator who says otherwise"],
)
def test_a_sandbox_that_does_not_work_is_named_and_wrong_only_where_it_is_needed(
    quick: dict[str, str], tmp_path: Path, variables: dict[str, str], policy: str, is_wrong: bool
) -> None:
    (tmp_path / "tokens").touch(mode=0o600)
    (tmp_path / "tokens").write_text(f"bob {TOKEN[::-1]}\n")
    (tmp_path / "policy").write_text(policy)
    script(tmp_path / "bwrap", "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1")
    found = {name: str(tmp_path / value) if value == "tokens" else value for name, value in variables.items()}
    path = f"{tmp_path}:{quick['PATH']}"
    _, findings = examine({**quick, **found, "CLAUDE_CODE_MCP_POLICY": str(tmp_path / "policy"), "PATH": path})
    assert findings["isolation"]["ok"] is not is_wrong
    assert "Permission denied" in findings["isolation"]["detail"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_root_that_holds_something_of_the_operators_is_wrong_where_callers_are_served(
    environment: dict[str, str],
) -> None:
    environment["CLAUDE_CODE_DEFAULT_CWD"] = environment["HOME"]
    assert examine(environment)[1]["isolation"]["ok"]
    environment["CLAUDE_CODE_MCP_TOKEN"] = TOKEN
    finding = examine(environment)[1]["isolation"]
    assert not finding["ok"]
    assert f"{environment['HOME']} contains" in finding["detail"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_doctor_reports_a_working_sandbox(quick: dict[str, str]) -> None:
    assert examine(quick)[1]["isolation"]["detail"].startswith("sandbox: bubblewrap works")


# -- claude ---------------------------------------------------------------------------------------------------


def test_claude_is_run_with_all_arguments_as_they_are(environment: dict[str, str], tmp_path: Path) -> None:
    says = f'for one in "$@"; do echo "<$one>"; done; env > {tmp_path}/seen; echo oops >&2; exit 7'
    variables = {**environment, "CLAUDE_CODE_PATH": script(tmp_path / "claude", says), "CLAUDE_CODE_MCP_TOKEN": TOKEN}
    arguments = ["--help", "-h", "--version", "a b", "", "--", "--config", "*"]
    answer = run(variables, "claude", *arguments)
    assert answer.returncode == 7
    assert answer.stdout == "".join(f"<{argument}>\n" for argument in arguments)
    assert answer.stderr == "oops\n"
    seen = (tmp_path / "seen").read_text()
    assert TOKEN not in seen
    assert f"{DEPTH}=0\n" in seen, "what a person runs is not nested"


def test_the_real_claude_says_who_is_logged_in(environment: dict[str, str]) -> None:
    answer = run(environment, "claude", "auth", "status")
    assert json.loads(answer.stdout)["loggedIn"] is True
    del environment["ANTHROPIC_API_KEY"]
    assert run(environment, "claude", "auth", "status").returncode == 1


@pytest.mark.parametrize("path", ["/nowhere/claude", "/"])
def test_without_a_cli_one_line_says_so(environment: dict[str, str], path: str) -> None:
    answer = run({**environment, "CLAUDE_CODE_PATH": path}, "claude", "auth", "login")
    assert answer.returncode == 5
    (line,) = answer.stderr.splitlines()
    assert "CLAUDE_CODE_PATH" in line


def test_a_misspelled_variable_is_found(quick: dict[str, str]) -> None:
    found = wrong({**quick, "CLAUDE_CODE_MCP_PROFIL": "local"})
    assert "CLAUDE_CODE_MCP_PROFIL " in found["variables"]["detail"]
    assert "CLAUDE_CODE_MCP_PROFILE" in found["variables"]["fix"]
