"""`config`: the settings in force, their reference, and how this server is registered in each client.

`--install` changes only our entry in a client's file: comments, order and whatever a person has added stay. The file as
it was is kept beside it.
"""

import argparse
import difflib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from ..claude.executable import bundled_executable, find_executable
from ..client.connections import address_of
from ..config import CONFIG_FILE_VARIABLE, Settings, description_of, load_settings, variable_of
from ..errors import ClaudeCodeError, InvalidArgument
from ..installation import is_cached, requirement
from ..json_text import decode_with_comments
from ..model.paths import user_file
from ..model.text import visible
from ..private_files import FILE, replace_file
from ..shared import place
from .conventions import ExitCode, add_config_file, add_json, agreed, failed, print_json
from .json_edit import remove_value, set_value

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
    parser.add_argument("client", nargs="?", choices=sorted(HOSTS), help="print the registration for this client")
    parser.add_argument(
        "--own", action="store_true", help="with CLIENT: a server of its own, not the one that all clients share"
    )
    parser.add_argument("--url", metavar="URL", help="with CLIENT: the entry for a server that runs with --http there")
    parser.add_argument("--install", action="store_true", help="with CLIENT: write it after showing what changes")
    parser.add_argument("--yes", action="store_true", help="with --install: do not ask")
    parser.add_argument("--markdown", action="store_true", help="print the reference of all settings as Markdown")
    add_json(parser, "print the settings in force as a JSON object")
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and (arguments.client or arguments.markdown):
        raise InvalidArgument("--json is for the settings in force: it goes with neither CLIENT nor --markdown.")
    if (arguments.own or arguments.url or arguments.install) and not arguments.client:
        raise InvalidArgument("--own, --url and --install go with the name of a client.")
    if arguments.markdown:
        print(settings_page(), end="")
        return 0
    if arguments.client:
        return _register(arguments)
    settings = load_settings(file=arguments.config)
    values = {variable_of(name): value for name, value in settings.model_dump(mode="json").items()}  # hides secrets
    if arguments.json:
        print_json(values)
        return 0
    for variable, value in values.items():
        shown = ",".join(map(str, value)) if isinstance(value, list) else "" if value is None else value
        print(f"{variable}={shown}")
    print(f"\nTo register this server: claude-code-mcp config {{{','.join(sorted(HOSTS))}}}")
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


# -- the registration in a client --------------------------------------------------------------------------------------


NAME = "claude-code"
TOKEN = "CLAUDE_CODE_MCP_TOKEN"  # noqa: S105 - the name of a variable
_PACKAGE = "claude-code-mcp"
"""The directories of uv's cache that it makes environments in, and clears."""
_CODEX_TIMEOUT = 120
Entry = dict[str, Any]
_OURS = frozenset({"type", "command", "args", "url", "serverUrl", "httpUrl", "headers"})
"""What an entry is written with; whatever else an older one has, such as `env`, stays."""
_OURS_IN_CODEX = ("command", "args", "url", "bearer_token_env_var", "tool_timeout_sec")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """What is written into a client's configuration: a command that it starts, or a URL."""

    command: Sequence[str] = ()
    url: str | None = None
    with_token: bool = False


def _register(arguments: argparse.Namespace) -> int:
    host, address = HOSTS[arguments.client], _registration(arguments)
    if not arguments.install:
        print(host.instructions(address))
        return 0
    if arguments.client == "claude-code":
        return install_by_command(address, yes=arguments.yes)
    if host.file is None or host.merged is None:
        raise InvalidArgument(f"--install: {arguments.client} has no file of its own.")
    return install_in_file(host.file(), host.merged, address, yes=arguments.yes)


def _registration(arguments: argparse.Namespace) -> ServerAddress:
    if arguments.url:
        if arguments.client == "claude-desktop":
            raise InvalidArgument("--url: Claude Desktop takes servers at a URL in Settings, Connectors only.")
        return ServerAddress(url=address_of(arguments.url).geturl(), with_token=bool(os.environ.get(TOKEN)))
    shared = ["--shared"] if not arguments.own and place.possible() else []
    file = arguments.config or os.environ.get(CONFIG_FILE_VARIABLE)
    config = ["--config", str(Path(file).expanduser().absolute())] if file else []
    return ServerAddress([*own_command(), *shared, *config])


# -- the command --------------------------------------------------------------------------------------------------


def own_command() -> list[str]:
    """What starts this very installation: uvx if it is in uv's cache, which may be cleared at any time; else the script
    beside the interpreter, else one on PATH, else the module."""
    if is_cached(sys.prefix):
        wanted = requirement({"cli"} if bundled_executable() else set())
        return [shutil.which("uvx") or "uvx", "--from", wanted, _PACKAGE]
    beside = Path(sys.executable).with_name(_PACKAGE + (".exe" if os.name == "nt" else ""))
    if beside.exists():
        return [str(beside)]
    on_path = shutil.which(_PACKAGE)
    return [on_path] if on_path else [sys.executable, "-m", "claude_code_mcp"]


# -- the clients --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class McpHost:
    """A client: where its entry goes, and how the entry is written."""

    instructions: Callable[[ServerAddress], str]
    """What a person is told to do."""
    file: Callable[[], Path] | None = None
    merged: Callable[[str, ServerAddress], str] | None = None
    """The text of its file with the entry in it. InvalidArgument if the file cannot be read."""


@dataclass(frozen=True, slots=True)
class JsonDialect:
    """How a client with a JSON file writes an entry: the object that holds all of them, how it refers to the variable
    with the token, and the field that it has the URL of a server in."""

    key: str
    reference: str
    url_field: str = "url"
    has_type: bool = False
    """Whether every entry says of which type it is."""
    has_http_type: bool = True
    """Whether an entry with a URL says that it is HTTP."""

    def entry(self, address: ServerAddress) -> Entry:
        if address.url is None:
            typed = {"type": "stdio"} if self.has_type else {}
            return {**typed, "command": address.command[0], "args": list(address.command[1:])}
        typed = {"type": "http"} if self.has_http_type else {}
        headers = {"headers": {"Authorization": f"Bearer {self.reference}"}} if address.with_token else {}
        return {**typed, self.url_field: address.url, **headers}

    def merged(self, text: str, address: ServerAddress) -> str:
        """The text of a file with the entry in it. A person may have added variables, a timeout or comments to the
        entry and around it; only the fields that are ours are changed. InvalidArgument if the file cannot be read."""
        entry = self.entry(address)
        try:
            known = decode_with_comments(text.lstrip("\ufeff")) if text.strip("\ufeff \t\r\n") else {}
            present = known.get(self.key, {}).get(NAME, {})
            if not present:
                return set_value(text, [self.key, NAME], entry)
            for name in _OURS & present.keys() - entry.keys():
                text = remove_value(text, [self.key, NAME, name])
            for name, value in entry.items():
                if present.get(name) != value:
                    text = set_value(text, [self.key, NAME, name], value)
        except (ValueError, TypeError, AttributeError) as error:
            raise InvalidArgument(f"The file cannot be changed safely ({error}); add the entry by hand.") from None
        return text


def _json_host(shown: str, file: Callable[[], Path] | None, dialect: JsonDialect) -> McpHost:
    """A client with a JSON file."""

    def instructions(address: ServerAddress) -> str:
        return f"{shown}\n{json.dumps({dialect.key: {NAME: dialect.entry(address)}}, indent=2)}"

    return McpHost(instructions, file, dialect.merged if file is not None else None)


def claude_code_arguments(executable: str, address: ServerAddress) -> list[str]:
    """The command that registers this server in Claude Code, for all projects of the user."""
    add = [executable, "mcp", "add", "--scope", "user"]
    if address.url is None:
        return [*add, NAME, "--", *address.command]
    header = ["--header", f"Authorization: Bearer ${{{TOKEN}}}"] if address.with_token else []
    return [*add, "--transport", "http", NAME, address.url, *header]


def _codex_table(address: ServerAddress) -> str:
    if address.url is None:
        command, *arguments = address.command
        lines = [f"command = {json.dumps(command)}", f"args = {json.dumps(arguments)}"]
    else:
        lines = [f"url = {json.dumps(address.url)}"]
        lines += [f'bearer_token_env_var = "{TOKEN}"'] if address.with_token else []
    return "\n".join([f"[mcp_servers.{NAME}]", *lines, f"tool_timeout_sec = {_CODEX_TIMEOUT}"])


def _codex_merged(text: str, address: ServerAddress) -> str:
    """The table in place of the old one, or at the end; all else, what else the table had too, must be as it was."""
    before: list[str] = []
    kept: list[str] = []
    after: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.strip() == f"[mcp_servers.{NAME}]":
            inside = True
        elif inside and line.startswith("["):
            inside, after = False, [line]
        elif not inside:
            (after if after else before).append(line)
        elif line.strip() and line.partition("=")[0].strip() not in _OURS_IN_CODEX:
            kept.append(line)
    table = "\n".join([_codex_table(address), *kept])
    parts = ["\n".join(before).rstrip(), table, "\n".join(after)]
    merged = "\n\n".join(part for part in parts if part) + "\n"
    try:
        # The file was changed line by line, to keep comments and order:
        # that nothing else has changed is checked by its meaning.
        old, new = tomllib.loads(text), tomllib.loads(merged)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"The file cannot be changed safely ({error}); add the entry by hand.") from None
    if _without_ours(old) != _without_ours(new):
        raise InvalidArgument("The file cannot be changed safely; add the entry by hand.")
    return merged


def _without_ours(content: Mapping[str, Any]) -> dict[str, Any]:
    servers = dict(content.get("mcp_servers", {}))
    ours = servers.pop(NAME, {})
    kept = {name: value for name, value in ours.items() if name not in _OURS_IN_CODEX}
    return {**content, "mcp_servers": {**servers, **({NAME: kept} if kept else {})}}


PROGRAMS = ("claude-desktop", "claude-code", "cursor", "vscode", "windsurf", "gemini")
"""Those whose servers `mcp import` can read."""


def files_of(source: str, environment: Mapping[str, str], project: Path) -> list[Path]:
    """The files of a program, those of the project first; or the one file that was named instead."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    data = _application_data(environment, home)
    files = {
        "claude-desktop": [data / "Claude" / "claude_desktop_config.json"],
        "claude-code": [user_file(environment)],
        "cursor": [project / ".cursor" / "mcp.json", home / ".cursor" / "mcp.json"],
        "vscode": [
            project / ".vscode" / "mcp.json",
            data / "Code" / "User" / "mcp.json",
            data / "Code" / "User" / "settings.json",
        ],
        "windsurf": [home / ".codeium" / "windsurf" / "mcp_config.json"],
        "gemini": [project / ".gemini" / "settings.json", home / ".gemini" / "settings.json"],
    }
    return files.get(source) or [Path(source)]


def _user_file_of(client: str) -> Callable[[], Path]:
    """The file of a client for all projects of this user."""
    return lambda: files_of(client, os.environ, Path())[-1]


def _application_data(environment: Mapping[str, str], home: Path) -> Path:
    if sys.platform == "win32":
        return Path(environment.get("APPDATA") or home / "AppData" / "Roaming")
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    return Path(environment.get("XDG_CONFIG_HOME") or home / ".config")


def _zed_file() -> Path:
    if os.name == "nt":
        return Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming") / "Zed" / "settings.json"
    base = None if sys.platform == "darwin" else os.environ.get("XDG_CONFIG_HOME")
    return Path(base or Path.home() / ".config") / "zed" / "settings.json"


_PLAIN = f"${{{TOKEN}}}"
_OF_ENVIRONMENT = f"${{env:{TOKEN}}}"
_USUAL = JsonDialect("mcpServers", _PLAIN)
HOSTS: dict[str, McpHost] = {
    "claude-code": McpHost(lambda address: f"Run:\n{shlex.join(claude_code_arguments('claude', address))}"),
    "claude-desktop": _json_host(
        "Add to claude_desktop_config.json (Settings, Developer, Edit Config):",
        _user_file_of("claude-desktop"),
        _USUAL,
    ),
    "cursor": _json_host(
        "Add to ~/.cursor/mcp.json:",
        _user_file_of("cursor"),
        JsonDialect("mcpServers", _OF_ENVIRONMENT),
    ),
    "vscode": _json_host(
        "Add to .vscode/mcp.json:",
        lambda: Path(".vscode", "mcp.json"),
        JsonDialect("servers", _OF_ENVIRONMENT, has_type=True),
    ),
    "codex": McpHost(
        lambda address: f"Add to ~/.codex/config.toml:\n{_codex_table(address)}",
        lambda: Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml",
        _codex_merged,
    ),
    "windsurf": _json_host(
        "Add to ~/.codeium/windsurf/mcp_config.json:",
        _user_file_of("windsurf"),
        JsonDialect("mcpServers", _OF_ENVIRONMENT, "serverUrl", has_http_type=False),
    ),
    "gemini": _json_host(
        "Add to ~/.gemini/settings.json:",
        _user_file_of("gemini"),
        JsonDialect("mcpServers", _PLAIN, "httpUrl", has_http_type=False),
    ),
    "zed": _json_host(
        "Add to Zed's settings.json:", _zed_file, JsonDialect("context_servers", _PLAIN, has_http_type=False)
    ),
    "jetbrains": _json_host(
        "For AI Assistant: Settings, Tools, AI Assistant, Model Context Protocol, Add, as JSON. For Junie, which\n"
        "--install writes to: add to ~/.junie/mcp/mcp.json:",
        lambda: Path.home() / ".junie" / "mcp" / "mcp.json",
        JsonDialect("mcpServers", _PLAIN, has_http_type=False),
    ),
    "generic": _json_host("The entry that most clients take:", None, _USUAL),
}


# -- installing ---------------------------------------------------------------------------------------------------


def install_by_command(address: ServerAddress, *, yes: bool) -> int:
    """Claude Code changes its file all the time; only it can write to it safely."""
    executable = find_executable(os.environ.get(variable_of("claude_path")))
    try:
        present = json.loads(user_file(os.environ).read_bytes())["mcpServers"][NAME]
    except (OSError, ValueError, KeyError, TypeError):
        present = None  # its own command says what is wrong with the file
    wanted: Entry = {"url": address.url}
    if address.url is None:
        wanted = {"command": address.command[0], "args": [*address.command[1:]]}
    if isinstance(present, dict) and present and wanted.items() <= present.items():
        print(f"{user_file(os.environ)} has it already.")
        return int(ExitCode.DONE)
    commands = [claude_code_arguments(executable, address)]
    if present:
        commands.insert(0, [executable, "mcp", "remove", "--scope", "user", NAME])
    print("\n".join(map(shlex.join, commands)), flush=True)
    if not yes and not agreed("Run this?"):
        return failed("Nothing was changed.", ExitCode.REFUSED)
    for command in commands:
        if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode:
            return int(ExitCode.FAILED)
    return int(ExitCode.DONE)


def install_in_file(
    file: Path, merged: Callable[[str, ServerAddress], str], address: ServerAddress, *, yes: bool
) -> int:
    file = file.resolve()  # a link to the file stays one
    try:
        before = file.read_bytes().decode("utf-8")  # with the line ends that it has
    except FileNotFoundError:
        before = ""
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from None
    after = merged(before, address)
    if after == before:
        print(f"{file} has it already.")
        return int(ExitCode.DONE)
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), n=1, lineterm="")
    print("\n".join(map(visible, difference)), flush=True)
    if not yes and not agreed(f"Write {file}?"):
        return failed("Nothing was changed.", ExitCode.REFUSED)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # In one step, since the client may read its file at any moment, and with the mode that the file has; a new one
        # is for its owner alone, since entries of clients often hold tokens.
        mode = file.stat().st_mode & 0o777 if file.exists() else FILE
        if before:
            replace_file(file.with_name(f"{file.name}.bak"), before.encode(), mode)
        replace_file(file, after.encode(), mode)
    except OSError as error:
        raise ClaudeCodeError(f"{file} cannot be written: {error.strerror}.") from None
    print(f"Written: {file}" + (f" (before: {file.name}.bak)" if before else ""))
    return int(ExitCode.DONE)
