"""The entry of this server in each client: what is printed, and what `--install` writes."""

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from claude_code_mcp.commands import registration
from claude_code_mcp.testing import Sandbox

from .test_commands import run

URL = "http://127.0.0.1:8765/mcp"


def test_claude_code_gets_a_line_for_a_shell_with_the_settings_and_for_all_projects(
    environment: dict[str, str], sandbox: Sandbox
) -> None:
    file = sandbox.root / "a file.toml"
    file.write_text("max_sessions = 3\n")
    line = run(environment, "config", "claude-code", "--config", str(file)).stdout.splitlines()[1]
    arguments = shlex.split(line)
    assert arguments[:6] == ["claude", "mcp", "add", "--scope", "user", "claude-code"]
    assert arguments[-2:] == ["--config", str(file)]
    by_variable = run({**environment, "CLAUDE_CODE_MCP_CONFIG": str(file)}, "config", "cursor").stdout
    assert str(file) in by_variable


def test_in_a_cache_of_uv_the_command_is_uvx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/home/ann/.cache/uv/archive-v0/abc")
    command = registration.own_command()
    assert Path(command[0]).name == "uvx"
    assert command[1] == "--from"
    assert command[-1] == "claude-code-mcp"
    assert "archive-v0" not in " ".join(command)


@pytest.mark.parametrize("client", ["claude-code", "cursor", "vscode", "codex", "generic"])
def test_a_url_is_registered_without_the_token_itself(environment: dict[str, str], client: str) -> None:
    secret = "a-secret-token-of-this-test"
    output = run({**environment, "CLAUDE_CODE_MCP_TOKEN": secret}, "config", client, "--url", URL).stdout
    assert URL in output
    assert "CLAUDE_CODE_MCP_TOKEN" in output
    assert secret not in output
    assert "TOKEN" not in run(environment, "config", client, "--url", URL).stdout


def test_installing_keeps_everything_else_in_a_json_file(environment: dict[str, str], sandbox: Sandbox) -> None:
    file = sandbox.home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    before = {"other": 1, "mcpServers": {"x": {"command": "x"}, "claude-code": {"command": "old", "env": {"A": "b"}}}}
    file.write_text(json.dumps(before))
    file.chmod(0o640)
    refused = run(environment, "config", "cursor", "--install")
    assert (refused.returncode, json.loads(file.read_text())) == (2, before)
    assert '+    "claude-code": {' in refused.stdout
    assert '"command": "old"' in refused.stdout.partition("\n+{")[0]
    assert run(environment, "config", "cursor", "--install", "--yes").returncode == 0
    after = json.loads(file.read_text())
    assert after["other"] == 1
    assert after["mcpServers"]["x"] == {"command": "x"}
    assert after["mcpServers"]["claude-code"]["env"] == {"A": "b"}
    assert after["mcpServers"]["claude-code"]["command"] != "old"
    assert file.stat().st_mode & 0o777 == 0o640
    assert "has it already" in run(environment, "config", "cursor", "--install", "--yes").stdout


@pytest.mark.parametrize(
    "content", ["// a comment\n{}", "[]", '{"mcpServers": []}', '{"mcpServers": {"claude-code": 1}}']
)
def test_a_file_that_is_not_understood_is_left_alone(
    environment: dict[str, str], sandbox: Sandbox, content: str
) -> None:
    file = sandbox.home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(content)
    answer = run(environment, "config", "cursor", "--install", "--yes")
    assert answer.returncode == 2
    assert "by hand" in answer.stderr
    assert file.read_text() == content


def test_installing_keeps_everything_else_in_a_toml_file(environment: dict[str, str], sandbox: Sandbox) -> None:
    file = sandbox.home / ".codex" / "config.toml"
    file.parent.mkdir()
    file.write_text(
        'model = "m" # mine\n[mcp_servers.claude-code]\ncommand = "old"\nenabled = true\n'
        '[mcp_servers.claude-code.env]\nA = "b"\n[tui]\nx = 1\n'
    )
    for _ in range(2):
        assert run(environment, "config", "codex", "--install", "--yes").returncode == 0
        content = tomllib.loads(file.read_text())
        assert content["tui"] == {"x": 1}
        entry = content["mcp_servers"]["claude-code"]
        assert (entry["enabled"], entry["env"]) == (True, {"A": "b"})
        assert entry["command"] != "old"
        assert "# mine" in file.read_text()


def test_a_new_file_is_private(environment: dict[str, str], sandbox: Sandbox) -> None:
    assert run(environment, "config", "codex", "--install", "--yes").returncode == 0
    assert (sandbox.home / ".codex" / "config.toml").stat().st_mode & 0o077 == 0


def test_claude_code_registers_it_by_its_own_command(environment: dict[str, str], sandbox: Sandbox) -> None:
    answer = run(environment, "config", "claude-code", "--install", "--yes")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    settings = json.loads((sandbox.home / ".claude.json").read_text())
    assert "--shared" in settings["mcpServers"]["claude-code"]["args"]


def test_a_wrong_path_of_the_cli_has_its_own_advice(environment: dict[str, str]) -> None:
    answer = run({**environment, "CLAUDE_CODE_PATH": "/nowhere/claude"}, "claude", "--version")
    assert answer.returncode == 2
    assert "/nowhere/claude" in answer.stderr
    assert "leave it out" in answer.stderr
    assert "pip install" not in answer.stderr
