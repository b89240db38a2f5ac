"""How paths are written and compared on one platform, and where Claude Code keeps its files. Nothing is looked up on
the disk.

`HERE` has the rules of the platform this runs on, and is the only place that decides which they are. Code that
compares paths takes `PathRules` as a parameter, so that both kinds are tested on every platform.
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
    """The rules of POSIX or of Windows.

    Windows: `/` and `\\` are the same, so are upper and lower case; `C:\\x` and `\\\\server\\share\\x` are absolute;
    `\\x` is on the drive of the directory it starts from, and `D:x` in whatever directory the process has on that
    drive. Names end neither in dots nor in spaces, and what follows a colon is a stream of the file before it.
    """

    def __init__(self, flavour: ModuleType) -> None:
        """`flavour` is `posixpath` or `ntpath`."""
        self._flavour = flavour
        self._windows = flavour is ntpath

    def is_absolute(self, path: str) -> bool:
        """Whether it leads to the same place from every directory; `~` counts as absolute."""
        if path.startswith("~"):
            return True
        if not self._windows:
            return path.startswith("/")
        drive, rest = ntpath.splitdrive(path)
        return bool(drive) and (len(drive) > 2 or rest.startswith(("/", "\\")))

    def leads_away(self, path: str) -> bool:
        """Whether it may lead out of the directory it starts from."""
        if self.is_absolute(path) or ".." in path:
            return True
        return self._windows and (path.startswith(("/", "\\")) or bool(ntpath.splitdrive(path)[0]))

    def joined(self, base: str, path: str) -> str | None:
        """Where a path leads from an absolute directory; None where that cannot be told, such as `D:x` from `C:\\`.
        Neither `..` nor links are followed."""
        if self.is_absolute(path):
            return path
        if self._windows and _ONE_LETTER.match(path):
            return None  # `/c/x`: some programs take it for `C:\x`, others for `\c\x`
        joined = str(self._flavour.join(base, path))
        return joined if self.is_absolute(joined) else None

    def pattern_start(self, pattern: str, cwd: str) -> str | None:
        """An absolute pattern with its beginning as a path has it; None for one that starts at `cwd`.

        A pattern may begin with any number of slashes on POSIX; on Windows, one that begins with a single slash is on
        the drive of `cwd`.
        """
        if self._windows and pattern.startswith(("/", "\\")) and not self.is_absolute(pattern):
            return ntpath.splitdrive(cwd)[0] + pattern
        if not self.is_absolute(pattern):
            return None
        return pattern if self._windows or pattern.startswith("~") else "/" + pattern.lstrip("/")

    def normal(self, path: str) -> str:
        """Without `.` and `..`, links not looked at."""
        return str(self._flavour.normpath(path))

    def split_head(self, text: str) -> tuple[str, str]:
        """Up to and including the last separator, and the rest."""
        end = max(text.rfind(separator) for separator in ("/\\" if self._windows else "/")) + 1
        return text[:end], text[end:]

    def parts(self, path: str) -> list[str]:
        """The names in a path, its drive or server first, as they are compared: equal names are equal texts."""
        return [self._compared(name) for name in self.names(path)]

    def names(self, path: str) -> list[str]:
        """The names in a path as they are written, without empty ones and `.`; `..` stays."""
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
        """The names of a path from a directory that it is or lies below; None if it does not. `/srv/app-old` is not
        below `/srv/app`. Both are absolute, and a path with `..` lies nowhere."""
        names, above = self.names(path), self.parts(root)
        if ".." in names or list(map(self._compared, names[: len(above)])) != above:
            return None
        return names[len(above) :]

    def is_below(self, path: str, root: str) -> bool:
        """Whether a path is this directory or lies below it, as `below` has it."""
        return self.below(path, root) is not None

    def shown_from(self, path: str, cwd: str) -> str:
        """The path from a directory, if it lies below that; else as it is."""
        below = self.below(path, cwd) if cwd and self.is_absolute(path) else None
        return str(self._flavour.sep).join(below) if below else path


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
    """The CLI's `.claude.json`: beside its configuration directory, or in it if that was set explicitly."""
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    return Path(home or Path.home()) / ".claude.json"
