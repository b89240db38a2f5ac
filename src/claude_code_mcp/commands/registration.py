"""How clients are told of this server: the entry of each, for a program or a URL, and where it is kept. Pure but for
looking at how this program was installed."""

import json
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from ..claude.executable import bundled_executable
from ..errors import InvalidArgument

NAME = "claude-code"
TOKEN = "CLAUDE_CODE_MCP_TOKEN"  # noqa: S105 - the name of a variable
_PACKAGE = "claude-code-mcp"
_CACHE = re.compile(r"(archive|builds|environments)-v\d+")
"""The directories of uv's cache that it makes environments in, and clears."""
_CODEX_TIMEOUT = 120
Entry = dict[str, Any]
_OURS = frozenset({"type", "command", "args", "url", "headers"})
"""What an entry is written with; whatever else an older one has, such as `env`, stays."""
_OURS_IN_CODEX = ("command", "args", "url", "bearer_token_env_var", "tool_timeout_sec")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """What a client is told: a command that it starts, or a URL."""

    command: Sequence[str] = ()
    url: str | None = None
    with_token: bool = False

    def entry(self, reference: str) -> Entry:
        """The usual entry; `reference` is how the client's file refers to the variable with the token."""
        if self.url is None:
            return {"command": self.command[0], "args": list(self.command[1:])}
        headers = {"headers": {"Authorization": f"Bearer {reference}"}} if self.with_token else {}
        return {"type": "http", "url": self.url, **headers}


# -- the command --------------------------------------------------------------------------------------------------


def own_command() -> list[str]:
    """What starts this very installation: uvx if it is in uv's cache, which may be cleared at any time; else the script
    beside the interpreter, else one on PATH, else the module."""
    if any(_CACHE.fullmatch(part) for part in Path(sys.prefix).parts):
        return [shutil.which("uvx") or "uvx", "--from", _requirement(), _PACKAGE]
    beside = Path(sys.executable).with_name(_PACKAGE + (".exe" if os.name == "nt" else ""))
    if beside.exists():
        return [str(beside)]
    on_path = shutil.which(_PACKAGE)
    return [on_path] if on_path else [sys.executable, "-m", "claude_code_mcp"]


def _requirement() -> str:
    """What uvx is to install: the directory or repository that this was installed from, else the package by name; with
    the extra that brings a CLI if that is there."""
    name = f"{_PACKAGE}[cli]" if bundled_executable() else _PACKAGE
    try:
        origin = json.loads(metadata.distribution(_PACKAGE).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        origin = {}
    url = origin.get("url")
    if not url:
        return name
    if "vcs_info" in origin:
        return f"{name} @ {origin['vcs_info'].get('vcs', 'git')}+{url}"
    path = unquote(urlsplit(url).path) if url.startswith("file:") else url
    return path + name.removeprefix(_PACKAGE)


# -- the clients --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class McpHost:
    """A client: where its entry goes, and how the entry is written."""

    instructions: Callable[[ServerAddress], str]
    """What a person is told to do."""
    file: Callable[[], Path] | None = None
    merged: Callable[[str, ServerAddress], str] | None = None
    """The text of its file with the entry in it. InvalidArgument if the file cannot be read."""


def _json_entry(key: str, reference: str, *, typed: bool = False) -> Callable[[ServerAddress], Entry]:
    def wrapped(address: ServerAddress) -> Entry:
        entry = address.entry(reference)
        if typed and address.url is None:
            entry = {"type": "stdio", **entry}
        return {key: {NAME: entry}}

    return wrapped


def _json_host(
    shown: str, file: Callable[[], Path] | None, key: str, reference: str, *, typed: bool = False
) -> McpHost:
    """A client with a JSON file, in which an object under `key` has an entry for each server."""
    wrapped = _json_entry(key, reference, typed=typed)

    def instructions(address: ServerAddress) -> str:
        return f"{shown}\n{json.dumps(wrapped(address), indent=2)}"

    def merged(text: str, address: ServerAddress) -> str:
        try:
            content = json.loads(text) if text.strip() else {}
            servers = content.setdefault(key, {})
            kept = {name: value for name, value in servers.get(NAME, {}).items() if name not in _OURS}
            servers[NAME] = {**wrapped(address)[key][NAME], **kept}
        except (ValueError, TypeError, AttributeError):
            raise InvalidArgument("The file is not plain JSON with an object in it; add the entry by hand.") from None
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    return McpHost(instructions, file, merged if file is not None else None)


def _claude_code(address: ServerAddress) -> str:
    return f"Run:\n{shlex.join(claude_code_arguments('claude', address))}"


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


def _desktop_file() -> Path:
    name = "claude_desktop_config.json"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "Claude" / name
    base = os.environ.get("APPDATA") if os.name == "nt" else os.environ.get("XDG_CONFIG_HOME")
    return Path(base or Path.home() / ".config") / "Claude" / name


_PLAIN = f"${{{TOKEN}}}"
_OF_ENVIRONMENT = f"${{env:{TOKEN}}}"
HOSTS: dict[str, McpHost] = {
    "claude-code": McpHost(_claude_code),
    "claude-desktop": _json_host(
        "Add to claude_desktop_config.json (Settings, Developer, Edit Config):", _desktop_file, "mcpServers", _PLAIN
    ),
    "cursor": _json_host(
        "Add to ~/.cursor/mcp.json:", lambda: Path.home() / ".cursor" / "mcp.json", "mcpServers", _OF_ENVIRONMENT
    ),
    "vscode": _json_host(
        "Add to .vscode/mcp.json:", lambda: Path(".vscode", "mcp.json"), "servers", _OF_ENVIRONMENT, typed=True
    ),
    "codex": McpHost(
        lambda address: f"Add to ~/.codex/config.toml:\n{_codex_table(address)}",
        lambda: Path(os.environ.get("CODEX_HOME") or Path.home() / ".codex") / "config.toml",
        _codex_merged,
    ),
    "generic": _json_host("The entry that most clients take:", None, "mcpServers", _PLAIN),
}
