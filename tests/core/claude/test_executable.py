"""Where the CLI is looked for, in which order, and what is said when it is nowhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from claude_code_mcp.core.claude import executable
from claude_code_mcp.core.claude.executable import bundled_executable, find_executable
from claude_code_mcp.core.errors import ExecutableNotFound
from claude_code_mcp.core.installation import extra_command
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX")


def program(path: Path, mode: int = 0o755) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return str(path)


@pytest.fixture
def nothing_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executable, "_CARRIER", "a_package_that_does_not_exist")


def test_explicit_executable_is_used_first(tmp_path: Path) -> None:
    explicit = program(tmp_path / "mine")
    program(tmp_path / "bin" / "claude")
    assert find_executable(explicit, {"PATH": str(tmp_path / "bin")}) == explicit


def test_executable_on_path_is_used_second(tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / "claude")
    assert find_executable(None, {"PATH": str(tmp_path / "bin")}) == on_path


def test_bundled_executable_is_used_last(tmp_path: Path) -> None:
    found = find_executable(None, {"PATH": str(tmp_path)})
    assert found == bundled_executable()
    assert Path(found).parts[-3:] == ("claude_agent_sdk", "_bundled", "claude")


@pytest.mark.usefixtures("nothing_bundled")
def test_nothing_found_says_how_to_install_it(tmp_path: Path) -> None:
    with pytest.raises(ExecutableNotFound) as caught:
        find_executable(None, {"PATH": str(tmp_path)})
    assert caught.value.code == "CLI_NOT_FOUND"
    assert extra_command("cli") in caught.value.message
    assert "CLAUDE_CODE_PATH" in caught.value.message


def test_an_explicit_path_that_is_wrong_is_not_passed_over(tmp_path: Path) -> None:
    on_path = {"PATH": str(Path(program(tmp_path / "bin" / "claude")).parent)}
    for wrong in (tmp_path / "absent", tmp_path, Path(program(tmp_path / "plain", 0o644))):
        with pytest.raises(ExecutableNotFound, match="CLAUDE_CODE_PATH names"):
            find_executable(str(wrong), on_path)


def test_an_explicit_name_is_looked_up_on_the_path(tmp_path: Path) -> None:
    named = program(tmp_path / "bin" / "claude-next")
    assert find_executable("claude-next", {"PATH": str(tmp_path / "bin")}) == named


def test_a_relative_path_holds_wherever_the_session_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = program(tmp_path / "bin" / "claude")
    monkeypatch.chdir(tmp_path)
    assert find_executable("bin/claude") == expected
    assert find_executable(None, {"PATH": "bin"}) == expected


def test_the_carrier_of_the_binary_is_not_imported() -> None:
    code = (
        "import sys; from claude_code_mcp.core.claude.executable import *; assert bundled_executable();"
        "print([name for name in sys.modules if 'agent_sdk' in name])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


async def test_a_session_that_has_no_executable_is_refused_before_it_begins(service: Service, sandbox: Sandbox) -> None:
    with pytest.raises(ExecutableNotFound):
        await service.create("hello", SessionOptions(cwd=str(sandbox.project), executable="/no/such/claude"))
    assert service.sessions() == []
