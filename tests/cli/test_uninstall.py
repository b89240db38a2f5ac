"""`uninstall` removes what this product has written, and nothing else."""

import json
from pathlib import Path

import pytest

from claude_code_mcp.core.installation import uninstall_command
from claude_code_mcp.core.state.server_life import ServerLife
from claude_code_mcp.testing import Sandbox

from .test_commands import run


@pytest.fixture
def own(environment: dict[str, str], sandbox: Sandbox) -> dict[str, str]:
    """An environment in which the state is where it usually is."""
    return {name: value for name, value in environment.items() if name != "CLAUDE_CODE_MCP_STATE_DIR"}


def _state(sandbox: Sandbox) -> Path:
    state = sandbox.home / ".xdg" / "state" / "claude-code-mcp"
    (state / "principals" / "ann-1" / "claude").mkdir(parents=True)
    (state / "audit.jsonl").write_text("{}\n")
    return state


def test_entries_and_files_are_listed_and_removed_after_a_yes(own: dict[str, str], sandbox: Sandbox) -> None:
    state = _state(sandbox)
    aside = state.with_name(f"{state.name}.before-20260102-030405")
    (aside / "exports").mkdir(parents=True)
    hub = sandbox.home / ".xdg" / "config" / "claude-code-mcp" / "mcp.json"
    hub.parent.mkdir(parents=True)
    hub.write_text("{}")
    cursor, zed = sandbox.home / ".cursor" / "mcp.json", sandbox.home / ".xdg" / "config" / "zed" / "settings.json"
    zed.parent.mkdir(parents=True)
    zed.write_text('{"theme": "x"} // mine')
    for client in ("cursor", "zed", "claude-code"):
        assert run(own, "config", client, "--install", "--yes").returncode == 0
    theirs = sandbox.home / ".claude" / "projects" / "p" / "conversation.jsonl"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("{}")
    refused = run(own, "uninstall")
    assert refused.returncode == 2
    for shown in (str(cursor), str(zed), ".claude.json", str(state), str(aside), str(hub), "conversations of 1 caller"):
        assert shown in refused.stdout
    assert state.exists()
    assert cursor.exists()
    removed = run(own, "uninstall", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert uninstall_command() in removed.stdout
    assert not any(path.exists() for path in (cursor, state, aside, hub.parent))
    assert zed.read_text() == '{"theme": "x"} // mine'
    assert "claude-code" not in json.loads((sandbox.home / ".claude.json").read_text()).get("mcpServers", {})
    assert theirs.exists()
    assert "no client has an entry, and there are no files" in run(own, "uninstall", "--yes").stdout
    assert not state.exists()


def test_settings_in_our_directory_and_a_file_elsewhere_are_left_to_their_owner(
    own: dict[str, str], sandbox: Sandbox
) -> None:
    directory, elsewhere = sandbox.home / ".xdg" / "config" / "claude-code-mcp", sandbox.home / ".mcp.json"
    directory.mkdir(parents=True)
    for file in (directory / "mcp.json", directory / "settings.toml", elsewhere):
        file.write_text("{}")
    assert run(own, "uninstall", "--yes").returncode == 0
    assert [file.name for file in directory.iterdir()] == ["settings.toml"]
    answer = run({**own, "CLAUDE_CODE_MCP_HUB_FILE": str(elsewhere)}, "uninstall", "--yes")
    assert (answer.returncode, elsewhere.exists()) == (1, True)
    assert str(elsewhere) in answer.stderr


def test_the_state_can_be_kept(own: dict[str, str], sandbox: Sandbox) -> None:
    state = _state(sandbox)
    assert run(own, "config", "cursor", "--install", "--yes").returncode == 0
    assert run(own, "uninstall", "--yes", "--keep-state").returncode == 0
    assert state.exists()
    assert not (sandbox.home / ".cursor" / "mcp.json").exists()


def test_nothing_is_removed_while_a_server_runs(own: dict[str, str], sandbox: Sandbox) -> None:
    state = _state(sandbox)
    assert run(own, "config", "cursor", "--install", "--yes").returncode == 0
    life = ServerLife(state)
    life.begin()
    try:
        refused = run(own, "uninstall", "--yes")
    finally:
        life.end()
    assert refused.returncode == 2
    assert "A server is using" in refused.stderr
    assert state.exists()
    assert (sandbox.home / ".cursor" / "mcp.json").exists()


def test_directory_chosen_by_the_user_is_not_changed(own: dict[str, str], sandbox: Sandbox) -> None:
    """It may be their home directory."""
    chosen = sandbox.root / "chosen"
    chosen.mkdir()
    (chosen / "precious").write_text("x")
    answer = run({**own, "CLAUDE_CODE_MCP_STATE_DIR": str(chosen)}, "uninstall", "--yes")
    assert answer.returncode == 1
    assert f"{chosen} is set by a setting and may be used by other programs: delete it by hand." in answer.stderr
    assert (chosen / "precious").exists()


def test_a_clients_file_that_cannot_be_read_is_named_and_the_rest_removed(
    own: dict[str, str], sandbox: Sandbox
) -> None:
    state = _state(sandbox)
    file = sandbox.home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text("{")
    answer = run(own, "uninstall", "--yes")
    assert answer.returncode == 1
    assert str(file) in answer.stderr
    assert "by hand" in answer.stderr
    assert (file.read_text(), state.exists()) == ("{", False)


def test_the_package_is_removed_by_the_tool_that_installed_it(tmp_path: Path) -> None:
    assert uninstall_command("/home/ann/.cache/uv/archive-v0/abc") == "uv cache clean claude-code-mcp"
    assert uninstall_command(str(tmp_path)).endswith(" uninstall claude-code-mcp")
    (tmp_path / "pipx_metadata.json").touch()
    assert uninstall_command(str(tmp_path)) == "pipx uninstall claude-code-mcp"
    (tmp_path / "uv-receipt.toml").touch()
    assert uninstall_command(str(tmp_path)) == "uv tool uninstall claude-code-mcp"
