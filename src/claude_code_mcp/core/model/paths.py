"""Path notation and comparison on one platform, and the location of Claude Code's files. Never reads the disk.

`HERE` has the rules of the current platform and is the only place that decides them. Code that compares paths takes
`PathRules` as a parameter, so that both kinds are tested on every platform.
"""

import ntpath
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

_ONE_LETTER = re.compile(r"[/\\][A-Za-z](?:[/\\]|$)")
_VERBATIM = (("\\\\?\\UNC\\", "\\\\"), ("\\\\?\\", ""))


class PathRules:
    r"""The rules of POSIX or of Windows.

    On Windows, `/` and `\` are equal, and so are upper and lower case. `C:\x` and `\\server\share\x` are absolute; `\x`
    is on the drive of its starting directory, and `D:x` in the process's current directory on that drive. Names do not
    end in dots or spaces, and the part after a colon is a stream of the file before it.
    """

    def __init__(self, flavor: ModuleType) -> None:
        """`flavor` is `posixpath` or `ntpath`."""
        self._flavor = flavor
        self._windows = flavor is ntpath

    def is_absolute(self, path: str) -> bool:
        """Whether the path leads to the same place from every directory; `~` counts as absolute."""
        if path.startswith("~"):
            return True
        if not self._windows:
            return path.startswith("/")
        drive, rest = ntpath.splitdrive(path)
        return bool(drive) and (len(drive) > 2 or rest.startswith(("/", "\\")))

    def may_lead_outside(self, path: str) -> bool:
        """Whether the path may lead out of its starting directory."""
        if self.is_absolute(path) or ".." in path:
            return True
        return self._windows and (path.startswith(("/", "\\")) or bool(ntpath.splitdrive(path)[0]))

    def joined(self, base: str, path: str) -> str | None:
        r"""Where a path leads from an absolute directory; None if that is unknown, such as `D:x` from `C:\`. Does not
        resolve `..` or links."""
        if self.is_absolute(path):
            return path
        if self._windows and _ONE_LETTER.match(path):
            return None  # `/c/x`: some programs take it for `C:\x`, others for `\c\x`
        joined = str(self._flavor.join(base, path))
        return joined if self.is_absolute(joined) else None

    def pattern_start(self, pattern: str, cwd: str) -> str | None:
        """An absolute pattern whose beginning is written like a path; None for one that starts at `cwd`. On POSIX a
        pattern may begin with any number of slashes; on Windows, one that begins with a single slash is on the drive of
        `cwd`."""
        if self._windows and pattern.startswith(("/", "\\")) and not self.is_absolute(pattern):
            return ntpath.splitdrive(cwd)[0] + pattern
        if not self.is_absolute(pattern):
            return None
        return pattern if self._windows or pattern.startswith("~") else "/" + pattern.lstrip("/")

    def normal(self, path: str) -> str:
        """The path without `.` and `..`, not following links."""
        return str(self._flavor.normpath(path))

    def split_head(self, text: str) -> tuple[str, str]:
        """The path up to and including the last separator, and the rest."""
        end = max(text.rfind(separator) for separator in ("/\\" if self._windows else "/")) + 1
        return text[:end], text[end:]

    def parts(self, path: str) -> list[str]:
        """The names in a path, its drive or server first, in a form in which equal names are equal strings."""
        return [self._compared(name) for name in self.names(path)]

    def names(self, path: str) -> list[str]:
        """The names in a path as written, without empty names and `.`; `..` stays."""
        if self._windows:
            path = path.replace("/", "\\")
            for prefix, instead in _VERBATIM:
                if path[: len(prefix)].upper() == prefix:
                    path = instead + path[len(prefix) :]
                    break
        names = path.split("\\" if self._windows else "/")
        return [name for name in names if name not in ("", ".")]

    def _compared(self, name: str) -> str:
        if not self._windows:
            return name
        name, colon, _ = name.partition(":")
        drive = ":" if colon and len(name) == 1 else ""
        return f"{name.rstrip('. ') or name}{drive}".lower()

    def below(self, path: str, root: str) -> list[str] | None:
        """The names of a path relative to a directory; None if it is not below or equal to it. `/srv/app-old` is not
        below `/srv/app`. Both must be absolute; a path with `..` is below nothing."""
        names, above = self.names(path), self.parts(root)
        if ".." in names or list(map(self._compared, names[: len(above)])) != above:
            return None
        return names[len(above) :]

    def is_below(self, path: str, root: str) -> bool:
        """Whether a path is this directory or below it, as in `below`."""
        return self.below(path, root) is not None

    def shown_from(self, path: str, cwd: str) -> str:
        """The path relative to the directory if it is below that, otherwise unchanged."""
        below = self.below(path, cwd) if cwd and self.is_absolute(path) else None
        return str(self._flavor.sep).join(below) if below else path


POSIX = PathRules(posixpath)
WINDOWS = PathRules(ntpath)
HERE = WINDOWS if os.path is ntpath else POSIX


# -- claude home ------------------------------------------------------------------------------------------------------


def config_directory(environment: Mapping[str, str]) -> str:
    """Where the CLI keeps its transcripts and the user's settings."""
    explicit = environment.get("CLAUDE_CONFIG_DIR")
    if explicit:
        return explicit
    home = environment.get("HOME") or environment.get("USERPROFILE") or os.path.expanduser("~")
    return os.path.join(home, ".claude")


def user_file(environment: Mapping[str, str]) -> Path:
    """The CLI's `.claude.json`: next to its configuration directory, or inside if that was set explicitly."""
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home or Path.home()) / ".claude.json"
