"""`config`: prints the settings in force, their reference page, or how to register this server in a client."""

import argparse
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from ..config import Settings, description_of, load_settings, variable_of
from ..errors import InvalidArgument
from ..shared import place
from .flags import add_config_file, add_json, print_json

_NAME = "claude-code"
_PAGE = """\
# Settings

An argument on the command line beats an environment variable, a variable beats the TOML file, the file beats the
default. The file is named by `--config` or `CLAUDE_CODE_MCP_CONFIG` and may use the names of either column:

```toml
max_sessions = 20
PERMISSION_TIMEOUT_MS = 600000
```

A value that does not parse is named in one line on stderr; over stdio the server then stays and refuses every call with
that line, until its input ends. `claude-code-mcp config` prints what is in force. This page is made by
`claude-code-mcp config --markdown`.

| variable | name in the file | default | meaning |
| --- | --- | --- | --- |
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="print the settings in force, or how to register this server in a client",
        description="Without an argument prints the settings in force with the variable that sets each. With the "
        "name of a client prints what registers this server there.",
    )
    parser.add_argument("client", nargs="?", choices=sorted(_CLIENTS), help="print the registration for this client")
    parser.add_argument(
        "--own", action="store_true", help="with CLIENT: a server of its own, not the one that all clients share"
    )
    parser.add_argument("--markdown", action="store_true", help="print the reference of all settings as Markdown")
    add_json(parser, "print the settings in force as a JSON object")
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and (arguments.client or arguments.markdown):
        raise InvalidArgument("--json is for the settings in force: it goes with neither CLIENT nor --markdown.")
    if arguments.own and not arguments.client:
        raise InvalidArgument("--own goes with the name of a client.")
    if arguments.markdown:
        print(settings_page(), end="")
        return 0
    if arguments.client:
        shared = not arguments.own and place.possible()
        print(_CLIENTS[arguments.client]([*_command(), *(["--shared"] if shared else [])]))
        return 0
    settings = load_settings(file=arguments.config)
    values = {variable_of(name): value for name, value in settings.model_dump(mode="json").items()}  # hides secrets
    if arguments.json:
        print_json(values)
        return 0
    for variable, value in values.items():
        print(f"{variable}={'' if value is None else value}")
    print(f"\nTo register this server: claude-code-mcp config {{{','.join(sorted(_CLIENTS))}}}")
    return 0


def settings_page() -> str:
    """The reference page of all settings."""
    rows = [
        f"| `{variable_of(name)}` | `{name}` | {_default(field)} | {description_of(name)} |"
        for name, field in Settings.model_fields.items()
    ]
    return _PAGE + "\n".join(rows) + "\n"


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.default_factory is not None:
        return "depends on the machine"
    if value in (None, "", ()):
        return ""
    return f"`{','.join(value)}`" if isinstance(value, tuple) else f"`{value}`"


def _command() -> list[str]:
    """What starts this very installation: the script beside the interpreter, else one on PATH, else the module."""
    beside = Path(sys.executable).with_name("claude-code-mcp")
    if beside.exists():
        return [str(beside)]
    on_path = shutil.which("claude-code-mcp")
    return [on_path] if on_path else [sys.executable, "-m", "claude_code_mcp"]


def _server(command: list[str]) -> dict[str, Any]:
    return {"command": command[0], "args": command[1:]}


def _mcp_servers_file(where: str) -> Callable[[list[str]], str]:
    """For clients with a file in the format of Claude Desktop."""

    def instructions(command: list[str]) -> str:
        return f"Add to {where}:\n{json.dumps({'mcpServers': {_NAME: _server(command)}}, indent=2)}"

    return instructions


def _claude_code(command: list[str]) -> str:
    return f"Run:\nclaude mcp add {_NAME} -- {' '.join(command)}"


def _vscode(command: list[str]) -> str:
    server = {"type": "stdio", **_server(command)}
    return f"Add to .vscode/mcp.json:\n{json.dumps({'servers': {_NAME: server}}, indent=2)}"


def _codex(command: list[str]) -> str:
    lines = [f"[mcp_servers.{_NAME}]", f"command = {json.dumps(command[0])}", f"args = {json.dumps(command[1:])}"]
    return "Add to ~/.codex/config.toml:\n" + "\n".join([*lines, "tool_timeout_sec = 120"])


_CLIENTS: dict[str, Callable[[list[str]], str]] = {
    "claude-code": _claude_code,
    "claude-desktop": _mcp_servers_file("claude_desktop_config.json (Settings, Developer, Edit Config)"),
    "cursor": _mcp_servers_file("~/.cursor/mcp.json"),
    "vscode": _vscode,
    "codex": _codex,
}
