"""The small files in which git names a directory: the `.git` of a worktree or submodule, and `commondir` and `gitdir`
in the directory that it leads to. A session or a checkout may have put anything in their place: a pipe that nobody
writes to, a link to a device without end, a file of many gigabytes."""

import os
from pathlib import Path

from .private_files import read_regular

GIT_FILE = "gitdir:"
"""How the line of a `.git` begins."""
_LONGEST = 4096


def named_in(file: Path, prefix: str = "") -> str | None:
    """The place that the only line of a file names, without links in its path; None if there is no such line. A link in
    place of the file is not followed, only a regular file is read, and none that is longer than a path. Never waits for
    anybody but the disk."""
    try:
        text = read_regular(file, _LONGEST, follow_link=False).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return None
    line = text.removesuffix("\n").removesuffix("\r")
    if not line.startswith(prefix) or "\n" in line or "\0" in line:
        return None
    return os.path.realpath(os.path.join(file.parent, line.removeprefix(prefix).strip()))
