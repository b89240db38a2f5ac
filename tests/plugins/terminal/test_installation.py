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
from tests.support.program import COMMAND

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


@pytest.mark.parametrize("before", [None, ODD], ids=["no settings", "odd settings"])
def test_the_settings_are_as_before_byte_for_byte(
    installation: Installation, settings_file: Path, before: bytes | None
) -> None:
    if before is not None:
        settings_file.write_bytes(before)
        settings_file.chmod(0o640)
    assert installation.connect().connected
    connected = json.loads(settings_file.read_text())
    assert connected["enabledPlugins"][PLUGIN_ID] is True
    hooks = json.loads((installation.directory / "hooks" / "hooks.json").read_text())["hooks"]
    assert "send_event.sh" in hooks["PermissionRequest"][0]["hooks"][0]["command"]
    assert installation.connect().connected  # once more does no harm
    assert installation.disconnect()
    if before is None:
        assert not settings_file.exists()
    else:
        assert settings_file.read_bytes() == before
        assert settings_file.stat().st_mode & 0o777 == 0o640
    assert not (settings_file.parent / "plugins").exists()
    assert not installation.directory.exists()
    assert not installation.disconnect()


def test_connecting_again_renews_the_copy_that_claude_code_keeps(
    installation: Installation, settings_file: Path
) -> None:
    settings_file.write_bytes(ODD)
    installation.connect()
    (copied,) = (settings_file.parent / "plugins" / "cache").rglob("hooks.json")
    as_installed = copied.read_text()
    copied.write_text(as_installed.replace(sys.executable, "/moved/python"))
    installation.connect()
    (copied,) = (settings_file.parent / "plugins" / "cache").rglob("hooks.json")
    assert copied.read_text() == as_installed
    installation.disconnect()
    assert settings_file.read_bytes() == ODD


def test_what_the_user_has_changed_meanwhile_stays(installation: Installation, settings_file: Path) -> None:
    settings_file.write_text('{"model": "opus"}')
    installation.connect()
    changed = json.loads(settings_file.read_text()) | {"theme": "light"}
    settings_file.write_text(json.dumps(changed))
    installation.disconnect()
    assert json.loads(settings_file.read_text()) == {"model": "opus", "theme": "light"}


def test_a_linked_settings_file_stays_a_link(installation: Installation, settings_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles.json"
    target.write_bytes(ODD)
    settings_file.symlink_to(target)
    again = Installation(load_settings({}, state_dir=tmp_path / "state"), installation.environment)
    again.connect()
    again.disconnect()
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


def test_the_command_connects_and_disconnects(
    sandbox: Sandbox, environment: dict[str, str], settings_file: Path
) -> None:
    own = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}

    def run(step: str) -> str:
        done = subprocess.run([COMMAND, "terminal", step], env=own, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("status").startswith("Not connected.")
    assert run("connect").startswith("Connected: Claude Code 2.")
    assert run("status").startswith("Connected.")
    assert run("disconnect") == "Removed.\n"
    assert not settings_file.exists()
