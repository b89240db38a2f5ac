"""`config`: the settings in force, their reference, and how this server is registered in each client.

`--install` and `--remove` change only our entry in a client's file: comments, order and whatever a person has added
stay. A copy of the original file is kept as `.bak`.
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

from ..client.connections import address_of
from ..client.conventions import ExitCode, add_config_file, add_json, agreed, failed, print_json
from ..core.claude.executable import bundled_executable, find_executable
from ..core.config import CONFIG_FILE_VARIABLE, Settings, load_settings
from ..core.errors import ClaudeCodeError, InvalidArgument
from ..core.installation import is_cached, requirement
from ..core.json_text import decode_with_comments
from ..core.model.paths import user_file
from ..core.model.text import visible
from ..core.model.tool_names import is_this_server
from ..core.private_files import FILE, replace_file
from ..core.section import description_of, variable_of
from ..installed_plugins import bundled_plugins, sections_of
from ..startup.shared import place
from .json_edit import is_empty, remove_value, set_value

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
"""
_HEAD = """
| variable | name in the file | default | meaning |
| --- | --- | --- | --- |
"""


def add_to(commands: Any) -> None:
    parser = commands.add_parser(
        "config",
        help="print the effective settings, or the entry for a client",
        description="Without an argument, prints the effective settings and the variable for each. With the name "
        "of a client, prints the entry to add to its configuration.",
    )
    parser.add_argument("client", nargs="?", choices=sorted(HOSTS), help="print the entry for this client")
    parser.add_argument(
        "--own", action="store_true", help="with CLIENT: an entry without --shared, for a separate server"
    )
    parser.add_argument("--url", metavar="URL", help="with CLIENT: an entry for a server that runs with --http at URL")
    parser.add_argument(
        "--install", action="store_true", help="with CLIENT: show the change to its configuration and write it"
    )
    parser.add_argument("--remove", action="store_true", help="with CLIENT: remove the entry that --install wrote")
    parser.add_argument(
        "--user", action="store_true", help="with vscode: use your user profile instead of the current project"
    )
    parser.add_argument("--yes", action="store_true", help="with --install and --remove: do not ask for confirmation")
    parser.add_argument("--markdown", action="store_true", help="print the settings reference as Markdown")
    add_json(parser, "print the settings in force as a JSON object")
    add_config_file(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and (arguments.client or arguments.markdown):
        raise InvalidArgument("--json prints the effective settings: it cannot be combined with CLIENT or --markdown.")
    of_client = arguments.own or arguments.url or arguments.install or arguments.remove or arguments.user
    if of_client and not arguments.client:
        raise InvalidArgument("--own, --url, --install, --remove and --user need the name of a client.")
    if arguments.remove and (arguments.install or arguments.own or arguments.url):
        raise InvalidArgument("--remove cannot be combined with --install, --own or --url.")
    if arguments.user and arguments.client != "vscode":
        raise InvalidArgument("--user is for vscode: the entry in any other client is for all projects already.")
    if arguments.markdown:
        print(settings_page(), end="")
        return 0
    if arguments.client:
        return _register(arguments)
    settings = load_settings(file=arguments.config)
    sections = [settings, *(settings.section(kind) for kind in sections_of(bundled_plugins()))]
    values = {
        variable_of(name, type(section)): value
        for section in sections
        for name, value in section.model_dump(mode="json").items()  # hides secrets
    }
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
    sections = [(f"\n## Plug-in `{plugin.name}`\n", plugin.section()) for plugin in bundled_plugins()]
    parts = [_PAGE]
    for heading, kind in (("", Settings), *sections):
        if kind is not None:
            parts += [heading, _HEAD]
            parts += [
                f"| `{variable_of(name, kind)}` | `{name}` | {_default(field)} | {description_of(name, kind)} |\n"
                for name, field in kind.model_fields.items()
            ]
    return "".join(parts)


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
    host = VSCODE_USER if arguments.user else HOSTS[arguments.client]
    if arguments.remove and arguments.client == "claude-code":
        return remove_by_command(yes=arguments.yes)
    if arguments.remove:
        return remove_from_file(*_file_of(host, "--remove", arguments.client), yes=arguments.yes)
    address = _registration(arguments)
    if not arguments.install:
        print(host.instructions(address))
        return 0
    if arguments.client == "claude-code":
        return install_by_command(address, yes=arguments.yes)
    file, dialect = _file_of(host, "--install", arguments.client)
    return install_in_file(file, dialect.merged, address, yes=arguments.yes)


def _file_of(host: "McpHost", flag: str, client: str) -> "tuple[Path, JsonDialect | CodexFile]":
    if host.file is None or host.dialect is None:
        raise InvalidArgument(f"{flag}: {client} has no configuration file that we know.")
    return host.file(), host.dialect


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
    dialect: "JsonDialect | CodexFile | None" = None
    """How the entry is written in that file, and read from it."""


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

    def removed(self, text: str) -> str:
        """The text of a file without the entry, and without the objects that are empty then; an empty text if nothing
        is left. The same text if it has no entry. InvalidArgument if the file cannot be read."""
        if not text.strip("\ufeff \t\r\n"):
            return text
        try:
            without = remove_value(text, [self.key, NAME])
            if without == text or not is_ours(decode_with_comments(text.lstrip("\ufeff"))[self.key][NAME]):
                return text
            if is_empty(without, [self.key]):
                without = remove_value(without, [self.key])
            return "" if "".join(without.lstrip("\ufeff").split()) == "{}" else without
        except ValueError as error:
            raise InvalidArgument(f"The file cannot be changed safely ({error}); remove the entry by hand.") from None

    def registered(self, text: str) -> ServerAddress | None:
        """What the entry in a file says; None if there is no entry that `merged` could have written."""
        try:
            return _address_in(decode_with_comments(text.lstrip("\ufeff"))[self.key][NAME], self.url_field)
        except (ValueError, TypeError, KeyError):
            return None


def is_ours(entry: Any) -> bool:
    """Whether an entry is for this server. Claude Code's own MCP server is often registered by the same name."""
    if not isinstance(entry, Mapping):
        return False
    if "command" in entry:
        return is_this_server(str(entry["command"]), [str(argument) for argument in entry.get("args") or ()])
    return any(name in entry for name in ("url", "serverUrl", "httpUrl"))


def _address_in(entry: Any, url_field: str) -> ServerAddress:
    """KeyError or TypeError if the entry is not ours."""
    if "command" in entry:
        return ServerAddress([entry["command"], *entry["args"]])
    return ServerAddress(url=entry[url_field], with_token="headers" in entry or "bearer_token_env_var" in entry)


def _json_host(shown: str, file: Callable[[], Path] | None, dialect: JsonDialect) -> McpHost:
    """A client with a JSON file."""

    def instructions(address: ServerAddress) -> str:
        return f"{shown}\n{json.dumps({dialect.key: {NAME: dialect.entry(address)}}, indent=2)}"

    return McpHost(instructions, file, dialect)


def claude_code_arguments(executable: str, address: ServerAddress) -> list[str]:
    """The command that registers this server in Claude Code, for all projects of the user."""
    add = [executable, "mcp", "add", "--scope", "user"]
    if address.url is None:
        return [*add, NAME, "--", *address.command]
    header = ["--header", f"Authorization: Bearer ${{{TOKEN}}}"] if address.with_token else []
    return [*add, "--transport", "http", NAME, address.url, *header]


class CodexFile:
    """The TOML file of Codex. It is changed line by line, to keep comments and order; that nothing else has changed is
    checked by its meaning."""

    _header = f"[mcp_servers.{NAME}]"

    def table(self, address: ServerAddress) -> str:
        """The lines of the entry."""
        if address.url is None:
            command, *arguments = address.command
            lines = [f"command = {json.dumps(command)}", f"args = {json.dumps(arguments)}"]
        else:
            lines = [f"url = {json.dumps(address.url)}"]
            lines += [f'bearer_token_env_var = "{TOKEN}"'] if address.with_token else []
        return "\n".join([self._header, *lines, f"tool_timeout_sec = {_CODEX_TIMEOUT}"])

    def merged(self, text: str, address: ServerAddress) -> str:
        """The text with the table in place of the old one, or at the end; all else, what else the table had too, is as
        it was. InvalidArgument if that cannot be done."""
        before: list[str] = []
        kept: list[str] = []
        after: list[str] = []
        inside = False
        for line in text.splitlines():
            if line.strip() == self._header:
                inside = True
            elif inside and line.startswith("["):
                inside, after = False, [line]
            elif not inside:
                (after if after else before).append(line)
            elif line.strip() and line.partition("=")[0].strip() not in _OURS_IN_CODEX:
                kept.append(line)
        table = "\n".join([self.table(address), *kept])
        parts = ["\n".join(before).rstrip(), table, "\n".join(after)]
        merged = "\n\n".join(part for part in parts if part) + "\n"
        old, new = self._contents(text, merged, "add")
        if _without_ours(old, _OURS_IN_CODEX) != _without_ours(new, _OURS_IN_CODEX):
            raise InvalidArgument("The file cannot be changed safely; add the entry by hand.")
        return merged

    def removed(self, text: str) -> str:
        """The text without the table and those below it, such as its `env`; an empty text if nothing is left. The same
        text if it has no such table. InvalidArgument if that cannot be done."""
        kept: list[str] = []
        between: list[str] = []
        inside = False
        for line in text.splitlines(keepends=True):
            if line.startswith("["):
                was_inside, inside = inside, line.startswith((self._header, f"[mcp_servers.{NAME}."))
                if was_inside and not inside:
                    kept += between  # comments above a table are about that one
            if not inside:
                kept.append(line)
            elif line.lstrip().startswith("#"):
                between.append(line)
            elif line.strip():
                between = []
        if inside:
            kept += between
        old, _ = self._contents(text, "", "remove")
        if not is_ours(old.get("mcp_servers", {}).get(NAME)):
            return text
        removed = "".join(kept).rstrip()
        removed += "\n" if removed else ""
        _, new = self._contents("", removed, "remove")
        if _without_ours(old) != _without_ours(new) or NAME in new.get("mcp_servers", {}):
            raise InvalidArgument("The file cannot be changed safely; remove the entry by hand.")
        return removed

    def registered(self, text: str) -> ServerAddress | None:
        """What the entry says; None if there is no entry that `merged` could have written."""
        try:
            return _address_in(tomllib.loads(text)["mcp_servers"][NAME], "url")
        except (tomllib.TOMLDecodeError, TypeError, KeyError):
            return None

    def _contents(self, old: str, new: str, action: str) -> tuple[dict[str, Any], dict[str, Any]]:
        try:
            return tomllib.loads(old), tomllib.loads(new)
        except tomllib.TOMLDecodeError as error:
            problem = f"The file cannot be changed safely ({error}); {action} the entry by hand."
            raise InvalidArgument(problem) from None


def _without_ours(content: Mapping[str, Any], fields: Sequence[str] | None = None) -> dict[str, Any]:
    """The content of a file without these fields of our entry; without the whole entry if none are named."""
    servers = dict(content.get("mcp_servers", {}))
    ours = servers.pop(NAME, {})
    kept = {} if fields is None else {name: value for name, value in ours.items() if name not in fields}
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
_VSCODE = JsonDialect("servers", _OF_ENVIRONMENT, has_type=True)
_CODEX = CodexFile()
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
    "vscode": _json_host("Add to .vscode/mcp.json:", lambda: Path(".vscode", "mcp.json"), _VSCODE),
    "codex": McpHost(
        lambda address: f"Add to ~/.codex/config.toml:\n{_CODEX.table(address)}",
        lambda: Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml",
        _CODEX,
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
VSCODE_USER = _json_host(
    "Add to the mcp.json of your user profile (MCP: Open User Configuration):",
    lambda: files_of("vscode", os.environ, Path())[1],
    _VSCODE,
)
"""VS Code, for all projects of this user."""


# -- installing and removing --------------------------------------------------------------------------------------


def install_by_command(address: ServerAddress, *, yes: bool) -> int:
    """Claude Code changes its file all the time; only it can write to it safely."""
    executable = find_executable(os.environ.get(variable_of("claude_path", Settings)))
    present = entry_in_claude_code()
    wanted: Entry = {"url": address.url}
    if address.url is None:
        wanted = {"command": address.command[0], "args": [*address.command[1:]]}
    if isinstance(present, dict) and present and wanted.items() <= present.items():
        print(f"{user_file(os.environ)} has it already.")
        return int(ExitCode.DONE)
    commands = [claude_code_arguments(executable, address)]
    if present:
        commands.insert(0, [executable, "mcp", "remove", "--scope", "user", NAME])
    return _run_commands(commands, yes=yes)


def remove_by_command(*, yes: bool) -> int:
    """Removes the entry by Claude Code's own command, as `install_by_command` added it."""
    if not is_ours(entry_in_claude_code()):
        return _nothing_to_remove(user_file(os.environ))
    executable = find_executable(os.environ.get(variable_of("claude_path", Settings)))
    return _run_commands([[executable, "mcp", "remove", "--scope", "user", NAME]], yes=yes)


def entry_in_claude_code() -> Any:
    """The entry of this server for all projects; None if it is missing or the file cannot be read, about which Claude
    Code's own command says more."""
    try:
        return json.loads(user_file(os.environ).read_bytes())["mcpServers"][NAME]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run_commands(commands: Sequence[Sequence[str]], *, yes: bool) -> int:
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
    before = _text_of(file)
    after = merged(before, address)
    if after == before:
        print(f"{file} has it already.")
        return int(ExitCode.DONE)
    _print_difference(file, before, after)
    if not yes and not agreed(f"Write {file}?"):
        return failed("Nothing was changed.", ExitCode.REFUSED)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(file, before, after)
    except OSError as error:
        raise ClaudeCodeError(f"{file} cannot be written: {error.strerror}.") from None
    print(f"Written: {file}" + (f" (before: {file.name}.bak)" if before else ""))
    return int(ExitCode.DONE)


def has_entry(host: McpHost) -> bool:
    """Whether the file of a client has an entry of this server. InvalidArgument if it cannot be read."""
    if host.file is None or host.dialect is None:
        return False
    text = _text_of(host.file())
    return host.dialect.removed(text) != text


def remove_from_file(file: Path, dialect: JsonDialect | CodexFile, *, yes: bool) -> int:
    """Removes the entry. Restores the exact file from before `--install` if nothing else has changed in it since;
    deletes a file in which nothing is left."""
    file = file.resolve()
    before = _text_of(file)
    after = dialect.removed(before)
    if after == before:
        return _nothing_to_remove(file)
    backup = file.with_name(f"{file.name}.bak")
    original = _text_of(backup) if backup.is_file() else ""
    address = dialect.registered(before)
    restores = bool(original) and address is not None and _adds(dialect, original, address, before)
    if restores:
        after = original
    _print_difference(file, before, after)
    if not yes and not agreed(f"Write {file}?" if after else f"Delete {file}, in which nothing else is left?"):
        return failed("Nothing was changed.", ExitCode.REFUSED)
    try:
        if after:
            _write(file, before, after)
        else:
            file.unlink()
        if restores or (not after and original and not dialect.removed(original)):
            backup.unlink()  # the file itself is that, or it had nothing but our entry too
    except OSError as error:
        raise ClaudeCodeError(f"{file} cannot be changed: {error.strerror}.") from None
    print(f"Written: {file}" if after else f"Deleted: {file}")
    return int(ExitCode.DONE)


def _adds(dialect: JsonDialect | CodexFile, original: str, address: ServerAddress, present: str) -> bool:
    """Whether `--install` has made the present text from the original."""
    try:
        return dialect.removed(original) == original and dialect.merged(original, address) == present
    except InvalidArgument:
        return False


def _nothing_to_remove(file: Path) -> int:
    print(f"{file} has no entry of this server; there is nothing to remove.")
    return int(ExitCode.DONE)


def _text_of(file: Path) -> str:
    """The text with the line ends that it has; empty if there is no file."""
    try:
        return file.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file} cannot be read: {error}") from None


def _print_difference(file: Path, before: str, after: str) -> None:
    difference = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), n=1, lineterm="")
    print("\n".join(map(visible, difference)), flush=True)


def _write(file: Path, before: str, after: str) -> None:
    """Writes the file in one step, since the client may read it at any moment, and with the mode that it has; a new one
    is for its owner alone, since entries of clients often hold tokens. Keeps the text before as `.bak`."""
    mode = file.stat().st_mode & 0o777 if file.exists() else FILE
    if before:
        replace_file(file.with_name(f"{file.name}.bak"), before.encode(), mode)
    replace_file(file, after.encode(), mode)
