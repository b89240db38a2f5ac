"""The line that adds an extra is that of the tool which has made this installation."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.installation import extra_command, requirement

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="quoted as a POSIX shell takes it")

RECEIPT = """[tool]
requirements = [{ name = "claude-code-mcp", extras = ["cli", "web"] }, { name = "other", extras = ["x"] }]
entrypoints = []
"""


def test_uv_tool_and_pipx_keep_the_extras_that_are_there(tmp_path: Path) -> None:
    receipt = tmp_path / "uv-receipt.toml"
    receipt.write_text(RECEIPT)
    assert extra_command("tui", str(tmp_path), {}) == "uv tool install 'claude-code-mcp[cli,tui,web]'"
    receipt.unlink()
    noted = {"main_package": {"package": "claude-code-mcp", "package_or_url": "claude-code-mcp[cli, oauth]==0.1"}}
    (tmp_path / "pipx_metadata.json").write_text(json.dumps(noted))
    assert extra_command("tui", str(tmp_path), {}) == "pipx install --force 'claude-code-mcp[cli,oauth,tui]'"


@pytest.mark.parametrize("name", ["uv-receipt.toml", "pipx_metadata.json"])
@pytest.mark.parametrize("text", ["", "[", "{}", '{"main_package": []}', "tool = 1"])
def test_a_note_that_cannot_be_read_names_the_installer_anyway(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    installer = "uv tool install" if name.startswith("uv") else "pipx install --force"
    assert extra_command("tui", str(tmp_path), {}) == f"{installer} 'claude-code-mcp[tui]'"


def test_what_uvx_runs_is_run_with_the_extra(tmp_path: Path) -> None:
    command = extra_command("tui", str(tmp_path / "archive-v0" / "Ab1"), {})
    assert command in {f"uvx --from 'claude-code-mcp[{extras}]' claude-code-mcp" for extras in ("tui", "cli,tui")}


def test_pip_is_that_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "bin" / "pip"
    pip.parent.mkdir()
    pip.touch(mode=0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    elsewhere = extra_command("fleet", str(tmp_path), {})
    assert elsewhere.startswith((f"{sys.executable} -m pip install ", "uv pip install --python "))
    assert elsewhere.endswith(" 'claude-code-mcp[fleet]'")
    monkeypatch.setenv("PATH", str(pip.parent))
    assert extra_command("fleet", str(tmp_path), {}) in ("pip install 'claude-code-mcp[fleet]'", elsewhere)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ({}, "claude-code-mcp[tui]"),
        (
            {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git"}},
            "claude-code-mcp[tui] @ git+https://example.org/x.git",
        ),
        ({"url": "file:///my%20clone", "dir_info": {"editable": True}}, "/my clone[tui]"),
        ({"url": "https://example.org/x.whl", "archive_info": {}}, "claude-code-mcp[tui] @ https://example.org/x.whl"),
    ],
)
def test_it_is_installed_from_where_it_came(tmp_path: Path, origin: dict[str, Any], expected: str) -> None:
    assert requirement({"tui"}, origin) == expected
    is_editable = "editable" in str(origin)
    assert extra_command("tui", str(tmp_path), origin).endswith(f"{'-e ' if is_editable else ''}'{expected}'")
