"""An organization's rules on MCP servers in Claude Code's managed settings.

Claude Code enforces these lists in its own client, but not for servers that reach it through the hub; so the hub
enforces them. The sources, in a directory that only an administrator can write to and that no variable or setting can
move, are:

- `managed-settings.json` and `managed-settings.d/*.json`: `deniedMcpServers`, `allowedMcpServers` and
  `allowManagedMcpServersOnly`. Claude Code's own copy of settings that a server of the organization sent
  (`remote-settings.json`) counts too, and so does the policy of the device (macOS, Windows).
- `managedMcpServers` of the same settings, except `remote-settings.json`: remote servers that the organization provides
  to all.
- `managed-mcp.json`: if it exists, only its servers and the provided ones are allowed.

The lists in the user's own settings count as well: they may deny anything, and allow servers unless the organization
forbids that. A project's settings can only deny. A denial overrides every allowance. If a managed file or directory
exists but cannot be read, no server is allowed.
"""

import os
import plistlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..core.json_text import decode_with_comments
from .address_patterns import fits, matches, written
from .config_entry import MissingVariable, ServerConfig, StdioConfig, expand, read_text, texts_in

SETTINGS, DROP_INS, SERVERS = "managed-settings.json", "managed-settings.d", "managed-mcp.json"
REMOTE = "remote-settings.json"
"""In the configuration directory of Claude Code."""
_DENIED, _ALLOWED, _MANAGED_ONLY = "deniedMcpServers", "allowedMcpServers", "allowManagedMcpServersOnly"
_PROVIDED = "managedMcpServers"
_REMOTE_TYPES = ("http", "sse")
_PROGRAM_KEYS = ("command", "args", "headersHelper", "env", "envFile")
_KINDS = ("serverName", "serverCommand", "serverUrl")
_PROFILE = Path("/Library/Managed Preferences/com.anthropic.claudecode.plist")
_REGISTRY = r"SOFTWARE\Policies\ClaudeCode"
_OF_DIRECTORY = re.compile(r"\$\{(?:env:)?(?:workspaceFolder|PWD|CLAUDE_PROJECT_DIR)\}")
_RESTRUCTURES = re.compile(r"[/@#?\\:*\s]")
"""Characters that a variable within an allowed address must not contain."""

Entry = Mapping[str, Any]


def managed_directory() -> Path:
    """The directory of Claude Code's managed settings."""
    if sys.platform == "darwin":
        return Path("/Library/Application Support/ClaudeCode")
    if sys.platform == "win32":
        return Path(r"C:\Program Files\ClaudeCode")
    return Path("/etc/claude-code")


@dataclass(frozen=True, slots=True)
class Organization:
    """The effective lists. An `allowed` list that is None allows everything; of several lists, each must allow."""

    denied: Sequence[Entry] = ()
    allowed: Sequence[Sequence[Entry]] = ()
    unreadable: str = ""
    """The unreadable managed file and the reason; then nothing is allowed."""
    servers_file: Path | None = None
    """The file whose servers are the only allowed ones."""
    environment: Mapping[str, str] = field(default_factory=dict)
    provided: Mapping[str, Any] = field(default_factory=dict)
    """The entries of servers that the organization's settings provide, by name."""
    problems: Sequence[tuple[str, str]] = ()
    """Lists with invalid entries, and the reasons."""

    def objection(self, name: str, config: ServerConfig, raw: object, *, managed: bool) -> str | None:
        """Why a server may not be used; None if it may. `raw` is its entry as in the file; `managed` means that the
        organization itself provides it."""
        if self.unreadable:
            return f"the settings of your organization cannot be read: {self.unreadable}"
        if not managed and self.servers_file is not None:
            return f"only the servers that your organization provides may be used ({self.servers_file})"
        server = _Server(name, config, raw)
        if any(self._denies(entry, server) for entry in self.denied):
            return f"denied by your organization's Claude Code settings ({_DENIED})"
        if managed and not server.has_references:
            return None
        if not all(self._allows(entries, server) for entries in self.allowed):
            return f"not on the list that your organization's Claude Code settings allow ({_ALLOWED})"
        return None

    def _denies(self, entry: Entry, server: "_Server") -> bool:
        if "serverName" in entry:
            return bool(entry["serverName"] == server.name)
        if "serverCommand" in entry:
            denied = self._expanded(entry["serverCommand"])
            return any(_may_become(command, denied) for command in server.commands)
        pattern = self._expanded(entry["serverUrl"])
        return any(fits(address, pattern) for address in server.addresses)

    def _allows(self, entries: Sequence[Entry], server: "_Server") -> bool:
        """A list with commands restricts programs to them; one with addresses restricts remote servers to them."""
        by_command = [entry for entry in entries if "serverCommand" in entry]
        by_address = [entry for entry in entries if "serverUrl" in entry]
        if server.commands and by_command:
            allowed = [self._expanded(entry["serverCommand"]) for entry in by_command]
            return all(command in allowed for command in server.commands)
        if server.addresses and by_address:
            patterns = [self._expanded(entry["serverUrl"]) for entry in by_address if self._is_safe(entry["serverUrl"])]
            return all(any(fits(address, pattern) for pattern in patterns) for address in server.own_addresses)
        return any(entry.get("serverName") == server.name for entry in entries)

    def _expanded(self, value: Any) -> Any:
        try:
            return expand(value, self.environment)
        except MissingVariable:
            return value

    def _is_safe(self, pattern: str) -> bool:
        """Whether variables in an allowed address can only fill in a name."""
        names = re.findall(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)", pattern[: pattern.rfind("}") + 1])
        values = [self.environment.get(name, "") for name in names]
        return all(value and not _RESTRUCTURES.search(value) for value in values)


class _Server:
    """An entry in the forms that the lists are compared with: as written, and with its variables replaced."""

    def __init__(self, name: str, config: ServerConfig, raw: object) -> None:
        entry = raw if isinstance(raw, Mapping) else {}
        self.name = name
        self.commands: list[list[str]] = []
        self.addresses: list[str] = []
        self.own_addresses: list[str] = []
        if isinstance(config, StdioConfig):
            arguments = entry.get("args")
            as_written = [entry.get("command"), *(arguments if isinstance(arguments, list) else ())]
            self.commands = [[config.command, *config.args], list(map(str, as_written))]
        elif (url := getattr(config, "url", None)) is not None:
            # An allowed address must match literally; a denied one must not escape by percent-encoding its path.
            self.own_addresses = [url]
            as_written = [entry.get(key) for key in ("url", "serverUrl", "httpUrl")]
            decoded = [unquote(parts.text)] if (parts := written(url)) is not None else []
            self.addresses = [url, *decoded, *(text for text in as_written if isinstance(text, str))]
        texts = [value for key, value in entry.items() if key != "env"]
        self.has_references = any("${" in text for text in texts_in(texts))


def _may_become(command: Sequence[str], denied: Sequence[str]) -> bool:
    """Whether a command is denied; references to a session's directory may become any directory."""
    if len(command) != len(denied):
        return False
    patterns = [_OF_DIRECTORY.sub("*", part) for part in command]
    return all(
        part == other or (pattern != part and matches(pattern, other))
        for part, pattern, other in zip(command, patterns, denied, strict=True)
    )


def read_organization(
    directory: Path,
    environment: Mapping[str, str],
    config_dir: Path | None = None,
    user: Mapping[str, Any] | None = None,
    projects: Sequence[Mapping[str, Any]] = (),
) -> Organization:
    """The effective rules: `config_dir` is Claude Code's configuration directory, `user` and `projects` are settings
    already read. Blocks on the disk."""
    managed: list[Mapping[str, Any]] = []
    unreadable = ""
    for read in (*_files(directory), *_device_policies()):
        if isinstance(read, str):
            unreadable = unreadable or read
        else:
            managed.append(read)
    lists = _Lists()
    lists.add_provided(managed)
    lists.add_managed([*managed, *_remote(config_dir)])
    lists.add_others(user or {}, projects)
    servers = directory / SERVERS
    return Organization(
        lists.denied,
        lists.allowed,
        unreadable or lists.unusable,
        # A dangling link is an unreadable file, not a missing one.
        servers if servers.exists() or servers.is_symlink() else None,
        environment,
        lists.provided,
        lists.problems,
    )


def managed_files(directory: Path, config_dir: Path | None = None) -> list[Path]:
    """The files whose changes may change the rules, including files that do not exist yet. Blocks on the disk."""
    remote = [config_dir / REMOTE] if config_dir is not None else []
    files = [directory / SETTINGS, directory / SERVERS, directory / DROP_INS]
    with suppress(OSError):  # the directory itself is among them
        files += _drop_ins(directory)
    return [*files, *remote]


class _Lists:
    """The combined lists of several sources."""

    def __init__(self) -> None:
        self.provided: dict[str, Any] = {}
        self.denied: list[Entry] = []
        self.allowed: list[list[Entry]] = []
        self.unusable = ""
        self.problems: list[tuple[str, str]] = []
        self._managed_only = False

    def add_provided(self, contents: Sequence[Mapping[str, Any]]) -> None:
        """Add the servers that the organization provides. As in Claude Code, an entry with a program or a variable is
        rejected."""
        for content in contents:
            servers = content.get(_PROVIDED, {})
            if not isinstance(servers, dict):
                self.problems.append((_PROVIDED, "must be an object with the names of servers"))
                continue
            for name, entry in servers.items():
                if _is_provided(entry):
                    self.provided[name] = entry
                else:
                    problem = 'only "http" and "sse" servers are allowed, without a program or ${VARIABLE}'
                    self.problems.append((f"{_PROVIDED}.{name}", problem))

    def add_managed(self, contents: Sequence[Mapping[str, Any]]) -> None:
        """Add the rules of all managed sources: all denials, and each source's list of allowed servers, if any."""
        for content in contents:
            denied = content.get(_DENIED)
            # Unreadable denials must not count as no denials.
            if denied is not None and not isinstance(denied, list):
                self.unusable = f"{_DENIED} must be a list"
            self.denied += self._entries(content, _DENIED)
        allowed = [self._entries(content, _ALLOWED) for content in contents if content.get(_ALLOWED) is not None]
        self.allowed += [[entry for entries in allowed for entry in entries]] if allowed else []
        self._managed_only = any(content.get(_MANAGED_ONLY) is True for content in contents)

    def add_others(self, user: Mapping[str, Any], projects: Sequence[Mapping[str, Any]]) -> None:
        """Add the rules of the user and the projects. Both may deny. The user's allowances are added unless the
        organization's list is the only one; a project's list can only restrict."""
        for content in (user, *projects):
            self.denied += self._entries(content, _DENIED)
        if self._managed_only:
            return
        if user.get(_ALLOWED) is not None:
            own = self._entries(user, _ALLOWED)
            self.allowed = [[*entries, *own] for entries in self.allowed] or [own]
        elif not self.allowed:
            self.allowed = [self._entries(project, _ALLOWED) for project in projects if _ALLOWED in project]

    def _entries(self, content: Mapping[str, Any], key: str) -> list[Entry]:
        """The valid entries of a list. An invalid list of allowed servers allows nothing."""
        value = content.get(key)
        found = []
        for entry in value if isinstance(value, list) else ():
            if _is_entry(entry):
                found.append(entry)
            else:
                self.problems.append((key, f"an entry must have exactly one of {', '.join(_KINDS)}; it is ignored"))
        return found


def _is_provided(entry: object) -> bool:
    if not isinstance(entry, dict) or entry.get("type") not in _REMOTE_TYPES or not isinstance(entry.get("url"), str):
        return False
    return not any(key in entry for key in _PROGRAM_KEYS) and not any("${" in text for text in texts_in(entry))


def _is_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or sum(entry.get(kind) is not None for kind in _KINDS) != 1:
        return False
    command = entry.get("serverCommand")
    if command is not None:
        return isinstance(command, list) and bool(command) and all(isinstance(part, str) for part in command)
    return isinstance(entry.get("serverName") or entry.get("serverUrl"), str)


def _files(directory: Path) -> Iterable[Mapping[str, Any] | str]:
    yield from _read(directory / SETTINGS)
    try:
        drop_ins = _drop_ins(directory)
    except OSError as error:
        yield f"{directory / DROP_INS}: {error}"
        return
    for file in drop_ins:
        yield from _read(file)


def _drop_ins(directory: Path) -> list[Path]:
    """The files of the drop-in directory, in order; empty if it does not exist. OSError if it cannot be read, for
    example if it is a dangling link or a file."""
    try:
        names = sorted(path.name for path in (directory / DROP_INS).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        if os.path.lexists(directory / DROP_INS):
            raise
        return []
    return [directory / DROP_INS / name for name in names if name.endswith(".json") and not name.startswith(".")]


def _remote(config_dir: Path | None) -> Iterator[Mapping[str, Any]]:
    """Claude Code's copy of remotely sent settings. It is the user's own file: an unreadable one counts as missing."""
    for read in _read(config_dir / REMOTE) if config_dir is not None else ():
        if isinstance(read, Mapping):
            nested = read.get("settings")
            yield nested if isinstance(nested, dict) else read


def _read(file: Path) -> Iterator[Mapping[str, Any] | str]:
    """The object in a file, or the reason why it cannot be read; nothing if there is no file."""
    try:
        content = decode_with_comments(read_text(file))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        yield f"{file}: {error}"
        return
    yield content if isinstance(content, dict) else f"{file}: must be an object"


def _device_policies() -> list[Mapping[str, Any] | str]:
    """The settings from device management: a profile (macOS), a registry key (Windows)."""
    sources = {"darwin": (str(_PROFILE), _profile), "win32": (f"HKLM\\{_REGISTRY}", _registry)}
    if sys.platform not in sources:
        return []
    where, read = sources[sys.platform]
    try:
        content = read()
    except FileNotFoundError:
        return []
    except (OSError, ValueError, plistlib.InvalidFileException) as error:
        return [f"{where}: {error}"]
    return [content if isinstance(content, dict) else f"{where}: must be an object"]


def _profile() -> object:
    with open(_PROFILE, "rb") as file:
        return plistlib.load(file)


def _registry() -> object:
    import winreg  # noqa: PLC0415 - there on Windows alone

    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _REGISTRY) as key:  # type: ignore[attr-defined]
        return decode_with_comments(str(winreg.QueryValueEx(key, "Settings")[0]))  # type: ignore[attr-defined]
