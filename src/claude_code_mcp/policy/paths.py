"""Paths: whether one lies below another, and whether it fits a pattern. Whoever asks has resolved them before."""

import posixpath
import re
from collections.abc import Callable
from functools import lru_cache

Resolve = Callable[[str], str]
"""A path → where it really is: absolute, `~` expanded, symlinks followed as far as they exist."""


def lies_below(path: str, root: str) -> bool:
    """Whether a resolved path is a resolved root or below it. `/srv/app-old` is not below `/srv/app`."""
    return path == root or path.startswith(root.rstrip("/") + "/")


def absolute(path: str, cwd: str) -> str:
    """Absolute and without `.` and `..`, links not looked at."""
    return posixpath.normpath(path if path.startswith(("/", "~")) else posixpath.join(cwd, path))


def fits(path: str, pattern: str, cwd: str) -> bool:
    """Whether an absolute path fits a pattern: `**` for any depth, `*` and `?` within a name.

    A pattern that does not begin with `/` starts at `cwd`; one without a wildcard includes what lies below it.
    """
    if not pattern.startswith("/"):
        if not lies_below(path, cwd):
            return False
        path = posixpath.relpath(path, cwd)
    return _compiled("/" + pattern.lstrip("/") if pattern.startswith("/") else pattern).fullmatch(path) is not None


@lru_cache(maxsize=1000)
def _compiled(pattern: str) -> re.Pattern[str]:
    pattern = posixpath.normpath(pattern)
    if pattern == ".":
        return re.compile(r".*", re.DOTALL)
    text = "".join(_part(part) for part in re.split(r"(/\*\*/|^\*\*/|/\*\*$|^\*\*$|\*|\?)", pattern) if part)
    below = "" if set("*?") & set(pattern) else r"(?:/.*)?"
    return re.compile(text + below, re.DOTALL)


_WILDCARDS = {
    "/**/": r"/(?:.*/)?",
    "**/": r"(?:.*/)?",
    "/**": r"(?:/.*)?",
    "**": r".*",
    "*": r"[^/]*",
    "?": r"[^/]",
}


def _part(part: str) -> str:
    return _WILDCARDS.get(part) or re.escape(part)
