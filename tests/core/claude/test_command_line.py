"""Options become arguments: each has its expectation here, and nothing is passed that was not set."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.claude.command_line import CommandLine, ConversationStart, build_command, check_inline
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.options import Preset, SessionOptions, Thinking, ToolPreset
from tests.support.tables import every_row

ID = "11111111-2222-4333-8444-555555555555"
OTHER = "99999999-2222-4333-8444-555555555555"
ANEW = ConversationStart(ID)
PLACE = Path("/private")
STREAMS = ["-p", "--output-format=stream-json", "--input-format=stream-json", "--verbose"]
BASE = [*STREAMS, f"--session-id={ID}", "--permission-prompt-tool=stdio", "--include-partial-messages"]
SECRET = "hunter2-the-secret"


@dataclass
class Expected:
    """What setting one option adds to the base, takes from it, writes to files or sets as variables."""

    value: Any
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)


SERVERS = {"calc": {"command": "calc", "env": {"TOKEN": SECRET}}}
AGENTS = {"reviewer": {"description": "Reviews", "prompt": "Review."}}
SANDBOX = {"enabled": True, "allowUnsandboxedCommands": False, "failIfUnavailable": True}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}

TABLE: dict[str, list[Expected]] = {
    "cwd": [Expected("/src")],
    "turn_timeout": [Expected(5.0)],
    "stay_on_machine": [Expected(True)],
    "executable": [Expected("/bin/claude")],
    "env": [Expected({"TOKEN": SECRET})],
    "hub_servers": [Expected(("calc",))],
    "model": [Expected("opus", ["--model=opus"])],
    "fallback_model": [Expected("haiku", ["--fallback-model=haiku"])],
    "permission_mode": [Expected("plan", ["--permission-mode=plan"])],
    "dangerously_skip_permissions": [Expected(True, ["--dangerously-skip-permissions"])],
    "ask": [Expected(False, removed=["--permission-prompt-tool=stdio"])],
    "allowed_tools": [
        Expected(
            ("Read", "Bash(ls *)"),
            ["--settings=/private/settings.json"],
            files={"settings.json": json.dumps({"permissions": {"allow": ["Read", "Bash(ls *)"]}})},
        )
    ],
    "disallowed_tools": [
        Expected(
            ("Bash",),
            ["--settings=/private/settings.json"],
            files={"settings.json": json.dumps({"permissions": {"deny": ["Bash"]}})},
        )
    ],
    "tools": [
        Expected(("Read", "Edit"), ["--tools=Read,Edit"]),
        Expected((), ["--tools="]),
        Expected(ToolPreset(), ["--tools=default"]),
    ],
    "max_turns": [Expected(3, ["--max-turns=3"])],
    "max_budget_usd": [Expected(1.5, ["--max-budget-usd=1.5"])],
    "system_prompt": [
        Expected(
            "Be terse.",
            ["--system-prompt-file=/private/system-prompt.txt"],
            files={"system-prompt.txt": "Be terse."},
        ),
        Expected(Preset()),
        Expected(
            Preset(append="Be kind."),
            ["--append-system-prompt-file=/private/append-system-prompt.txt"],
            files={"append-system-prompt.txt": "Be kind."},
        ),
    ],
    "append_system_prompt": [
        Expected(
            "Be kind.",
            ["--append-system-prompt-file=/private/append-system-prompt.txt"],
            files={"append-system-prompt.txt": "Be kind."},
        )
    ],
    "agents": [Expected(AGENTS, ["--agents=/private/agents.json"], files={"agents.json": json.dumps(AGENTS)})],
    "agent": [Expected("reviewer", ["--agent=reviewer"])],
    "effort": [Expected("high", ["--effort=high"])],
    "thinking": [
        Expected(Thinking(type="disabled"), ["--thinking=disabled"]),
        Expected(Thinking(type="adaptive"), ["--thinking=adaptive"]),
        Expected(Thinking(type="enabled"), ["--thinking=enabled"]),
        Expected(Thinking(type="enabled", budget_tokens=2000), ["--max-thinking-tokens=2000"]),
    ],
    "betas": [Expected(("context-1m-2025-08-07",), ["--betas=context-1m-2025-08-07"])],
    "additional_directories": [Expected(("/a", "/b c"), ["--add-dir=/a", "--add-dir=/b c"])],
    "output_schema": [Expected(SCHEMA, ["--json-schema=" + json.dumps(SCHEMA, separators=(",", ":"))])],
    "mcp_servers": [
        Expected(
            SERVERS,
            ["--mcp-config=/private/mcp.json"],
            files={"mcp.json": json.dumps({"mcpServers": SERVERS})},
        )
    ],
    "strict_mcp_config": [Expected(True, ["--strict-mcp-config"])],
    "setting_sources": [
        Expected(("user", "project"), ["--setting-sources=user,project"]),
        Expected((), ["--setting-sources="]),
    ],
    "sandbox": [
        Expected(
            {"allowUnsandboxedCommands": False},
            ["--settings=/private/settings.json"],
            files={"settings.json": json.dumps({"sandbox": SANDBOX})},
        )
    ],
    "worktree": [Expected(True)],  # made before the process starts, in which it is only the directory
    "file_checkpointing": [Expected(True, variables={"CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING": "1"})],
    "include_partial_messages": [Expected(False, removed=["--include-partial-messages"])],
    "persist": [Expected(False, ["--no-session-persistence"])],
    "on_limit": [Expected("wait")],  # the server waits, not the process
    "debug": [Expected(True, ["--debug"])],
    "debug_file": [Expected("/tmp/debug.log", ["--debug-file=/tmp/debug.log"])],
}
ROWS = [(name, expected) for name, rows in TABLE.items() for expected in rows]


def command(opening: ConversationStart = ANEW, /, **options: Any) -> CommandLine:
    return build_command(SessionOptions(**options), opening, PLACE)


def test_every_option_has_an_expectation() -> None:
    assert set(TABLE) == set(SessionOptions.model_fields)


def test_unset_options_are_not_passed() -> None:
    built = command()
    assert (sorted(built.arguments), built.files, built.variables) == (sorted(BASE), {}, {})


@every_row(("name", "expected"), ROWS)
def test_an_option_adds_exactly_what_is_expected(name: str, expected: Expected) -> None:
    built = command(**{name: expected.value})
    assert sorted(built.arguments) == sorted({*BASE, *expected.added} - {*expected.removed})
    assert built.files == {PLACE / file: content for file, content in expected.files.items()}
    assert built.variables == expected.variables


@every_row(("name", "expected"), ROWS)
def test_no_secret_reaches_the_command_line(name: str, expected: Expected) -> None:
    assert SECRET not in " ".join(command(**{name: expected.value}).arguments)


def test_both_ways_to_append_to_the_system_prompt_are_joined() -> None:
    built = command(system_prompt=Preset(append="One."), append_system_prompt="Two.")
    assert built.files == {PLACE / "append-system-prompt.txt": "One.\n\nTwo."}


def test_remaining_budget_replaces_the_full_budget() -> None:
    built = build_command(SessionOptions(max_budget_usd=2.0), ConversationStart(ID), PLACE, budget=0.25)
    assert [one for one in built.arguments if "budget" in one] == ["--max-budget-usd=0.25"]


def test_variables_that_must_hold_are_in_the_environment_and_in_the_settings_that_come_last() -> None:
    built = build_command(SessionOptions(), ANEW, PLACE, variables={"KEPT": "1"})
    assert built.variables == {"KEPT": "1"}
    assert built.files == {PLACE / "settings.json": json.dumps({"env": {"KEPT": "1"}})}


def test_a_resumed_session_keeps_its_id() -> None:
    arguments = command(ConversationStart(ID, ID)).arguments
    assert f"--resume={ID}" in arguments
    assert not any(one.startswith(("--session-id", "--fork")) for one in arguments)


def test_a_fork_gets_the_id_that_we_chose() -> None:
    arguments = command(ConversationStart(ID, OTHER, "message")).arguments
    assert {f"--session-id={ID}", f"--resume={OTHER}", "--fork-session", "--resume-session-at=message"} <= {*arguments}


@every_row("name", ["model", "fallback_model", "permission_mode", "agent", "effort", "debug_file"])
@given(words=st.text(min_size=1).map(lambda words: f"-{words}".replace("\0", "")))
def test_a_value_cannot_become_a_flag(name: str, words: str) -> None:
    added = [one for one in command(**{name: words}).arguments if one not in BASE]
    assert added == [f"--{name.replace('_', '-')}={words}"]


@every_row("name", ["allowed_tools", "disallowed_tools", "additional_directories", "betas"])
def test_a_listed_value_cannot_become_a_flag(name: str) -> None:
    added = [one for one in command(**{name: ("--dangerously-skip-permissions", "-x")}).arguments if one not in BASE]
    assert len(added) == 2
    assert all(one.startswith("--") and "=-" in one for one in added)


@every_row("rule", ["Bash(", "Bash()", "Bash(*)", "Read(a:*b)", "WebFetch(x)", "a b", "", "Bash(a)(b)"])
def test_a_rule_that_would_void_the_settings_file_of_an_early_version_is_kept_out_of_it(rule: str) -> None:
    built = command(allowed_tools=(rule,), disallowed_tools=("Write",), sandbox={})
    (content,) = built.files.values()
    assert json.loads(content)["permissions"] == {"deny": ["Write"]}
    assert f"--allowedTools={rule}" in built.arguments


@every_row(("name", "value"), [("model", "op\0us"), ("allowed_tools", ("Re\0ad",)), ("debug_file", "a\0b")])
def test_a_nul_character_is_refused_naming_the_flag(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"--\w+.*NUL"):
        command(**{name: value})


def test_a_schema_that_no_command_line_can_hold_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="output_schema") as caught:
        command(output_schema={"description": "x" * 200_000})
    assert caught.value.data["field"] == "output_schema"


def test_a_prompt_that_no_command_line_can_hold_goes_through_a_file() -> None:
    built = command(system_prompt="x" * 300_000, append_system_prompt="y" * 300_000)
    assert max(map(len, built.arguments)) < 200
    assert {len(content) for content in built.files.values()} == {300_000}


LONG = "x" * (128 << 10)
LONG_VALUES: dict[str, Any] = {
    name: (LONG,) if "tuple" in str(given.annotation) else LONG
    for name, given in SessionOptions.model_fields.items()
    if "str" in str(given.annotation) and "Mapping" not in str(given.annotation)
}
"""A value that is too long for each option that takes texts."""


@pytest.mark.parametrize("name", sorted(LONG_VALUES))
def test_a_value_that_is_too_long_for_the_command_line_is_found_before_that_is_built(name: str) -> None:
    options = SessionOptions.model_construct(**{**dict(SessionOptions()), name: LONG_VALUES[name]})
    command = build_command(options, ANEW, PLACE)
    if not any(LONG in argument for argument in command.arguments):
        check_inline(options)  # it is in a file, or not for the CLI
        return
    with pytest.raises(InvalidArgument, match="too long for a command line") as refused:
        check_inline(options)
    assert refused.value.data["field"] == name
