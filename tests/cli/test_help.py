"""The help of every command says what the code does: it is made from the same tables."""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from typing import get_args

import pytest

from claude_code_mcp.cli.parser import COMMANDS, build_parser, plugin_commands
from claude_code_mcp.client.setting_flags import SETTINGS_WITH_FLAG
from claude_code_mcp.core.config import ALL_TOOLSETS, TOOLSETS, Settings, Toolset
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.settings_section import variable_of


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {flag: action for action in parser._actions for flag in action.option_strings}


def command(name: str) -> argparse.ArgumentParser:
    return next(parser for parser in parsers(build_parser()) if parser.prog == f"claude-code-mcp {name}")


def plain(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("parser", list(parsers(build_parser())), ids=lambda parser: parser.prog)
def test_help_names_every_option_and_explains_it(parser: argparse.ArgumentParser) -> None:
    shown = plain(parser.format_help())
    for flag, action in options(parser).items():
        assert flag in shown
        assert action.help


def test_help_lists_every_command() -> None:
    lines = build_parser().format_help().splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("    ") and line[4:5].strip()}
    assert listed == {*COMMANDS, *(command.name for command in plugin_commands() if " " not in command.name)}


def test_every_flag_of_serve_is_a_setting_or_says_where_to_serve() -> None:
    serve = command("serve")
    flags = {action.dest for action in options(serve).values()}
    assert flags == {"help", "http", "oauth", "shared", "config", *SETTINGS_WITH_FLAG}
    assert set(SETTINGS_WITH_FLAG) <= set(Settings.model_fields)
    shown = plain(serve.format_help())
    assert all(variable_of(field, Settings) in shown for field in SETTINGS_WITH_FLAG)


def test_serve_names_the_toolsets_that_there_are() -> None:
    assert get_args(Toolset) == ALL_TOOLSETS
    shown = plain(command("serve").format_help())
    assert all(f"`{name}`" in shown for name in ALL_TOOLSETS)
    assert f"Default: {','.join(TOOLSETS)}." in shown


def test_disconnect_behavior_must_be_a_valid_setting() -> None:
    choices = options(command("serve"))["--on-disconnect"].choices
    for choice in choices or ():
        assert Settings(on_disconnect=choice).on_disconnect == choice
    assert set(choices or ()) == {"keep", "interrupt", "stop"}


def test_commands_that_speak_no_mcp_do_not_load_the_sdk() -> None:
    code = "import sys, claude_code_mcp.cli.parser; print({'mcp', 'mcp_types'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "set()"


def test_the_mcp_actions_do_without_the_library_that_edits_lines() -> None:
    """Only the extra `tui` installs it; where it is missing, lines are read as they come."""
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None\n"
        "from claude_code_mcp.cli.mcp import configure, connect, live\n"
        "print(type(connect._make_screen('server', lambda: None)).__name__)"
    )
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert made.stdout == "Screen\n"


@pytest.mark.parametrize(("name", "choices"), [("audit", "verify"), ("people", "invite, link, list, remove, forget")])
def test_where_an_action_is_missing_the_refusal_lists_them(name: str, choices: str) -> None:
    added = [command for command in plugin_commands() if command.name == name]
    with pytest.raises(InvalidArgument, match=f" {choices}$"):
        build_parser(() if added else (name,), added).parse_args([name])
