"""Where the git repository of a directory is, found by looking and not by git.

Git follows what a repository's files say, wherever that leads, and its answers would tell what there is. Here every
place that a file names is permitted first, and opened then; no link is followed. What git does with the repository
afterwards it does in the sandbox of the session, if there is one. Functions block on the disk.
"""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..git_pointer import GIT_FILE, named_in


@dataclass(frozen=True, slots=True)
class Repository:
    """The checkout that a directory is in."""

    top: str
    git_dir: str
    common_dir: str
    """That of the main checkout, for one of several worktrees; else `git_dir`."""


def find_repository(directory: str, permitted: Callable[[str], bool]) -> Repository | None:
    """The repository of a directory, whose path has no links; None if there is none all of which is permitted."""
    for place in (Path(directory), *Path(directory).parents):
        kind = _kind(place / ".git")
        if kind is None:
            continue
        git_dir = str(place / ".git") if kind == "directory" else named_in(place / ".git", GIT_FILE)
        if git_dir is None or not permitted(str(place)) or not permitted(git_dir):
            return None
        common_dir = git_dir
        if _kind(Path(git_dir, "commondir")) is not None:
            named = named_in(Path(git_dir, "commondir"))
            if named is None or not permitted(named):
                return None
            common_dir = named
        parts = [Path(git_dir, "HEAD"), Path(common_dir, "objects"), Path(common_dir, "config")]
        return Repository(str(place), git_dir, common_dir) if all(map(_kind, parts)) else None
    return None


def _kind(path: Path) -> str | None:
    """`file` or `directory`; None for a link, anything else, and what is not there."""
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return None
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else None


def foreign_settings(configuration: str, repository: Repository) -> Iterator[str]:
    """Settings of a repository's own configuration that lead out of it, by name; `configuration` is what
    `git config --list -z --no-includes` prints. Git says of a file that it includes whether it is there."""
    for setting in configuration.split("\0"):
        name, _, value = setting.partition("\n")
        if name == "include.path" or (name.startswith("includeif.") and name.endswith(".path")):
            yield name
        if name == "core.worktree":
            place = os.path.realpath(os.path.join(repository.git_dir, value))
            if place != repository.top:
                yield name
