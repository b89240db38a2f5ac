"""Where servers are configured, and what all those files say together.

Order, the first that has a name wins: our own file, `~/.claude.json` for this project, `.mcp.json` in the project,
`~/.claude.json` for all projects. An entry that cannot be used hides nothing and breaks nothing: it becomes a problem
that names the file and the entry.
"""

import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from ..model.own_server import is_this_server
from .config_entry import ConfigScope, InvalidEntry, ServerConfig, StdioConfig, parse_entry

_KEY = "mcpServers"
_ITSELF = "it is this server itself"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


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
    """One server to connect to, and where that is said."""

    name: str
    config: ServerConfig
    scope: ConfigScope
    file: Path | None = None
    barred: str | None = None
    """Why it is not to be used until somebody enables it."""
    locked: bool = False
    """Whether only a change of the configuration can lift that, and no call of a tool: the server was never approved
    by a person, or it is this very server."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """All servers by name, and everything that was wrong."""

    servers: Mapping[str, ConfiguredServer] = field(default_factory=dict)
    problems: Sequence[ConfigProblem] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """The files to read."""

    own_file: Path
    claude_file: Path | None = None
    project: Path | None = None

    @classmethod
    def usual(cls, home: Path, project: Path | None = None, own_file: Path | None = None) -> "Places":
        return cls(own_file or default_own_file(), home / ".claude.json", project)


def default_own_file() -> Path:
    """Where our own servers are configured unless somebody says otherwise."""
    return Path(platformdirs.user_config_dir("claude-code-mcp")) / "mcp.json"


def read_configuration(places: Places, environment: Mapping[str, str], *, trust_project: bool = False) -> HubConfig:
    """Everything that the files say. Without trust, servers of `.mcp.json` count only when Claude Code has them
    approved for the project: a checkout must not be able to start programs by itself."""
    problems: list[ConfigProblem] = []
    claude_file = places.claude_file
    claude = _read(claude_file, problems) if claude_file else {}
    own = _read(places.own_file, problems)
    project_file = places.project / ".mcp.json" if places.project else None
    project = _read(project_file, problems) if project_file else {}
    settings = _project_settings(claude, places.project)
    found = [
        *_entries(own, places.own_file, ConfigScope.OWN, environment, problems),
        *(_entries(settings, claude_file, ConfigScope.LOCAL, environment, problems) if claude_file else ()),
        *(_entries(project, project_file, ConfigScope.PROJECT, environment, problems) if project_file else ()),
        *(_entries(claude, claude_file, ConfigScope.USER, environment, problems) if claude_file else ()),
    ]
    servers: dict[str, ConfiguredServer] = {}
    for server in found:
        servers.setdefault(server.name, _barred(server, settings, trust_project))
    return HubConfig(servers, problems)


def parse_servers(
    raw: Mapping[str, Any],
    environment: Mapping[str, str],
    scope: ConfigScope = ConfigScope.OWN,
    file: Path | None = None,
) -> HubConfig:
    """The same for a mapping of servers that is at hand."""
    problems: list[ConfigProblem] = []
    servers = _entries({_KEY: raw}, file or Path("-"), scope, environment, problems)
    return HubConfig({server.name: _barred(server, {}, trust_project=True) for server in servers}, problems)


def _read(file: Path, problems: list[ConfigProblem]) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        problems.append(ConfigProblem(file, None, f"cannot be read: {error}"))
        return {}
    if isinstance(content, dict):
        return content
    problems.append(ConfigProblem(file, None, "must be an object"))
    return {}


def _project_settings(claude: Mapping[str, Any], project: Path | None) -> Mapping[str, Any]:
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


def _barred(server: ConfiguredServer, settings: Mapping[str, Any], trust_project: bool) -> ConfiguredServer:
    # What locks comes first: an entry must not get out of the lock by calling itself disabled.
    locked = _itself(server) or _unapproved(server, settings, trust_project)
    if locked is not None:
        return replace(server, barred=locked, locked=True)
    if server.config.disabled:
        return replace(server, barred="disabled in its configuration")
    if server.name in _names(settings, "disabledMcpServers"):
        return replace(server, barred="disabled for this project in Claude Code")
    return server


def _itself(server: ConfiguredServer) -> str | None:
    config = server.config
    return _ITSELF if isinstance(config, StdioConfig) and is_this_server(config.command, config.args) else None


def bar_address(configuration: HubConfig, host: str, port: int) -> HubConfig:
    """The same without the servers at an address, which is our own."""
    servers = {
        name: replace(server, barred=_ITSELF, locked=True) if _leads_to(server.config, host, port) else server
        for name, server in configuration.servers.items()
    }
    return HubConfig(servers, configuration.problems)


def _leads_to(config: ServerConfig, host: str, port: int) -> bool:
    address = getattr(config, "url", None)
    try:
        parts = urlsplit(address or "")
        return parts.port == port and parts.hostname in {*_LOOPBACK, host.lower(), socket.gethostname().lower()}
    except ValueError:
        return False


def _unapproved(server: ConfiguredServer, settings: Mapping[str, Any], trust_project: bool) -> str | None:
    if server.scope is not ConfigScope.PROJECT:
        return None
    name = server.name
    if name in _names(settings, "disabledMcpjsonServers"):
        return "rejected for this project in Claude Code"
    if trust_project or settings.get("enableAllProjectMcpServers") is True:
        return None
    return None if name in _names(settings, "enabledMcpjsonServers") else "from .mcp.json, and not approved"


def _names(settings: Mapping[str, Any], key: str) -> list[str]:
    names = settings.get(key)
    return names if isinstance(names, list) else []
