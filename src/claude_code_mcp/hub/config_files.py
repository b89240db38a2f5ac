"""Reads the hub's servers from all configuration files.  If several files have an entry with the same name, the first
counts, in this order: the organization's servers, the hub's own file, `~/.claude.json` for this project, `.mcp.json` in
the project and then in the directories above it, `~/.claude.json` for all projects. An entry that cannot be used
affects no other entry: it is reported as a problem with the file and the entry. An entry that the organization does not
allow is listed as barred, with the reason.

Only `hub_servers` decides which files count; the server and the commands both call it.
"""

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from ..core.config import Settings
from ..core.json_text import decode_with_comments
from ..core.model.paths import config_directory, user_file
from ..core.model.tool_names import is_this_server
from .approvals import Approvals, is_trusted, is_trusted_by_operator, project_entry, project_roots, read_approvals
from .config_entry import (
    InvalidEntry,
    ServerConfig,
    StdioConfig,
    input_defaults,
    parse_entry,
    read_text,
    section_of,
)
from .organization import SETTINGS, Organization, managed_directory, managed_files, read_organization
from .program_place import AS_CONFIGURED, ProgramPlace

_KEY = "mcpServers"
_ITSELF = "it is this server itself"
_OPEN_TO_SESSIONS = (
    "from a .mcp.json that sessions in a sandbox can write to; if you trust it, `claude-code-mcp mcp import {} {}` "
    "copies it into the hub's file"
)
_SETTINGS = ("settings.json", "settings.local.json")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ConfigScope(StrEnum):
    """The kind of file that an entry comes from. Of entries with the same name, the one in the first scope counts."""

    MANAGED = "managed"
    """Provided by the organization (`managedMcpServers` in its settings, `managed-mcp.json`)."""
    OWN = "own"
    """The hub's own file."""
    LOCAL = "local"
    """`~/.claude.json`, for one project."""
    PROJECT = "project"
    """`.mcp.json` in the project or above it: its authors are not trusted, so it needs an approval."""
    USER = "user"
    """`~/.claude.json`, for all projects."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """An unusable part of a file; `entry` is None if it is the whole file."""

    file: Path
    entry: str | None
    message: str
    open_to_sessions: bool = False
    """Whether it is a file of the project that sandboxed sessions can write to."""

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
    """Why it must not be used until enabled; None if it may be used."""
    locked: bool = False
    """Whether only a configuration change can lift that, not a tool call: the server was never approved by a person, or
    it is this server itself."""
    written: object = field(default=None, compare=False, repr=False)
    """Its entry as in the file, which an organization's lists also apply to."""


@dataclass(frozen=True, slots=True)
class HubConfig:
    """All servers by name, and all problems."""

    servers: Mapping[str, ConfiguredServer] = field(default_factory=dict)
    problems: Sequence[ConfigProblem] = ()

    @property
    def is_incomplete(self) -> bool:
        """Whether an unreadable file is missing from it, as during an edit. Files that sandboxed sessions can write to
        are never missing, because they do not count."""
        return any(problem.entry is None and not problem.open_to_sessions for problem in self.problems)


@dataclass(frozen=True, slots=True)
class ConfigPaths:
    """The files to read; those that are None are not read."""

    own_file: Path
    claude_file: Path | None = None
    project: Path | None = None
    user_settings: Path | None = None
    trusted: tuple[str, ...] = ()
    """Directories whose projects the operator trusts, `*` for all."""
    programs: ProgramPlace = AS_CONFIGURED
    """Which directories are open to sandboxed sessions."""
    managed: Path = field(default_factory=lambda: managed_directory())  # noqa: PLW0108 - looked up when it is called
    """The directory of the organization's settings, which always count."""


def hub_servers(
    settings: Settings,
    environment: Mapping[str, str],
    project: Path,
    extent: Literal["off", "own", "all"] | None = None,
    programs: ProgramPlace = AS_CONFIGURED,
) -> HubConfig:
    """The servers that the hub has for a project; `extent` overrides the setting `hub`. Blocks on the disk."""
    paths = hub_paths(settings, environment, project, extent)
    return HubConfig() if paths is None else read_configuration(replace(paths, programs=programs), environment)


def hub_paths(
    settings: Settings,
    environment: Mapping[str, str],
    project: Path,
    extent: Literal["off", "own", "all"] | None = None,
) -> ConfigPaths | None:
    """The files that count; None if there are none. Links in the project's path are resolved, as in the project names
    of `~/.claude.json`."""
    extent = extent or settings.hub
    if extent == "off":
        return None
    if extent == "own":
        return ConfigPaths(settings.hub_file)
    return ConfigPaths(
        settings.hub_file,
        user_file(environment),
        project.resolve(),
        Path(config_directory(environment)) / "settings.json",
        settings.trusted_projects,
    )


def read_configuration(paths: ConfigPaths, environment: Mapping[str, str], *, trust_project: bool = False) -> HubConfig:
    """Read all files. Unless the project is trusted, servers of `.mcp.json` count only if a person approved them for
    the project: a checkout must not be able to start programs. Like Claude Code, this approves servers by name, which
    would let sandboxed sessions change an approved entry. So entries of a file that they can write to are listed as
    barred, unless another entry has the same name; copying one into the hub's file approves its contents. Project
    settings that sandboxed sessions can write to are ignored too, because one session would write them for all."""
    reader = _Reader(environment, _open_files(paths))
    claude = reader.read(paths.claude_file)
    roots = project_roots(paths.project) if paths.project else []
    approvals = _approvals(reader, paths, claude, roots, trust_project)
    reader.organization = _organization(reader, paths, roots, environment)
    candidates: list[ConfiguredServer] = []
    if paths.claude_file is not None:
        provided, settings = {_KEY: reader.organization.provided}, paths.managed / SETTINGS
        candidates += reader.entries(provided, settings, ConfigScope.MANAGED)
        if reader.organization.servers_file is not None:
            managed = reader.organization.servers_file
            candidates += reader.entries(reader.read(managed), managed, ConfigScope.MANAGED)
    candidates += reader.entries(reader.read(paths.own_file), paths.own_file, ConfigScope.OWN)
    for root in roots:
        candidates += reader.entries(project_entry(claude, root), paths.claude_file, ConfigScope.LOCAL)
    shown: list[ConfiguredServer] = []
    for file in project_files(paths):
        found = shown if file in reader.open_files else candidates
        found += reader.entries(reader.read(file), file, ConfigScope.PROJECT)
    candidates += reader.entries(claude, paths.claude_file, ConfigScope.USER)
    servers: dict[str, ConfiguredServer] = {}
    for server in (*candidates, *shown):
        servers.setdefault(server.name, _bar(server, approvals, reader.open_files))
    return HubConfig(servers, reader.problems)


def with_later_denials(configuration: HubConfig, paths: ConfigPaths, environment: Mapping[str, str]) -> HubConfig:
    """The configuration without servers that the organization, the user or the project no longer allows. Nothing else
    is read again, and nothing new is allowed. Blocks on the disk."""
    roots = project_roots(paths.project) if paths.project else []
    organization = _organization(_Reader(environment, _open_files(paths)), paths, roots, environment)
    servers = dict(configuration.servers)
    for name, server in servers.items():
        managed = server.scope is ConfigScope.MANAGED
        objection = organization.objection(name, server.config, server.written, managed=managed)
        if objection is not None and not server.locked:
            servers[name] = replace(server, barred=objection, locked=True)
    return replace(configuration, servers=servers)


def denial_files(paths: ConfigPaths) -> list[Path]:
    """The files whose changes may deny servers, for any project. Blocks on the disk."""
    settings = paths.user_settings
    files = managed_files(paths.managed, settings.parent if settings is not None else None)
    return [*files, *([settings] if settings is not None else [])]


def project_files(paths: ConfigPaths) -> list[Path]:
    """The `.mcp.json` of the project and of all directories above it, the nearest first. Files of other users above the
    project are skipped, because any user may write to a directory such as /tmp."""
    if paths.project is None:
        return []
    above = [directory / ".mcp.json" for directory in paths.project.parents]
    return [paths.project / ".mcp.json", *(file for file in above if _is_ours(file))]


def watched_files(paths: ConfigPaths) -> list[Path]:
    """The files whose changes may change the servers, including files that do not exist yet."""
    files = [paths.own_file, paths.own_file.resolve(), *filter(None, (paths.claude_file, paths.user_settings))]
    files += managed_files(paths.managed, paths.user_settings.parent if paths.user_settings is not None else None)
    if paths.project is not None:
        files += [directory / ".mcp.json" for directory in (paths.project, *paths.project.parents)]
        files += _project_settings(project_roots(paths.project), *_SETTINGS)
    return list(dict.fromkeys(files))


def _project_settings(roots: Sequence[Path], *names: str) -> list[Path]:
    """The paths of the settings of a project and of its repository."""
    return [root / ".claude" / name for root in roots[:2] for name in names]


def _open_files(paths: ConfigPaths) -> frozenset[Path]:
    """The files of the project that sandboxed sessions can write to."""
    if paths.project is None:
        return frozenset()
    files = [*project_files(paths), *_project_settings(project_roots(paths.project), *_SETTINGS)]
    return frozenset(file for file in files if paths.programs.is_open(file))


def _organization(
    reader: "_Reader", paths: ConfigPaths, roots: Sequence[Path], environment: Mapping[str, str]
) -> Organization:
    """The organization's lists; if Claude Code's own files are read, also the user's and the project's."""
    config_dir: Path | None = None
    user: Mapping[str, Any] = {}
    projects: list[Mapping[str, Any]] = []
    if paths.user_settings is not None:
        projects = [reader.settled(file) for file in _project_settings(roots, *_SETTINGS)]
        config_dir, user = paths.user_settings.parent, reader.read(paths.user_settings)
    found = read_organization(paths.managed, environment, config_dir, user, projects)
    reader.problems += [ConfigProblem(paths.managed / SETTINGS, key, problem) for key, problem in found.problems]
    return found


def _is_ours(file: Path) -> bool:
    try:
        return not hasattr(os, "geteuid") or file.stat().st_uid in (os.geteuid(), 0)
    except OSError:
        return False


def _approvals(
    reader: "_Reader", paths: ConfigPaths, claude: Mapping[str, Any], roots: Sequence[Path], trust_project: bool
) -> Approvals:
    if paths.project is None:
        return Approvals()
    trusted = [*(project_entry(claude, root) for root in roots), reader.read(paths.user_settings)]
    # A session that can write to the project could use its settings to approve or reject servers above it.
    local = [reader.settled(file) for file in _project_settings(roots, "settings.local.json")]
    shared = [reader.settled(file) for file in _project_settings(roots, "settings.json")]
    by_person = is_trusted(claude, [*roots, *paths.project.parents]) and not paths.programs.is_open(paths.project)
    approvals = read_approvals([*trusted, *(local if by_person else ())], [*local, *shared])
    trust_all = approvals.trusts_all or trust_project or is_trusted_by_operator(paths.project, paths.trusted)
    return replace(approvals, trusts_all=trust_all)


def bar_address(configuration: HubConfig, host: str, port: int) -> HubConfig:
    """Lock the servers at an address, which is our own."""
    servers = {
        name: replace(server, barred=_ITSELF, locked=True) if _leads_to(server.config, host, port) else server
        for name, server in configuration.servers.items()
    }
    return HubConfig(servers, configuration.problems)


class _Reader:
    """Reads files and their entries; an unusable one becomes a problem and affects nothing else."""

    def __init__(self, environment: Mapping[str, str], open_files: Collection[Path] = ()) -> None:
        self._environment = environment
        self.open_files = open_files
        self._contents: dict[Path, Mapping[str, Any]] = {}
        self.organization = Organization()
        self.problems: list[ConfigProblem] = []

    def read(self, file: Path | None) -> Mapping[str, Any]:
        """The object in a file; empty if there is none. A file is read only once, for consistency."""
        if file is None:
            return {}
        if file not in self._contents:
            self._contents[file] = self._read(file)
        return self._contents[file]

    def settled(self, file: Path) -> Mapping[str, Any]:
        """The object in a file; empty if sandboxed sessions can write to it."""
        return {} if file in self.open_files else self.read(file)

    def _read(self, file: Path) -> Mapping[str, Any]:
        try:
            content = decode_with_comments(read_text(file))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            self._of_file(file, f"cannot be read: {error}")
            return {}
        if isinstance(content, dict):
            return content
        self._of_file(file, "must be an object")
        return {}

    def _of_file(self, file: Path, message: str) -> None:
        self.problems.append(ConfigProblem(file, None, message, file in self.open_files))

    def entries(self, content: Mapping[str, Any], file: Path | None, scope: ConfigScope) -> Iterator[ConfiguredServer]:
        if file is None:
            return
        key, entries = section_of(content)
        if not isinstance(entries, dict):
            self._of_file(file, f"{key} must be an object")
            return
        defaults = input_defaults(content)
        for name, raw in entries.items():
            try:
                config = parse_entry(name, raw, self._environment, defaults, file.parent)
                unset = config.unset if isinstance(config, StdioConfig) else {}
                self.problems += [ConfigProblem(file, name, f"env.{key}: {why}") for key, why in unset.items()]
                managed = scope is ConfigScope.MANAGED
                objection = self.organization.objection(name, config, raw, managed=managed)
                yield ConfiguredServer(name, config, scope, file, objection, objection is not None, raw)
            except InvalidEntry as error:
                self.problems.append(ConfigProblem(file, name, str(error)))


def _bar(server: ConfiguredServer, approvals: Approvals, open_files: Collection[Path] = ()) -> ConfiguredServer:
    """The server, with the reason in `barred` if it must not be used, and locked if only a person can lift that."""
    # Locks come first: an entry must not escape the lock by declaring itself disabled.
    if server.locked:
        return server
    config = server.config
    if isinstance(config, StdioConfig) and is_this_server(config.command, config.args):
        return replace(server, barred=_ITSELF, locked=True)
    unapproved = approvals.objection(server.name) if server.scope is ConfigScope.PROJECT else None
    if server.scope is ConfigScope.PROJECT and server.file in open_files:
        unapproved = unapproved or _OPEN_TO_SESSIONS.format(server.file, server.name)
    if unapproved is not None:
        return replace(server, barred=unapproved, locked=True)
    if config.disabled:
        return replace(server, barred="disabled in its configuration")
    if server.name in approvals.disabled:
        return replace(server, barred="disabled for this project in Claude Code")
    return server


def _leads_to(config: ServerConfig, host: str, port: int) -> bool:
    address = getattr(config, "url", None)
    try:
        parts = urlsplit(address or "")
        return parts.port == port and parts.hostname in {*_LOOPBACK, host.lower(), socket.gethostname().lower()}
    except ValueError:
        return False
