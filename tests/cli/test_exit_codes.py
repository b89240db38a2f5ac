"""One table of exit codes and one spelling of JSON, in every command."""

import argparse
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import claude_code_mcp
from claude_code_mcp.cli.parser import COMMANDS, build_parser
from claude_code_mcp.client.conventions import ExitCode, exit_code_of
from claude_code_mcp.core import errors
from claude_code_mcp.core.errors import ClaudeCodeError, LimitReached
from claude_code_mcp.testing import Sandbox
from tests.support import warm_commands

from .test_output import write_session

SOURCES = Path(claude_code_mcp.__file__).parent
SESSION = "0f3c1e5a-7d5b-4f0e-9a86-3d2b7c1a9e10"
WITHOUT_JSON = {
    "serve": "speaks MCP",
    "shared run": "speaks MCP",
    "fleet up": "serves until it is stopped",
    "runner": "serves until it is stopped",
    "tui": "is for a person",
    "claude": "has arguments that are not ours",
    "demo": "is for a person",
    "uninstall": "is for a person",
    "completion": "prints a script",
    "mcp add": "takes the arguments of `claude mcp add`",
    "mcp add-json": "takes the arguments of `claude mcp add-json`",
    "mcp connect server": "is for a person",
    "mcp connect stdio": "is for a person",
    "mcp connect http": "is for a person",
    "mcp connect sse": "is for a person",
    "mcp connect ws": "is for a person",
}
"""The commands that print no JSON, and why."""
NOT_THERE = [
    ["people", "forget", "nope"],
    ["people", "remove", "nope", "--yes"],
    ["sessions", "show", "nope"],
    ["sessions", "follow", "nope"],
    ["sessions", "rename", "nope", "x"],
    ["sessions", "tag", "nope", "x"],
    ["sessions", "pin", "nope"],
    ["sessions", "fork", "nope"],
    ["sessions", "export", "nope"],
    ["sessions", "delete", "nope", "--yes"],
    ["sessions", "diff", "nope"],
    ["sessions", "merge", "nope"],
    ["sessions", "discard", "nope"],
    ["mcp", "get", "nope"],
    ["mcp", "remove", "nope"],
    ["mcp", "enable", "nope"],
    ["mcp", "disable", "nope"],
    ["mcp", "tools", "nope"],
    ["mcp", "call", "nope", "tool"],
    ["mcp", "login", "nope"],
    ["mcp", "import", "/nowhere/at/all.json"],
    ["shared", "logs"],
]
WITHOUT_SERVER = [
    *(["ps"], ["questions"], ["answer", "q-1", "allow"], ["interrupt", "x"], ["cancel", "x"], ["logs", "x"]),
    *(["shared", "status"], ["stats"], ["show", "x", "--url", "127.0.0.1:1"], ["run", "x", "--url", "127.0.0.1:1"]),
]


def leaves(parser: argparse.ArgumentParser, path: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command with no others below it, with its flags."""
    below = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield path, {flag for action in parser._actions for flag in action.option_strings}
    for choices in below:
        for name, found in choices.items():
            yield from leaves(found, f"{path} {name}".strip())


def test_every_command_prints_json_or_has_a_reason_not_to() -> None:
    lacking = {path for path, flags in leaves(build_parser()) if "--json" not in flags}
    assert lacking == set(WITHOUT_JSON)


@pytest.mark.parametrize("path", sorted(COMMANDS))
def test_unknown_option_is_a_usage_error_in_every_command(environment: dict[str, str], path: str) -> None:
    if path == "claude":
        pytest.skip("its arguments are not ours")
    answer = warm_commands.run([path, "--no-such-option"], environment)
    assert answer.returncode == ExitCode.MISUSE
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("arguments", NOT_THERE, ids=" ".join)
def test_exit_code_3_for_missing_objects(environment: dict[str, str], sandbox: Sandbox, arguments: list[str]) -> None:
    answer = warm_commands.run(arguments, environment, sandbox.project)
    assert (answer.returncode, answer.stdout) == (ExitCode.NOT_FOUND, ""), answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize("arguments", WITHOUT_SERVER, ids=" ".join)
def test_exit_code_5_without_a_server(environment: dict[str, str], sandbox: Sandbox, arguments: list[str]) -> None:
    answer = warm_commands.run(arguments, environment, sandbox.project)
    assert answer.returncode == ExitCode.UNAVAILABLE, answer.stderr


def test_every_code_of_an_error_has_its_exit_code() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    codes = {kind.code for kind in kinds if issubclass(kind, errors.ClaudeCodeError)}
    assert {code: exit_code_of(code) for code in codes} == {
        "INTERNAL": 1,
        "INVALID_ARGUMENT": 2,
        "SESSION_NOT_FOUND": 3,
        "SESSION_BUSY": 4,
        "PERMISSION_DENIED": 4,
        "LIMIT_REACHED": 4,
        "RATE_LIMITED": 4,
        "CANCELLED": 4,
        "TIMEOUT": 1,
        "CLI_NOT_FOUND": 5,
        "UPSTREAM_UNAVAILABLE": 5,
    }


def test_errors_with_the_same_code_have_the_same_exit_code_and_subclasses_that_of_their_parent() -> None:
    for path in SOURCES.rglob("*.py"):
        if re.search(r"^    code = ", path.read_text(encoding="utf-8"), re.MULTILINE):
            parts = path.relative_to(SOURCES).with_suffix("").parts
            import_module(".".join((SOURCES.name, *parts)))
    kinds: list[type[ClaudeCodeError]] = [ClaudeCodeError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert len({kind.code for kind in kinds}) > 11, "also those that only commands have"
    assert [kind for kind in kinds if kind.exit_code != exit_code_of(kind.code)] == []

    class CustomLimit(LimitReached):
        code = "TOO_MANY_COOKS"

    assert exit_code_of("TOO_MANY_COOKS") == CustomLimit("").exit_code == ExitCode.REFUSED
    assert exit_code_of("OF_A_LATER_VERSION") == ExitCode.FAILED


def test_every_code_that_a_tool_answers_with_is_in_the_documentation() -> None:
    page = (SOURCES.parent.parent / "docs" / "tools.md").read_text(encoding="utf-8")
    table = page.partition("| code | when |")[2].partition("\n\n")[0]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, ClaudeCodeError)]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {kind.code for kind in kinds}


def test_the_table_in_the_documentation_has_every_code() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "shell.md").read_text(encoding="utf-8")
    table = page.partition("| exit code |")[2].partition("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in ExitCode]


def names_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from names_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from names_in(part)


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions"],
        ["sessions", "show", SESSION],
        ["sessions", "show", SESSION, "--full"],
        ["sessions", "rename", SESSION, "A title"],
        ["sessions", "pin", SESSION],
        ["sessions", "fork", SESSION],
        ["sessions", "export", SESSION],
        ["sessions", "delete", SESSION, "--yes"],
        ["costs"],
        ["costs", "--by", "session"],
        ["mcp", "list"],
        ["mcp", "status"],
        ["mcp", "disable", "small"],
        ["mcp", "remove", "small"],
        ["shared", "status"],
        ["doctor"],
        ["token"],
        ["people", "list"],
        ["web", "--sign-out-all"],
    ],
    ids=" ".join,
)
def test_json_is_spelled_as_on_the_wire(environment: dict[str, str], sandbox: Sandbox, arguments: list[str]) -> None:
    write_session(sandbox, "Say something.", session_id=SESSION)
    added = warm_commands.run(["mcp", "add", "small", "--", "false"], environment, sandbox.project)
    assert added.returncode == 0, added.stderr
    answer = warm_commands.run([*arguments, "--json"], environment, sandbox.project)
    printed = json.loads(answer.stdout)
    assert not [name for name in names_in(printed) if "_" in name]
    if arguments[0] == "sessions":
        first = printed[0] if isinstance(printed, list) else printed
        assert SESSION in (first["sessionId"], first.get("copyOf"))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["sesions"], "sessions"), (["Run"], "run"), (["mcp", "statsu"], "status"), (["sessions", "exprot"], "export")],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(
    environment: dict[str, str], typed: list[str], meant: str
) -> None:
    answer = warm_commands.run(typed, environment)
    assert answer.returncode == ExitCode.MISUSE
    assert f"Did you mean {meant}" in answer.stderr
