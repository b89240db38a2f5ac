"""The entry of this server in each client: what is printed, and what `--install` writes."""

import errno
import io
import json
import os
import shlex
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.cli import config
from claude_code_mcp.core.errors import ClaudeCodeError
from claude_code_mcp.core.json_text import decode_with_comments
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
    command = config.own_command()
    assert Path(command[0]).name == "uvx"
    assert command[1] == "--from"
    assert command[-1] == "claude-code-mcp"
    assert "archive-v0" not in " ".join(command)


FILES = {
    "claude-desktop": ".xdg/config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "gemini": ".gemini/settings.json",
    "zed": ".xdg/config/zed/settings.json",
    "jetbrains": ".junie/mcp/mcp.json",
}
KEYS = {"zed": "context_servers"}


@pytest.mark.parametrize("client", sorted(FILES))
def test_every_client_with_a_file_keeps_its_comments_and_is_registered_once(
    environment: dict[str, str], sandbox: Sandbox, client: str
) -> None:
    file, key = sandbox.home / FILES[client], KEYS.get(client, "mcpServers")
    file.parent.mkdir(parents=True)
    text = '// mine\n{\n\t"a": 1, // one\n\t"%s": {\n\t\t"x": {"command": "x"}, // x\n\t},\n}\n' % key  # noqa: UP031
    file.write_text(text)
    assert run(environment, "config", client, "--install", "--yes").returncode == 0
    once = file.read_text()
    assert [line for line in once.splitlines() if line in text.splitlines()] == text.splitlines()
    entry = decode_with_comments(once)[key]["claude-code"]
    assert entry["command"].endswith("claude-code-mcp")
    assert entry["args"] == ["--shared"]
    assert "already has this entry" in run(environment, "config", client, "--install", "--yes").stdout
    assert (file.read_text(), file.with_name(f"{file.name}.bak").read_text()) == (once, text)
    if client != "claude-desktop":
        assert run(environment, "config", client, "--url", URL, "--install", "--yes").returncode == 0
        entry = decode_with_comments(file.read_text())[key]["claude-code"]
        assert URL in entry.values()
        assert "command" not in entry
        assert "// x" in file.read_text()


@pytest.mark.parametrize(
    "client", ["claude-code", "vscode", "codex", "generic", *sorted(FILES.keys() - {"claude-desktop"})]
)
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
    text = json.dumps(before, indent=2).replace('"other": 1,', '"other": 1, // mine')
    file.write_text(text)
    file.chmod(0o640)
    refused = run(environment, "config", "cursor", "--install")
    assert (refused.returncode, file.read_text()) == (2, text)
    assert '-      "command": "old",' in refused.stdout
    assert "+" not in refused.stdout.partition('"x": {')[2].partition("},")[0], "what is not ours is not touched"
    assert run(environment, "config", "cursor", "--install", "--yes").returncode == 0
    assert '"other": 1, // mine' in file.read_text()
    assert file.with_name("mcp.json.bak").read_text() == text
    after = decode_with_comments(file.read_text())
    assert after["other"] == 1
    assert after["mcpServers"]["x"] == {"command": "x"}
    assert after["mcpServers"]["claude-code"]["env"] == {"A": "b"}
    assert after["mcpServers"]["claude-code"]["command"] != "old"
    assert file.stat().st_mode & 0o777 == 0o640
    assert "already has this entry" in run(environment, "config", "cursor", "--install", "--yes").stdout


@pytest.mark.parametrize("mode", [0o600, 0o640, None], ids=["private", "for a group", "new"])
def test_a_file_that_may_hold_tokens_is_never_readable_for_others_nor_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int | None
) -> None:
    file, replace, before = tmp_path / "mcp.json", os.replace, '{"token": "secret"}'
    modes: list[int] = []

    def noting(name: str, path: object, *arguments: Any, **named: Any) -> Any:
        opened = opening[name](path, *arguments, **named)
        if Path(str(path)).parent == tmp_path and Path(str(path)) != file:
            modes.append(os.stat(str(path)).st_mode & 0o777)
        return opened

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def install() -> int:
        address = config.ServerAddress(url=URL)
        return config.install_in_file(file, lambda text, _: text + '{"token": "new"}', address, yes=True)

    if mode is not None:
        file.write_text(before)
        file.chmod(mode)
    opening: dict[str, Callable[..., Any]] = {"os": os.open, "io": io.open}
    monkeypatch.setattr(os, "open", partial(noting, "os"))
    monkeypatch.setattr(io, "open", partial(noting, "io"))
    umask = os.umask(0)
    try:
        monkeypatch.setattr(os, "replace", failing)
        with pytest.raises(ClaudeCodeError, match=os.strerror(errno.EIO)):
            install()
        assert [path.name for path in tmp_path.iterdir()] == ([] if mode is None else [file.name])
        monkeypatch.setattr(os, "replace", replace)
        assert install() == 0
    finally:
        os.umask(umask)
    assert set(modes) == {0o600}, "while it is written"
    assert file.stat().st_mode & 0o777 == (mode or 0o600)
    kept = [] if mode is None else [f"{file.name}.bak"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, *kept]
    for name in kept:
        assert (tmp_path / name).read_text() == before
        assert (tmp_path / name).stat().st_mode & 0o777 == mode


@pytest.mark.parametrize(
    "content", ["// a comment\n{", "[]", '{"mcpServers": []}', '{"mcpServers": {"claude-code": 1}}']
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
    assert "already has this entry" in run(environment, "config", "claude-code", "--install", "--yes").stdout
    other = run(environment, "config", "claude-code", "--own", "--install", "--yes")
    assert other.returncode == 0, other.stdout + other.stderr
    settings = json.loads((sandbox.home / ".claude.json").read_text())
    assert "--shared" not in settings["mcpServers"]["claude-code"]["args"]


# -- removing ---------------------------------------------------------------------------------------------------------


INSTALLED = {**FILES, "codex": ".codex/config.toml"}
STARTS = {
    "json": {
        "empty object": "{}",
        "empty servers": '{\n  "KEY": {}\n}\n',
        "no servers": '// mine\r\n{\r\n\t"a": 1 // one\r\n}\r\n',
        "other servers": '{\n  "KEY": {\n    // mine\n    "x": {"command": "x"}, // x\n  },\n  "b": [1],\n}\n',
        "one line": '{"KEY": {"x": {"command": "x"}}}',
    },
    "toml": {
        "comment": "# mine",
        "other table": 'model = "m" # mine\n\n\n[mcp_servers.x]\ncommand = "x"\n# of tui\n[tui]\nx = 1\n\n',
    },
}


def _starts() -> list[Any]:
    return [
        pytest.param(client, text.replace("KEY", KEYS.get(client, "mcpServers")), id=f"{client}, {name}")
        for client in sorted(INSTALLED)
        for name, text in STARTS["toml" if client == "codex" else "json"].items()
    ]


@pytest.mark.parametrize(("client", "text"), _starts())
def test_removing_restores_the_file_as_it_was(
    environment: dict[str, str], sandbox: Sandbox, client: str, text: str
) -> None:
    file = sandbox.home / INSTALLED[client]
    file.parent.mkdir(parents=True)
    file.write_bytes(text.encode())
    assert run(environment, "config", client, "--install", "--yes").returncode == 0
    installed = file.read_bytes()
    refused = run(environment, "config", client, "--remove")
    assert (refused.returncode, file.read_bytes()) == (2, installed)
    assert "claude-code" in refused.stdout
    removed = run(environment, "config", client, "--remove", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert file.read_bytes().decode() == text
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    again = run(environment, "config", client, "--remove", "--yes")
    assert again.returncode == 0
    assert "nothing to remove" in again.stdout


@pytest.mark.parametrize("client", sorted(INSTALLED))
def test_a_file_that_has_only_our_entry_is_deleted_when_that_is_removed(
    environment: dict[str, str], sandbox: Sandbox, client: str
) -> None:
    file = sandbox.home / INSTALLED[client]
    for flags in (["--own"], []):  # the second changes the entry, and leaves a copy of the first
        assert run(environment, "config", client, "--install", "--yes", *flags).returncode == 0
    assert file.with_name(f"{file.name}.bak").exists()
    removed = run(environment, "config", client, "--remove", "--yes")
    assert (removed.returncode, f"Deleted: {file}" in removed.stdout) == (0, True)
    assert [*file.parent.iterdir()] == []
    assert "nothing to remove" in run(environment, "config", client, "--remove", "--yes").stdout
    assert not file.exists()


def test_removing_keeps_what_was_written_since(environment: dict[str, str], sandbox: Sandbox) -> None:
    cursor, codex = sandbox.home / INSTALLED["cursor"], sandbox.home / INSTALLED["codex"]
    cursor.parent.mkdir(parents=True)
    cursor.write_text('{"mcpServers": {}}')
    for client in ("cursor", "codex"):
        assert run(environment, "config", client, "--install", "--yes").returncode == 0
    cursor.write_text(cursor.read_text().replace('"mcpServers": {', '"mcpServers": {\n    // mine'))
    codex.write_text(codex.read_text() + '\n[mcp_servers.claude-code.env]\nA = "b"\n\n# of tui\n[tui]\nx = 1\n')
    for client in ("cursor", "codex"):
        removed = run(environment, "config", client, "--remove", "--yes")
        assert removed.returncode == 0, removed.stderr
    assert "// mine" in cursor.read_text()
    assert decode_with_comments(cursor.read_text()) == {"mcpServers": {}}
    assert codex.read_text() == "# of tui\n[tui]\nx = 1\n"


@pytest.mark.parametrize(
    ("client", "content"),
    [
        ("cursor", "// a comment\n{"),
        ("codex", "x ="),
        ("codex", 'mcp_servers = { claude-code = { command = "claude-code-mcp" } }'),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone_when_removing(
    environment: dict[str, str], sandbox: Sandbox, client: str, content: str
) -> None:
    file = sandbox.home / INSTALLED[client]
    file.parent.mkdir()
    file.write_text(content)
    answer = run(environment, "config", client, "--remove", "--yes")
    assert (answer.returncode, file.read_text()) == (2, content)
    assert "remove the entry by hand" in answer.stderr


def test_another_server_of_the_same_name_is_left_alone(environment: dict[str, str], sandbox: Sandbox) -> None:
    """Claude Code's own MCP server is often registered like this."""
    file = sandbox.home / INSTALLED["cursor"]
    file.parent.mkdir()
    theirs = '{"mcpServers": {"claude-code": {"command": "claude", "args": ["mcp", "serve"]}}}'
    file.write_text(theirs)
    assert "nothing to remove" in run(environment, "config", "cursor", "--remove", "--yes").stdout
    assert file.read_text() == theirs
    assert run(environment, "config", "cursor", "--install", "--yes").returncode == 0
    assert run(environment, "config", "cursor", "--remove", "--yes").returncode == 0
    assert file.read_text() == theirs


def test_vs_code_has_an_entry_for_the_project_and_one_for_the_user(
    environment: dict[str, str], sandbox: Sandbox
) -> None:
    user = sandbox.home / ".xdg/config/Code/User/mcp.json"
    assert "MCP: Open User Configuration" in run(environment, "config", "vscode", "--user").stdout
    assert run(environment, "config", "vscode", "--user", "--install", "--yes").returncode == 0
    assert decode_with_comments(user.read_text())["servers"]["claude-code"]["type"] == "stdio"
    assert not (sandbox.project / ".vscode").exists()
    assert run(environment, "config", "vscode", "--user", "--remove", "--yes").returncode == 0
    assert not user.exists()
    refused = run(environment, "config", "cursor", "--user", "--install", "--yes")
    assert refused.returncode == 2
    assert "--user is for vscode only" in refused.stderr


def test_claude_code_removes_it_by_its_own_command(environment: dict[str, str], sandbox: Sandbox) -> None:
    assert run(environment, "config", "claude-code", "--install", "--yes").returncode == 0
    removed = run(environment, "config", "claude-code", "--remove", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert "claude-code" not in json.loads((sandbox.home / ".claude.json").read_text()).get("mcpServers", {})
    assert "nothing to remove" in run(environment, "config", "claude-code", "--remove", "--yes").stdout


@pytest.mark.parametrize(
    "arguments", [["--remove"], ["generic", "--remove"], ["cursor", "--remove", "--install"], ["--user"]]
)
def test_impossible_removals_are_refused(environment: dict[str, str], arguments: list[str]) -> None:
    answer = run(environment, "config", *arguments)
    assert answer.returncode == 2
    assert arguments[-1] in answer.stderr


def test_a_wrong_path_of_the_cli_has_its_own_advice(environment: dict[str, str]) -> None:
    answer = run({**environment, "CLAUDE_CODE_PATH": "/nowhere/claude"}, "claude", "--version")
    assert answer.returncode == 5
    assert "/nowhere/claude" in answer.stderr
    assert "or unset it" in answer.stderr
    assert "pip install" not in answer.stderr
