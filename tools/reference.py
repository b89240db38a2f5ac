"""Writes the pages of the documentation that are generated from code: tools, commands, settings and client entries.

`make reference` runs it; a test fails when a page is stale.
"""

import argparse
import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from claude_code_mcp.cli.config import HOSTS, NAME, ServerAddress, settings_page
from claude_code_mcp.cli.parser import build_parser
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.server.tools.toolsets import tools_of

DOCS = Path(__file__).parent.parent / "docs"
GENERATED = "<!-- Generated from code by `make reference`: change the code, not this page. -->"
_TOOLSETS = ("sessions", "code", "query", "care", "hub", "hub-search")
ENTRY = ServerAddress(("claude-code-mcp", "--shared"))
"""What `config` writes for a program on PATH."""


def _compact(entry: dict[str, object]) -> str:
    return json.dumps(entry, separators=(",", ":"))


_COMMAND: dict[str, object] = {"command": ENTRY.command[0], "args": [*ENTRY.command[1:]]}
CURSOR_LINK = "https://cursor.com/en/install-mcp?" + urlencode(
    {"name": NAME, "config": b64encode(_compact(_COMMAND).encode()).decode()}, quote_via=quote
)
VSCODE_LINK = "https://insiders.vscode.dev/redirect/mcp/install?" + urlencode(
    {"name": NAME, "config": _compact({"type": "stdio", **_COMMAND})}, quote_via=quote
)
"""Pages of the makers of these programs, which open the program with the entry. Spaces are not written as `+`, which
`decodeURIComponent` leaves as it is."""


def cell(text: str) -> str:
    """A text in a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


# -- tools ------------------------------------------------------------------------------------------------------------


def tools_page() -> str:
    parts = [
        f"# Tool reference\n\n{GENERATED}\n\nEvery tool with its parameters and results, by the family that "
        "`CLAUDE_CODE_MCP_TOOLSETS` offers. [Tools](tools.md) explains how to use them.\n"
    ]
    for family in _TOOLSETS:
        parts.append(f"\n## `{family}`\n")
        parts += [_tool(tool.listing()) for tool in tools_of(load_settings({}, toolsets=family)).values()]
    return "".join(parts)


def _tool(listing: Any) -> str:
    text = f"\n### {listing.name}\n\n{listing.description}\n"
    if listing.input_schema.get("properties"):
        required = listing.input_schema.get("required", ())
        text += "\n| parameter | type | meaning |\n| --- | --- | --- |\n"
        for name, schema in listing.input_schema["properties"].items():
            mark = " (required)" if name in required else ""
            text += f"| `{name}`{mark} | {_type(schema)} | {cell(_meaning(schema))} |\n"
    if listing.output_schema is not None:
        text += "\n| result | type | meaning |\n| --- | --- | --- |\n"
        for name, schema in listing.output_schema["properties"].items():
            text += f"| `{name}` | {_type(schema)} | {cell(_meaning(schema))} |\n"
    return text


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(_type(option) for option in schema["oneOf"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return kind


def _meaning(schema: Mapping[str, Any]) -> str:
    text = str(schema.get("description", ""))
    limits = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "at least"), ("maximum", "at most"), ("default", "default"))
        if key in schema
    ]
    return f"{text} ({', '.join(limits)})".strip() if limits else text


# -- commands ---------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    parts = [
        f"# Command reference\n\n{GENERATED}\n\nEvery command with its arguments, as `claude-code-mcp COMMAND --help` "
        "prints them. [The shell](shell.md) explains how to use them.\n"
    ]
    parts += [_command(path, parser) for path, parser in _commands(build_parser(), "claude-code-mcp")]
    return "".join(parts)


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help for choice in action._choices_actions}
            for name, below in action.choices.items():
                below.description = below.description or summaries.get(name)
                yield f"{path} {name}", below
                yield from _commands(below, f"{path} {name}")


def _command(path: str, parser: argparse.ArgumentParser) -> str:
    text = f"\n{'#' * (path.count(' ') + 1)} {path}\n\n{' '.join((parser.description or '').split())}\n"
    rows = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    rows = [action for action in rows if not isinstance(action, argparse._SubParsersAction)]
    if rows:
        text += "\n| argument | meaning |\n| --- | --- |\n"
        for action in rows:
            expanded = (action.help or "") % {**vars(action), "prog": parser.prog} if action.help else ""
            text += f"| {_argument(action)} | {cell(expanded)} |\n"
    return text


def _argument(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    value = " ".join(value) if isinstance(value, tuple) else str(value)
    value = " ".join(f"`{choice}`" for choice in action.choices) if action.choices is not None else f"`{value}`"
    if not action.option_strings:
        return value
    flags = ", ".join(f"`{flag}`" for flag in action.option_strings)
    return flags if action.nargs == 0 else f"{flags} {value}"


# -- client entries ---------------------------------------------------------------------------------------------------


def entries_page() -> str:
    text = (
        f"# Client entries\n\n{GENERATED}\n\n"
        "The entry that `claude-code-mcp config CLIENT` prints for each client, for a program on PATH. "
        "`--install` writes it for you, with the full path of the program. "
        "[Clients](clients.md) says what each client supports.\n\n"
        "Install in one click, if `claude-code-mcp` is on PATH: "
        f"[Cursor]({CURSOR_LINK}), [VS Code]({VSCODE_LINK}).\n"
    )
    for name, host in HOSTS.items():
        instructions = host.instructions(ENTRY).rstrip("\n")
        said, _, entry = instructions.partition("\n{") if "\n{" in instructions else instructions.partition("\n[")
        if entry:
            kind, opening = ("json", "{") if "\n{" in instructions else ("toml", "[")
            text += f"\n## {name}\n\n{said}\n\n```{kind}\n{opening}{entry}\n```\n"
        else:
            said, _, command = instructions.partition("\n")
            text += f"\n## {name}\n\n{said}\n\n```console\n$ {command}\n```\n"
    return text


PAGES: Mapping[str, Callable[[], str]] = {
    "tool-reference.md": tools_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
    "entries.md": entries_page,
}


if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make(), encoding="utf-8")
