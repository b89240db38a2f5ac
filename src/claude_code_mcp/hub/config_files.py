"""Which servers the hub has: the files that configure them, their order, and which entries may be used.

Order, the first that has a name wins: our own file, `~/.claude.json` for this project, `.mcp.json` in the project,
`~/.claude.json` for all projects. An entry that cannot be used hides nothing and breaks nothing: it becomes a problem
that names the file and the entry.

`hub_servers` is the only place that decides which files count; the server and the commands both ask it.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ..config import Settings
from ..model.mcp_servers import is_this_server
from ..private_files import read_regular
from .config_entry import InvalidEntry, ServerConfig, StdioConfig, parse_entry

_KEY = "mcpServers"
_LARGEST = 64 << 20
"""Bytes of a file that is read."""
_ITSELF = "it is this server itself"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ConfigScope(StrEnum):
    """Where an entry comes from. Of entries with one name, the one of the first scope in this order counts."""

    OWN = "own"
    """A file of this product's own."""
    LOCAL = "local"
    """`~/.claude.json`, for one project."""
    PROJECT = "project"
    """`.mcp.json` in the project: its authors are not trusted, so it is used only when a person approved it."""
    USER = "user"
    """`~/.claude.json`, for all projects."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """Something in a file that cannot be used; `entry` is None where it is the whole file."""

    file: Path
    entry: str | None
    message: str

    def __str__(self) -> str:
        where = f"{self.file}: {_KEY}.{self.entry}" if self.entry else str(self.file)
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class ConfiguredServer:
    """One server to connect to, and the file that configures it."""

    name: str
    config: ServerConfig
    scope: ConfigScope
    file: Path | None = None
    barred: str | None = None
    """Why it is not to be used until it is enabled; None when it may be used."""
    locked: bool = False
    """Whether only a change of the configuration can lift that, and no call of a tool: the server was never approved
    by a person, or it is this very server."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """All servers by name, and everything that was wrong."""

    servers: Mapping[str, ConfiguredServer] = field(default_factory=dict)
    problems: Sequence[ConfigProblem] = ()


@dataclass(frozen=True, slots=True)
class ConfigPaths:
    """The files to read; those that are None are not read."""

    own_file: Path
    claude_file: Path | None = None
    project: Path | None = None


def hub_servers(
    settings: Settings,
    environment: Mapping[str, str],
    project: Path,
    extent: Literal["off", "own", "all"] | None = None,
) -> HubConfig:
    """The servers that the hub has for a project directory; `extent` overrides the setting `hub`. Blocks on the disk.

    Links in the project's path are resolved, since that is how Claude Code names projects in its file.
    """
    extent = extent or settings.hub
    if extent == "off":
        return HubConfig()
    if extent == "own":
        return read_configuration(ConfigPaths(settings.hub_file), environment)
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    claude_file = Path(home or Path.home()) / ".claude.json"
    return read_configuration(ConfigPaths(settings.hub_file, claude_file, project.resolve()), environment)


def read_configuration(paths: ConfigPaths, environment: Mapping[str, str], *, trust_project: bool = False) -> HubConfig:
    """Everything that the files say. Without trust, servers of `.mcp.json` count only when Claude Code has them
    approved for the project: a checkout must not be able to start programs by itself."""
    problems: list[ConfigProblem] = []
    claude_file = paths.claude_file
    claude = _read(claude_file, problems) if claude_file else {}
    own = _read(paths.own_file, problems)
    project_file = paths.project / ".mcp.json" if paths.project else None
    project = _read(project_file, problems) if project_file else {}
    approvals = _project_settings(claude, paths.project)
    candidates = [
        *_entries(own, paths.own_file, ConfigScope.OWN, environment, problems),
        *(_entries(approvals, claude_file, ConfigScope.LOCAL, environment, problems) if claude_file else ()),
        *(_entries(project, project_file, ConfigScope.PROJECT, environment, problems) if project_file else ()),
        *(_entries(claude, claude_file, ConfigScope.USER, environment, problems) if claude_file else ()),
    ]
    servers: dict[str, ConfiguredServer] = {}
    for server in candidates:
        servers.setdefault(server.name, _bar(server, approvals, trust_project))
    return HubConfig(servers, problems)


def parse_servers(
    raw: Mapping[str, Any],
    environment: Mapping[str, str],
    scope: ConfigScope = ConfigScope.OWN,
    file: Path | None = None,
) -> HubConfig:
    """The servers of a mapping as it stands under `mcpServers`; all of it is trusted."""
    problems: list[ConfigProblem] = []
    servers = _entries({_KEY: raw}, file or Path("-"), scope, environment, problems)
    return HubConfig({server.name: _bar(server, {}, trust_project=True) for server in servers}, problems)


def bar_address(configuration: HubConfig, host: str, port: int) -> HubConfig:
    """Locks the servers at an address, which is the one that we serve at ourselves."""
    servers = {
        name: replace(server, barred=_ITSELF, locked=True) if _leads_to(server.config, host, port) else server
        for name, server in configuration.servers.items()
    }
    return HubConfig(servers, configuration.problems)


def _read(file: Path, problems: list[ConfigProblem]) -> Mapping[str, Any]:
    try:
        content = json.loads(read_regular(file, _LARGEST))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(ConfigProblem(file, None, f"cannot be read: {error}"))
        return {}
    if isinstance(content, dict):
        return content
    problems.append(ConfigProblem(file, None, "must be an object"))
    return {}


def _project_settings(claude: Mapping[str, Any], project: Path | None) -> Mapping[str, Any]:
    """What Claude Code's file says of one project: its own servers, and which of `.mcp.json` are approved."""
    projects = claude.get("projects")
    settings = projects.get(str(project)) if isinstance(projects, dict) and project else None
    return settings if isinstance(settings, dict) else {}


def _entries(
    content: Mapping[str, Any],
    file: Path,
    scope: ConfigScope,
    environment: Mapping[str, str],
    problems: list[ConfigProblem],
) -> Iterator[ConfiguredServer]:
    entries = content.get(_KEY, {})
    if not isinstance(entries, dict):
        problems.append(ConfigProblem(file, None, f"{_KEY} must be an object"))
        return
    for name, raw in entries.items():
        try:
            yield ConfiguredServer(name, parse_entry(name, raw, environment), scope, file)
        except InvalidEntry as error:
            problems.append(ConfigProblem(file, name, str(error)))


def _bar(server: ConfiguredServer, approvals: Mapping[str, Any], trust_project: bool) -> ConfiguredServer:
    """The server, barred where it is not to be used."""
    # What locks comes first: an entry must not get out of the lock by calling itself disabled.
    config = server.config
    if isinstance(config, StdioConfig) and is_this_server(config.command, config.args):
        return replace(server, barred=_ITSELF, locked=True)
    unapproved = _unapproved(server, approvals, trust_project)
    if unapproved is not None:
        return replace(server, barred=unapproved, locked=True)
    if config.disabled:
        return replace(server, barred="disabled in its configuration")
    if server.name in _names(approvals, "disabledMcpServers"):
        return replace(server, barred="disabled for this project in Claude Code")
    return server


def _unapproved(server: ConfiguredServer, approvals: Mapping[str, Any], trust_project: bool) -> str | None:
    """Why a server of `.mcp.json` may not be used; None for one that may, and for those of other files."""
    if server.scope is not ConfigScope.PROJECT:
        return None
    if server.name in _names(approvals, "disabledMcpjsonServers"):
        return "rejected for this project in Claude Code"
    if trust_project or approvals.get("enableAllProjectMcpServers") is True:
        return None
    return None if server.name in _names(approvals, "enabledMcpjsonServers") else "from .mcp.json, and not approved"


def _leads_to(config: ServerConfig, host: str, port: int) -> bool:
    address = getattr(config, "url", None)
    try:
        parts = urlsplit(address or "")
        return parts.port == port and parts.hostname in {*_LOOPBACK, host.lower(), socket.gethostname().lower()}
    except ValueError:
        return False


def _names(approvals: Mapping[str, Any], key: str) -> list[str]:
    names = approvals.get(key)
    return names if isinstance(names, list) else []
