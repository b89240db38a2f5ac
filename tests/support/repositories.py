"""Repositories for the tests of worktrees, made by the git of this machine."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from claude_code_mcp.core.isolation import Home
from claude_code_mcp.core.policy.policy import Policy
from claude_code_mcp.core.sessions.callers.policy_enforcer import PolicyEnforcer
from claude_code_mcp.core.state.spending import Spending
from claude_code_mcp.core.state.state_directory import database_in
from tests.support.system_packages import require

IDENTITY = {
    "GIT_AUTHOR_NAME": "Test",
    "GIT_AUTHOR_EMAIL": "test@example.org",
    "GIT_COMMITTER_NAME": "Test",
    "GIT_COMMITTER_EMAIL": "test@example.org",
}


def git(directory: Path | str, *arguments: str, fails: bool = False) -> str:
    """What git prints; it must succeed unless it is to fail."""
    require("git")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **IDENTITY}
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert bool(done.returncode) is fails, done.stderr
    return done.stdout.strip()


def repository(path: Path, **files: str) -> Path:
    """A repository with one commit on `main`: a file `a.txt`, an ignored pattern, these, and what lies there already.
    To copy one takes a fifth of the programs that making it takes."""
    path.mkdir(parents=True, exist_ok=True)
    if any(path.iterdir()):
        return _made(path, files)
    made = _TEMPLATES.get(tuple(files.items()))
    if made is None:
        require("git")  # before the directory: a skip would leave it to the garbage collector, which warns
        directory = tempfile.TemporaryDirectory(prefix="repository-")
        made = _TEMPLATES[tuple(files.items())] = (directory, _made(Path(directory.name), files))
    shutil.copytree(made[1], path, symlinks=True, dirs_exist_ok=True)
    git(path, "update-index", "-q", "--refresh")  # it knows the files by their inodes
    return Path(os.path.realpath(path))


_TEMPLATES: dict[tuple[tuple[str, str], ...], tuple["tempfile.TemporaryDirectory[str]", Path]] = {}
"""By their further files: the directory, which goes with the run, and the repository in it."""


def _made(path: Path, files: dict[str, str]) -> Path:
    git(path, "init", "-q", "-b", "main")
    git(path, "config", "user.name", "Test")
    git(path, "config", "user.email", "test@example.org")
    for name, content in {"a.txt": "one\n", ".gitignore": "*.log\n", "sub/b.txt": "b\n", **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(content)
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "first")
    return Path(os.path.realpath(path))


def home(tmp_path: Path) -> Home:
    return Home.of_user({"PATH": os.environ["PATH"], "HOME": str(tmp_path)})


def enforcer(tmp_path: Path, policy: Policy | None = None) -> PolicyEnforcer:
    return PolicyEnforcer(policy or Policy(), str(tmp_path), Spending(database_in(tmp_path / "state")))
