"""The plugin for Claude Code is installed, and removed without a trace in the user's settings."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.plugins.terminal.installation import PLUGIN_ID, Installation
from claude_code_mcp.testing import Sandbox
from tests.support import warm_commands

from .conftest import PLUGIN

ODD = b'{\n\t"model" :"opus",   "permissions": {"allow": [ ]},\r\n  "enabledPlugins": {"other@place": true} }'


@pytest.fixture
def settings_file(sandbox: Sandbox) -> Path:
    (sandbox.home / ".claude").mkdir()
    (sandbox.home / ".claude.json").write_text('{"hasCompletedOnboarding": true}')
    return sandbox.home / ".claude" / "settings.json"


@pytest.fixture
def installation(sandbox: Sandbox, environment: dict[str, str], settings_file: Path) -> Installation:
    return Installation(load_settings({}, state_dir=sandbox.root / "state"), environment)


def test_the_settings_are_as_before_byte_for_byte_and_connecting_again_renews_the_copy(
    installation: Installation, settings_file: Path
) -> None:
    settings_file.write_bytes(ODD)
    settings_file.chmod(0o640)
    assert installation.connect().connected
    connected = json.loads(settings_file.read_text())
    assert connected["enabledPlugins"][PLUGIN_ID] is True
    hooks = json.loads((installation.directory / "hooks" / "hooks.json").read_text())["hooks"]
    assert "send_event.sh" in hooks["PermissionRequest"][0]["hooks"][0]["command"]
    # Connecting again does no harm, and renews the copy that Claude Code keeps.
    (copied,) = (settings_file.parent / "plugins" / "cache").rglob("hooks.json")
    as_installed = copied.read_text()
    copied.write_text(as_installed.replace(sys.executable, "/moved/python"))
    assert installation.connect().connected
    (copied,) = (settings_file.parent / "plugins" / "cache").rglob("hooks.json")
    assert copied.read_text() == as_installed
    assert installation.disconnect()
    assert settings_file.read_bytes() == ODD
    assert settings_file.stat().st_mode & 0o777 == 0o640
    assert_removed(installation, settings_file)
    assert not installation.disconnect()


def assert_removed(installation: Installation, settings_file: Path) -> None:
    """Nothing is left beside the settings."""
    assert not (settings_file.parent / "plugins").exists()
    assert not installation.directory.exists()


def test_what_the_user_has_changed_meanwhile_stays_and_so_does_a_link(
    environment: dict[str, str], settings_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_bytes(ODD)
    settings_file.symlink_to(target)
    linked = Installation(load_settings({}, state_dir=tmp_path / "state"), environment)
    linked.connect()
    assert settings_file.is_symlink()
    changed = json.loads(settings_file.read_text()) | {"theme": "light"}
    settings_file.write_text(json.dumps(changed))
    linked.disconnect()
    assert settings_file.is_symlink()
    assert json.loads(target.read_text()) == json.loads(ODD) | {"theme": "light"}


@pytest.mark.soak  # what connects and disconnects is the same as in the two tests above
def test_a_linked_settings_file_is_as_before_byte_for_byte(
    environment: dict[str, str], settings_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_bytes(ODD)
    settings_file.symlink_to(target)
    linked = Installation(load_settings({}, state_dir=tmp_path / "state"), environment)
    linked.connect()
    linked.disconnect()
    assert settings_file.is_symlink()
    assert target.read_bytes() == ODD


def test_settings_that_are_not_json_are_refused_and_left_alone(installation: Installation, settings_file: Path) -> None:
    settings_file.write_text("{ // mine\n}")
    with pytest.raises(InvalidArgument, match="not valid JSON"):
        installation.connect()
    assert settings_file.read_text() == "{ // mine\n}"


def test_a_version_without_the_hook_is_refused_with_a_clear_message(
    sandbox: Sandbox, environment: dict[str, str], settings_file: Path, tmp_path: Path
) -> None:
    old = tmp_path / "bin" / "claude"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\necho '2.0.14 (Claude Code)'\n")
    old.chmod(0o755)
    path = f"{old.parent}:{environment['PATH']}"
    installation = Installation(load_settings({}, state_dir=sandbox.root / "state"), {**environment, "PATH": path})
    with pytest.raises(InvalidArgument, match=r"Claude Code 2\.0\.14 does not support answers from other clients"):
        installation.connect()
    assert not settings_file.exists()


def test_claude_code_installs_the_plugin_from_a_directory(
    sandbox: Sandbox, environment: dict[str, str], settings_file: Path
) -> None:
    claude = find_executable(None, environment)
    for arguments in (["marketplace", "add", str(PLUGIN)], ["install", PLUGIN_ID], ["validate", str(PLUGIN)]):
        done = subprocess.run(
            [claude, "plugin", *arguments],
            env=environment,
            cwd=sandbox.project,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(settings_file.read_text())["enabledPlugins"] == {PLUGIN_ID: True}


def test_the_command_connects_and_disconnects_without_settings_of_the_user(
    installation: Installation, sandbox: Sandbox, environment: dict[str, str], settings_file: Path
) -> None:
    own = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}

    def run(step: str) -> str:
        done = warm_commands.run(["terminal", step], own, sandbox.project)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("status").startswith("Not connected.")
    assert run("connect").startswith("Connected: Claude Code 2.")
    assert run("status").startswith("Connected.")
    assert run("disconnect") == "Removed.\n"
    assert not settings_file.exists()
    assert_removed(installation, settings_file)
