"""The fingerprint of what Claude Code reads at its start, over files that a session may have written."""

import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.start_inputs import start_inputs


def fingerprint(project: Path) -> str | None:
    return start_inputs({"HOME": str(project.parent / "home")}, str(project), [], sys.executable)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


def test_references_to_unknown_users_are_ignored(project: Path) -> None:
    (project / "CLAUDE.md").write_text("see @~nosuchuserzz/x and @real.md\n")
    before = fingerprint(project)
    assert before is not None
    (project / "real.md").write_text("what the other reference leads to still counts")
    assert fingerprint(project) not in (None, before)


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
@pytest.mark.parametrize("name", ["CLAUDE.md", ".mcp.json"])
def test_a_link_that_leads_to_itself_is_a_file_that_is_not_there(project: Path, name: str) -> None:
    without = fingerprint(project)
    (project / name).symlink_to(name)
    assert fingerprint(project) not in (None, without)
