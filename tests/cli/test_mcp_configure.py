"""`claude-code-mcp mcp list`, `add`, `remove`, `enable` and `disable`, as typed in a shell."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.json_text import decode_with_comments
from claude_code_mcp.testing import Sandbox

from .conftest import Mcp, start


def entries(file: Path) -> dict[str, Any]:
    read: dict[str, Any] = decode_with_comments(file.read_text(encoding="utf-8"))["mcpServers"]
    return read


def test_what_was_added_is_listed_until_it_is_removed(mcp: Mcp, own_file: Path) -> None:
    assert mcp("list").stdout.startswith("No servers.")
    added = mcp("add", "files", "--env", "A=b=c", "--", "npx", "-y", "some-server", "--", "--flag")
    assert (added.returncode, added.stderr) == (0, "")
    assert entries(own_file)["files"] == {
        "type": "stdio",
        "command": "npx",
        "args": ["-y", "some-server", "--", "--flag"],
        "env": {"A": "b=c"},
    }
    listed = mcp("list").stdout.splitlines()
    assert listed[1].split() == [
        *("files", "stdio", "own", "enabled", "npx", "-y", "some-server", "--", "--flag", str(own_file))
    ]
    assert mcp("remove", "files").returncode == 0
    assert entries(own_file) == {}


def test_the_file_is_its_owners_alone_and_keeps_what_else_is_in_it(mcp: Mcp, own_file: Path) -> None:
    own_file.parent.mkdir(parents=True)
    elsewhere = own_file.with_name("kept-elsewhere.json")
    before = {"comment": "mine", "mcpServers": {"broken": 7, "old": {"command": "x", "unknown": True}}}
    elsewhere.write_text(json.dumps(before))
    elsewhere.chmod(0o644)
    own_file.symlink_to(elsewhere)
    assert mcp("add", "new", "--url", "https://example.com/mcp").returncode == 0
    after = json.loads(elsewhere.read_text())
    assert own_file.is_symlink()
    assert after == {**before, "mcpServers": {**before["mcpServers"], "new": after["mcpServers"]["new"]}}  # type: ignore[dict-item]
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in own_file.parent.iterdir() if path.name.startswith(".")) == []


def test_additions_at_the_same_time_all_stay(shell: dict[str, str], own_file: Path) -> None:
    names = [f"s{number}" for number in range(5)]
    running = [start(shell, "add", name, "--", "x") for name in names]
    assert [process.communicate()[1] for process in running] == [b""] * 5
    assert [process.returncode for process in running] == [0] * 5
    assert sorted(entries(own_file)) == names


def test_secrets_are_written_and_never_shown(mcp: Mcp, own_file: Path) -> None:
    address = "https://me:pass-word@example.com/mcp?key=in-the-query"
    added = mcp(
        "add", "r", "--url", address, "--header", "Authorization: Bearer in-the-header", "--header", "X-Team:blue"
    )
    assert entries(own_file)["r"] == {
        "type": "http",
        "url": address,
        "headers": {"Authorization": "Bearer in-the-header", "X-Team": "blue"},
    }
    shown = added.stdout + mcp("list").stdout + mcp("list", "--json").stdout
    assert "https://example.com/mcp?…" in shown
    assert not any(secret in shown for secret in ("pass-word", "in-the-query", "in-the-header"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bad name", "--", "x"], "server name has"),
        (["taken", "--", "x"], "already a server called 'taken'"),
        (["x"], "either a URL or a command"),
        (["x", "--url", "https://a/b", "--", "x"], "either a URL or a command"),
        (["x", "--headr", "A: s3cret", "https://a/b"], "put the server's command after --"),
        (["x", "--url", "https://a/b", "--transport", "ws"], "begins with ws://"),
        (["x", "--url", "ftp://a/b"], "begins with http://"),
        (["x", "--url", "https://a/b", "--header", "s3cret"], "--header needs 'NAME: VALUE'"),
        (["x", "--env", "s3cret", "--", "x"], "--env needs NAME=VALUE"),
        (["x", "--url", "https://a/b", "--env", "A=s3cret"], "--env is for"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(mcp: Mcp, own_file: Path, arguments: list[str], expected: str) -> None:
    own_file.parent.mkdir(parents=True)
    own_file.write_text('{"mcpServers": {"taken": {"command": "old"}}}')
    answer = mcp("add", *arguments)
    assert answer.returncode == 2
    assert expected in answer.stderr
    assert "s3cret" not in answer.stderr
    assert entries(own_file) == {"taken": {"command": "old"}}


def test_force_replaces(mcp: Mcp, own_file: Path) -> None:
    mcp("add", "x", "--", "old")
    assert mcp("add", "x", "--force", "--", "new").returncode == 0
    assert entries(own_file)["x"]["command"] == "new"


def test_a_variable_need_not_be_set_yet(mcp: Mcp, own_file: Path) -> None:
    added = mcp("add", "x", "--url", "${SOME_URL}", "--header", "Authorization: ${SOME_TOKEN}")
    assert added.returncode == 0
    assert "SOME_URL" in added.stderr
    assert entries(own_file)["x"]["url"] == "${SOME_URL}"
    listed = mcp("list")
    assert listed.returncode == 1
    assert re.search(r"mcpServers\.x: .*\bSOME_URL\b", listed.stderr)
    shown = mcp("get", "x")
    assert shown.returncode == 2
    assert re.search(r"'x'.*\bSOME_URL\b", shown.stderr)
    again = mcp("list", SOME_URL="wss://example.com/x", SOME_TOKEN="t0ken")
    assert again.returncode == 0
    assert "t0ken" not in again.stdout


def test_a_file_that_is_not_json_is_left_as_it_is(mcp: Mcp, own_file: Path) -> None:
    own_file.parent.mkdir(parents=True)
    own_file.write_text("{ my notes")
    answer = mcp("add", "x", "--", "x")
    assert answer.returncode == 2
    assert str(own_file) in answer.stderr
    assert own_file.read_text() == "{ my notes"


def test_disabling_keeps_the_entry(mcp: Mcp, own_file: Path) -> None:
    mcp("add", "x", "--", "program")
    assert "x" in mcp("disable", "x").stdout.split()
    assert entries(own_file)["x"] == {"type": "stdio", "command": "program", "args": [], "disabled": True}
    assert "disabled" in mcp("list").stdout
    assert mcp("enable", "x").returncode == 0
    assert "disabled" not in entries(own_file)["x"]


def test_the_files_of_claude_code_are_read_and_left_alone(mcp: Mcp, sandbox: Sandbox, own_file: Path) -> None:
    claude = sandbox.home / ".claude.json"
    claude.write_text('{"mcpServers": {"shared": {"command": "theirs"}}}')
    (sandbox.project / ".mcp.json").write_text('{"mcpServers": {"p": {"command": "of-the-project"}}}')
    assert mcp("list").stdout.startswith("No servers.")
    listed = {server["name"]: server for server in json.loads(mcp("list", "--json", "--all").stdout)}
    assert (listed["shared"]["scope"], listed["shared"]["enabled"]) == ("user", True)
    assert (listed["p"]["scope"], listed["p"]["reason"]) == ("project", "from .mcp.json, and not approved")
    assert "theirs" in mcp("list", CLAUDE_CODE_MCP_HUB="all").stdout
    for action in ("remove", "disable", "enable"):
        refused = mcp(action, "shared")
        assert refused.returncode == 2
        assert f" {claude}" in refused.stderr
    mcp("add", "shared", "--", "ours")
    assert "ours" in mcp("list", "--all").stdout
    assert f" {claude}" in mcp("remove", "shared", "--all").stdout


@pytest.mark.parametrize("action", ["remove", "enable", "disable", "login", "logout"])
def test_unknown_name_is_not_found(mcp: Mcp, action: str) -> None:
    answer = mcp(action, "nobody")
    assert answer.returncode == 3
    assert "'nobody'" in answer.stderr


def test_an_entry_is_added_as_json_and_shown_without_its_secrets(mcp: Mcp, own_file: Path) -> None:
    entry = {"command": "x", "args": ["--token", "s3cret-argument"], "env": {"API_KEY": "s3cret-variable"}}
    assert mcp("add-json", "x", json.dumps(entry), "-s", "user").returncode == 0
    assert entries(own_file)["x"] == entry
    printed = mcp("get", "x")
    assert printed.returncode == 0
    assert "variables: API_KEY" in printed.stdout
    assert "s3cret" not in printed.stdout + mcp("get", "x", "--json").stdout
    refused = mcp("add-json", "y", '{"command": "s3cret')
    assert refused.returncode == 2
    assert "s3cret" not in refused.stderr


def test_the_servers_of_other_programs_are_copied(mcp: Mcp, own_file: Path, sandbox: Sandbox) -> None:
    desktop = Path(mcp("import", "claude-desktop").stderr.split("There is no ")[1].split(".json")[0] + ".json")
    desktop.parent.mkdir(parents=True, exist_ok=True)
    desktop.write_text('{"mcpServers": {"files": {"command": "npx", "args": ["files"]}, "bad": {"type": "http"}}}')
    code = sandbox.project / ".vscode" / "mcp.json"
    code.parent.mkdir()
    code.write_text('{"servers": {"gh": {"url": "https://a/mcp", "headers": {"A": "${input:gh-token}"}}}, /* mine */}')
    first = mcp("import", "claude-desktop")
    assert first.returncode == 1
    assert "bad: url" in first.stderr
    assert "files: stdio, npx files" in first.stdout
    assert mcp("import", "vscode").returncode == 0
    assert entries(own_file) == {
        "files": {"command": "npx", "args": ["files"]},
        "gh": {"url": "https://a/mcp", "headers": {"A": "${GH_TOKEN}"}},
    }
    assert "already exists" in mcp("import", str(code), "gh").stdout
    assert mcp("import", "vscode", "nobody").returncode == 3


def test_a_server_is_installed_by_name_from_a_registry_file(mcp: Mcp, own_file: Path, sandbox: Sandbox) -> None:
    registry = sandbox.project / "registry.json"
    package = {"registryType": "npm", "identifier": "files", "version": "2.0.0", "transport": {"type": "stdio"}}
    names = ("com.example/files", "com.example/other")
    registry.write_text(json.dumps({"servers": [{"server": {"name": name, "packages": [package]}} for name in names]}))
    assert mcp("import", str(registry)).returncode == 2
    added = mcp("import", str(registry), "com.example/files")
    assert "files: stdio, npx -y files@2.0.0" in added.stdout
    assert entries(own_file) == {"files": {"command": "npx", "args": ["-y", "files@2.0.0"]}}
    assert mcp("import", str(registry), "com.example/nobody").returncode == 3


def test_comments_and_order_stay_when_a_server_is_added_changed_and_removed(mcp: Mcp, own_file: Path) -> None:
    own_file.parent.mkdir(parents=True)
    before = """{
  // the servers of this machine
  "mcpServers": {
    "old": { "command": "x" }, // ours
  },
  /* theirs */ "other": [1, 2],
}
"""
    own_file.write_text(before)
    assert mcp("add", "new", "https://example.com/mcp").returncode == 0
    assert sorted(entries(own_file)) == ["new", "old"]
    assert mcp("disable", "old").returncode == 0
    text = own_file.read_text()
    for comment in ("// the servers of this machine", "// ours", "/* theirs */"):
        assert comment in text
    assert text.index('"mcpServers"') < text.index('"other"')
    assert mcp("enable", "old").returncode == 0
    assert mcp("remove", "new").returncode == 0
    after = own_file.read_text()
    assert decode_with_comments(after) == decode_with_comments(before)
    assert all(comment in after for comment in ("// the servers of this machine", "// ours", "/* theirs */"))
    assert [*own_file.parent.glob("*.with-comments")] == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["add-json", "x", '{"command": "c"}', "--sekret=s3cret"], "--sekret is not an option of mcp add-json"),
        (["add-json", "x", "--env", "s3cret"], "--env is not an option of mcp add-json"),
        (["add-json", "x", '{"command": "c"}', "s3cret"], "needs a name and an entry as one argument"),
        (["connect", "http", "http://127.0.0.1:1/", "--headers", "s3cret"], "unrecognized arguments: --headers"),
    ],
)
def test_no_mistyped_line_repeats_a_secret(mcp: Mcp, line: list[str], expected: str) -> None:
    answer = mcp(*line)
    assert answer.returncode == 2
    assert expected in answer.stderr
    assert "s3cret" not in answer.stderr + answer.stdout


def test_an_entry_is_read_from_standard_input(mcp: Mcp, own_file: Path) -> None:
    added = mcp("add-json", "x", "-", "--client-secret", "s3cret", lines='{"type": "http", "url": "https://x.example"}')
    assert (added.returncode, added.stderr) == (0, "")
    assert json.loads(own_file.read_text())["mcpServers"]["x"]["oauth"] == {"clientSecret": "s3cret"}
    assert "s3cret" not in added.stdout
