"""Where the CLI keeps its files, and whether the user has registered this server with it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.claude.user_config import own_registrations
from claude_code_mcp.core.model.paths import config_directory

OURS = {"command": "uvx", "args": ["claude-code-mcp"]}
OTHER = {"command": "npx", "args": ["-y", "something"]}


def test_transcripts_are_where_the_cli_looks_for_them() -> None:
    assert config_directory({"CLAUDE_CONFIG_DIR": "/c", "HOME": "/h"}) == "/c"
    assert config_directory({"HOME": "/h"}) == os.path.join("/h", ".claude")


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_registrations_of_the_user_the_project_and_the_directories_above_are_found(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "above" / "project"
    write(
        home / ".claude.json", {"mcpServers": {"a": OURS, "b": OTHER}, "projects": {"/x": {"mcpServers": {"c": OURS}}}}
    )
    write(project / ".mcp.json", {"mcpServers": {"d": {"command": "/bin/claude-code-mcp"}}})
    write(project.parent / ".mcp.json", {"mcpServers": {"e": {"command": "claude-code-mcp", "args": ["serve"]}}})
    assert own_registrations({"HOME": str(home)}, str(project)) == (
        ("uvx", "claude-code-mcp"),
        ("/bin/claude-code-mcp",),
        ("claude-code-mcp", "serve"),
    )


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / ".claude.json"
    write(file, {"mcpServers": {}})
    assert own_registrations({"HOME": str(tmp_path)}, str(tmp_path)) == ()
    write(file, {"mcpServers": {"a": OURS}})
    assert own_registrations({"HOME": str(tmp_path)}, str(tmp_path)) == (("uvx", "claude-code-mcp"),)


@pytest.mark.parametrize(
    "content",
    ["", "[", "[" * 100_000, "null", {"mcpServers": [1]}, {"mcpServers": {"a": 1}}, {"mcpServers": {"a": {"args": 5}}}],
    ids=range(7),
)
def test_a_malformed_file_registers_nothing(tmp_path: Path, content: Any) -> None:
    write(tmp_path / ".claude.json", content)
    assert own_registrations({"HOME": str(tmp_path)}, str(tmp_path)) == ()


@pytest.mark.skipif(os.name != "posix", reason="there are pipes and devices in directories on POSIX")
@pytest.mark.parametrize("kind", ["a pipe", "a device", "a directory"])
def test_non_regular_file_registers_nothing_and_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """A session can put it there, and this server would wait or read without end."""
    place = tmp_path / ".mcp.json"
    if kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a device":
        place.symlink_to("/dev/zero")
    else:
        place.mkdir()
    assert own_registrations({"HOME": str(tmp_path)}, str(tmp_path)) == ()
