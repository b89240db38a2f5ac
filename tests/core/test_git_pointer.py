"""What a session can put in place of the file by which git names a directory: nobody waits for it or reads forever."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.start_inputs import start_inputs
from claude_code_mcp.core.git import find_repository
from claude_code_mcp.core.private_files import GIT_FILE, named_in
from claude_code_mcp.hub.approvals import project_roots

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices of POSIX")


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def a_link_to_a_device(file: Path) -> None:
    file.symlink_to("/dev/zero")


def a_huge_file(file: Path) -> None:
    with file.open("wb") as huge:
        huge.write(b"gitdir: x\n")
        huge.truncate(1 << 40)


def a_link_to_a_file(file: Path) -> None:
    other = file.with_name("other")
    other.write_text(f"gitdir: {file.parent}\n")
    file.symlink_to(other)


def no_line_of_git(file: Path) -> None:
    file.write_text("gitdir: one\ngitdir: two\n")


WRONG = [a_pipe, a_link_to_a_device, a_huge_file, a_link_to_a_file, no_line_of_git]


@pytest.mark.parametrize("put", WRONG, ids=lambda put: put.__name__)
def test_only_a_small_regular_file_is_read(tmp_path: Path, put: Callable[[Path], None]) -> None:
    project = tmp_path.resolve()
    put(project / ".git")
    assert named_in(project / ".git", GIT_FILE) is None
    assert project_roots(project) == [project]
    assert start_inputs({"HOME": str(project / "home")}, str(project), [], sys.executable) is None
    assert find_repository(str(project), lambda place: True) is None


@pytest.mark.parametrize("put", WRONG[:-1], ids=lambda put: put.__name__)
def test_the_other_end_of_a_worktree_is_read_as_carefully(tmp_path: Path, put: Callable[[Path], None]) -> None:
    project = tmp_path.resolve() / "tree"
    inside = tmp_path.resolve() / "main" / ".git" / "worktrees" / "tree"
    project.mkdir()
    inside.mkdir(parents=True)
    (project / ".git").write_text(f"gitdir: {inside}\n")
    put(inside / "gitdir")
    assert project_roots(project) == [project]


def test_line_resolves_relative_paths_and_detects_link_loops(tmp_path: Path) -> None:
    place = tmp_path.resolve()
    (place / "loop").symlink_to("loop")
    for line, named in (("gitdir: ../x\n", place.parent / "x"), ("gitdir: loop/y", place / "loop" / "y")):
        (place / ".git").write_text(line)
        assert named_in(place / ".git", GIT_FILE) == str(named)
        assert project_roots(place) == [place]
