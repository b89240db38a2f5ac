"""What is long or secret is written where only its owner can read it, and does not stay there."""

import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.process import ClaudeProcess
from claude_code_mcp.core.errors import ProcessFailed
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.processes.leftovers import new_mark, scratch_path, sweep_stale
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool

from .conftest import Listener, mark_of_a_dead_server, prepared

posix = pytest.mark.skipif(sys.platform == "win32", reason="modes of files are POSIX")
SECRETIVE = SessionOptions(append_system_prompt="a secret word", mcp_servers={})


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files that nobody else uses."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def names(place: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in place.glob(pattern))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_files_are_0600_in_a_0700_directory_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        command, directory = prepared(SECRETIVE, "id", new_mark())
    finally:
        os.umask(before)
    assert directory is not None
    assert mode(directory) == 0o700
    assert {mode(path) for path in command.files} == {0o600}
    assert (directory / "append-system-prompt.txt").read_text() == "a secret word"


def test_without_files_there_is_no_directory(temporary: Path) -> None:
    _, directory = prepared(SessionOptions(model="opus"), "id", new_mark())
    assert directory is None
    assert names(temporary) == []


@posix
def test_a_directory_whose_files_cannot_be_written_is_removed(temporary: Path) -> None:
    import resource  # noqa: PLC0415 - there is none on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            prepared(SECRETIVE, "id", new_mark())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(temporary) == []


async def test_files_are_removed_when_the_start_fails(temporary: Path, environment: dict[str, str]) -> None:
    mark = new_mark()
    command, scratch = prepared(SECRETIVE, "id", mark)
    with pytest.raises(ProcessFailed, match="could not be started"):
        await ClaudeProcess.start(
            Listener(),
            [sys.executable, *command.arguments],
            cwd="/no/such/directory",
            environment=environment,
            mark=mark,
            scratch=scratch,
        )
    assert names(temporary) == []


async def test_files_live_as_long_as_the_process_and_no_longer(
    temporary: Path, service: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    options = SECRETIVE.model_copy(update={"cwd": str(sandbox.project), "allowed_tools": ("Bash",)})
    turn = await service.create(script("Look.", tool("Bash", command="echo hi"), "Done."), options)
    session = turn.session
    assert (await turn.outcome()).ok
    assert names(temporary, "claude-code-mcp-*/append*") == ["append-system-prompt.txt"]
    assert "a secret word" in str([one.system for one in model.requests if one.session_id == session.id])
    await session.cancel()
    await session.closed()
    assert names(temporary, "claude-code-mcp-*") == []


async def test_files_of_a_server_that_was_killed_are_swept_and_those_of_a_living_one_stay(temporary: Path) -> None:
    stale = scratch_path(mark_of_a_dead_server())
    stale.mkdir()
    (stale / "mcp.json").write_text("{}")
    mine = scratch_path(new_mark())
    mine.mkdir()
    strangers = temporary / "claude-code-mcp-something-else"
    strangers.mkdir()
    await sweep_stale()
    assert names(temporary) == sorted([mine.name, strangers.name])
