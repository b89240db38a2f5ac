"""Installs and removes our plugin for Claude Code.

The plugin is a copy of `claude_plugin/` in the state directory, with the paths of this installation. Claude Code's own
commands register it like any other plugin and rewrite the settings; the previous text is stored and restored on
removal, byte for byte if nothing else has changed.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.claude.executable import find_executable, read_version, version_text
from ...core.claude.user_config import own_registrations
from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument, ProcessFailed
from ...core.model.paths import config_directory
from ...core.private_files import private_directory, replace_file
from ...core.processes.environment import DEPTH, child_environment
from .listener import DIRECTORY

NAME = "answer-anywhere"
"""The name of the plugin and of its marketplace. Claude Code reserves names that begin with `claude-`."""
PLUGIN_ID = f"{NAME}@{NAME}"
MIN_VERSION = (2, 1, 290)
"""The oldest Claude Code with which remote answers were tested; they do not work with 2.1.0."""
_SOURCE = Path(__file__).parent / "claude_plugin"
_TIMEOUT = 120.0
_LISTS = ("known_marketplaces.json", "installed_plugins.json")
_DIRECTORIES = ("cache", "data", "marketplaces", "")
"""The directories that Claude Code creates below `plugins`, that directory last."""
_KEYS = ("extraKnownMarketplaces", "enabledPlugins")


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """Whether terminals are connected, and what prevents it."""

    connected: bool
    claude: str
    version: str | None
    problem: str | None = None


class Installation:
    """The plugin of one user, in one configuration directory of Claude Code."""

    def __init__(self, settings: Settings, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._state_dir = settings.state_dir
        self.directory = settings.state_dir / "terminal-plugin"
        self._record = settings.state_dir / "terminal-plugin.json"
        self._config_dir = Path(config_directory(environment))
        # Follows a link: many people keep the file elsewhere.
        self.settings_file = Path(os.path.realpath(self._config_dir / "settings.json"))
        self._claude_path = settings.claude_path

    def status(self) -> ConnectionStatus:
        claude, version = self._claude()
        problem = None
        if version is not None and version < MIN_VERSION:
            problem = (
                f"Claude Code {version_text(version)} does not support answers from other clients: its "
                f"PermissionRequest hooks need {version_text(MIN_VERSION)} or later. Run `claude update`."
            )
        return ConnectionStatus(self.is_connected(), claude, version_text(version) if version else None, problem)

    def is_connected(self) -> bool:
        """Whether Claude Code's settings enable the plugin."""
        try:
            enabled = _parsed(_read(self.settings_file)).get("enabledPlugins")
        except (OSError, ValueError):
            return False
        return isinstance(enabled, dict) and enabled.get(PLUGIN_ID) is True

    def connect(self) -> ConnectionStatus:
        """Installs the plugin. Raises InvalidArgument if this Claude Code is too old or the settings cannot be read;
        ProcessFailed, with the settings restored, if Claude Code does not install it."""
        found = self.status()
        if found.problem is not None:
            raise InvalidArgument(found.problem)
        before = _read(self.settings_file)
        try:
            _parsed(before)
        except ValueError as error:
            raise InvalidArgument(f"{self.settings_file} is not valid JSON: {error}. Correct it first.") from None
        private_directory(self._state_dir)
        self._render()
        if found.connected:
            self._install_again(before)
            return self.status()
        # Before any change: everything from here on can be undone.
        made = {"made": self._absent(_LISTS), "directories": self._absent(_DIRECTORIES)}
        replace_file(self._record, json.dumps({"before": before, **made}).encode())
        try:
            self._run("marketplace", "add", str(self.directory))
            self._run("install", PLUGIN_ID, "--scope", "user")
        except ClaudeCodeError:
            self.disconnect()
            raise
        replace_file(self._record, json.dumps({**self._read_record(), "after": _read(self.settings_file)}).encode())
        return self.status()

    def _install_again(self, settings: str | None) -> None:
        """Makes Claude Code copy the files again, whose paths may have changed with an update: it keeps a copy for each
        version."""
        record = self._read_record()
        try:
            self._run("uninstall", PLUGIN_ID, "--scope", "user")
            self._run("install", PLUGIN_ID, "--scope", "user")
        except ClaudeCodeError:
            self.disconnect()
            raise
        if "after" in record and record["after"] == settings:
            replace_file(self._record, json.dumps({**record, "after": _read(self.settings_file)}).encode())

    def _read_record(self) -> dict[str, Any]:
        """The data stored before the plugin was installed; empty if unreadable."""
        try:
            found = json.loads(self._record.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def disconnect(self) -> bool:
        """Removes the plugin; returns whether it was installed."""
        was_there = self.is_connected() or self._record.exists()
        record = self._read_record()
        connected = _read(self.settings_file)
        for arguments in (("uninstall", PLUGIN_ID, "--scope", "user"), ("marketplace", "remove", NAME)):
            try:
                self._run(*arguments)
            except ClaudeCodeError:
                continue  # the installation did not get that far
        before = record.get("before")
        if "after" in record and connected == record["after"]:
            self._write_settings(before)
        else:
            self._write_settings(_without_ours(_read(self.settings_file), before))
        for name in record.get("made", ()):
            self._remove_if_empty(self._config_dir / "plugins" / name)
        shutil.rmtree(self._config_dir / "plugins" / "cache" / NAME, ignore_errors=True)
        for name in record.get("directories", ()):
            with contextlib.suppress(OSError):  # the directory has other content by now
                (self._config_dir / "plugins" / name).rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._record.unlink(missing_ok=True)
        return was_there

    # -- the copy -----------------------------------------------------------------------------------------------------

    def _render(self) -> None:
        """Writes the plugin with the paths of this installation."""
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(_SOURCE, self.directory, ignore=shutil.ignore_patterns("__pycache__"))
        hooks_file = self.directory / "hooks" / "hooks.json"
        hooks = json.loads(hooks_file.read_text(encoding="utf-8"))
        places = f" {shlex.quote(str(self._state_dir / DIRECTORY))} {shlex.quote(sys.executable)}"
        for entries in hooks["hooks"].values():
            for hook in (hook for entry in entries for hook in entry["hooks"]):
                hook["command"] += places
        _write_json(hooks_file, hooks)
        manifest_file = self.directory / ".claude-plugin" / "plugin.json"
        manifest = json.loads(manifest_file.read_text(encoding="utf-8"))
        _write_json(manifest_file, {**manifest, "version": __version__})
        servers_file = self.directory / ".mcp.json"
        if own_registrations(self.environment, str(Path.home())):
            servers_file.unlink()  # otherwise its tools would appear twice
            return
        servers = json.loads(servers_file.read_text(encoding="utf-8"))
        for server in servers["mcpServers"].values():
            server["command"], server["args"] = sys.executable, ["-P", "-m", "claude_code_mcp", *server["args"]]
        _write_json(servers_file, servers)

    # -- Claude Code --------------------------------------------------------------------------------------------------

    def _claude(self) -> tuple[str, tuple[int, int, int] | None]:
        """The program that the user starts in a terminal, and its version; ours if there is none on PATH."""
        path = shutil.which("claude", path=self.environment.get("PATH")) or find_executable(
            self._claude_path, self.environment
        )
        try:
            printed = self._output([path, "--version"])
        except ClaudeCodeError:
            return path, None
        return path, read_version(printed)

    def _run(self, *arguments: str) -> None:
        self._output([self._claude()[0], "plugin", *arguments])

    def _output(self, command: list[str]) -> str:
        environment = {name: value for name, value in child_environment(self.environment).items() if name != DEPTH}
        try:
            done = subprocess.run(
                command,
                env=environment,
                cwd=Path.home(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProcessFailed(f"`{shlex.join(command)}` failed: {error}.") from None
        if done.returncode:
            output = re.sub(r"\s+", " ", done.stderr or done.stdout).strip()
            raise ProcessFailed(f"`{shlex.join(command)}` failed: {output[:500]}")
        return done.stdout

    # -- the settings -------------------------------------------------------------------------------------------------

    def _absent(self, names: Iterable[str]) -> list[str]:
        """The missing names below the plugins directory."""
        return [name for name in names if not (self._config_dir / "plugins" / name).exists()]

    def _write_settings(self, text: str | None) -> None:
        if text is None:
            self.settings_file.unlink(missing_ok=True)
        elif text != _read(self.settings_file):
            mode = stat.S_IMODE(self.settings_file.stat().st_mode) if self.settings_file.exists() else 0o600
            replace_file(self.settings_file, text.encode(errors="surrogateescape"), mode)

    @staticmethod
    def _remove_if_empty(file: Path) -> None:
        """Removes a list that Claude Code created for the plugin, if it has no other entries."""
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if isinstance(found, dict) and not {
            name: value for name, value in found.items() if value and name != "version"
        }:
            file.unlink(missing_ok=True)


def _read(file: Path) -> str | None:
    """The exact text of a file; None if it does not exist."""
    try:
        return file.read_bytes().decode(errors="surrogateescape")
    except FileNotFoundError:
        return None


def _parsed(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text is not None and text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _without_ours(text: str | None, before: str | None) -> str | None:
    """Settings that changed since, without our plugin's entries; unchanged if they cannot be parsed."""
    if text is None:
        return None
    try:
        found, earlier = _parsed(text), _parsed(before)
    except ValueError:
        return text
    for key, ours in zip(_KEYS, (NAME, PLUGIN_ID), strict=True):
        entries = found.get(key)
        if not isinstance(entries, dict):
            continue
        entries.pop(ours, None)
        if not entries and key not in earlier:
            del found[key]
    if not found and before is None:
        return None
    return text if found == _parsed(text) else json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
