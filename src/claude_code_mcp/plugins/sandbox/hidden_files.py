"""Hides files that a rule denies to read: an empty file or directory is mounted over each.

A directory that a rule names (`conf` in `conf/key`) is mounted onto itself, so that no command can rename it: otherwise
the next process would find no such name and hide nothing. The same applies to the session's directory, where relative
rules begin, and to the directories above it up to the root.

Files are searched for when a process starts. A file that is created later, or replaced from outside the sandbox, is not
hidden: the rules still apply to Claude Code's tools, but a command can read it. Contents that also exist in a copy, a
hard link or the history of git are not hidden either.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ...core.errors import ProcessFailed
from ...core.model.paths import HERE
from ...core.policy.rules import Rule, concerns, unreadable_paths
from .bubblewrap import Mount

_MAX_ENTRIES = 1_000_000
"""Maximum number of names to check. In larger trees the process does not start, because it could read files that were
not found."""
_PROBE = "claude-code-mcp-probe"
"""A name that no rule mentions: if it is denied, so is everything in its directory."""


def covers(
    deny: Sequence[Rule], cwd: str, visible: Iterable[Mount], scratch: Path, opened: contextlib.ExitStack
) -> list[Mount]:
    """The mounts that hide unreadable files below the directories `visible` in a sandbox. The mounted empty file and
    directory are created in `scratch`; descriptors are closed with `opened`. Raises ProcessFailed if the directories
    cannot be searched, are too large, or change meanwhile. Blocks on the disk."""
    rules = [rule for rule in deny if rule.specifier and concerns(rule, "Read")]
    if not rules:
        return []
    cwd = os.path.realpath(cwd)
    # Absolute patterns are resolved: a link in the path of a file, as in `Read(link/*.pem)`, is followed.
    relative = [rule for rule in rules if HERE.pattern_start(rule.specifier or "", cwd) is None]
    rules += [Rule(rule.tool, os.path.join(cwd, rule.specifier or "")) for rule in relative]
    writable = {os.path.realpath(mount.target): mount.writable for mount in visible}
    places = [*writable]
    unreadable = unreadable_paths(rules, cwd, _resolve)
    assert unreadable is not None
    hidden = dict.fromkeys(_hidden(unreadable, cwd, _starts(rules, cwd, places)))
    found = [path for path in hidden if any(HERE.is_below(path, place) for place in places)]
    nothing, empty = scratch / "nothing", scratch / "empty"
    if found:
        nothing.mkdir(mode=0o500, exist_ok=True)
        empty.touch(mode=0o400)
    pinned: dict[str, None] = {}
    for path in found:
        place = max((place for place in places if HERE.is_below(path, place)), key=len)
        if writable[place]:
            pinned.update(dict.fromkeys(_named_by_rule(unreadable, path, place)))
    return [
        *(_onto_itself(directory, opened) for directory in pinned),
        *(Mount(path, str(nothing if os.path.isdir(path) else empty)) for path in found),
    ]


def _named_by_rule(unreadable: re.Pattern[str], path: str, place: str) -> Iterator[str]:
    """The directories around a hidden file, below `place`, without whose names no rule would hide the file, wherever
    they are moved within `place`. For a relative rule this includes the session's directory. For files hidden because
    they cannot be searched, or because a link leads to them, these are all directories around them."""
    directory = os.path.dirname(path)
    while directory != place and HERE.is_below(directory, place):
        rest = os.path.relpath(path, directory)
        renamed = (os.path.dirname(directory), place, os.path.join(place, _PROBE))
        if not all(_is_unreadable(unreadable, os.path.join(parent, _PROBE, rest)) for parent in renamed):
            yield directory
        directory = os.path.dirname(directory)


def _is_unreadable(unreadable: re.Pattern[str], path: str) -> bool:
    """Whether a rule matches this file, or everything in this directory."""
    path = path.casefold()
    return unreadable.fullmatch(path) is not None or all(
        map(unreadable.fullmatch, (f"{path}/{_PROBE}", f"{path}/{_PROBE}/{_PROBE}"))
    )


def _onto_itself(directory: str, opened: contextlib.ExitStack) -> Mount:
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    opened.callback(os.close, descriptor)
    # The path may contain a link since the search: the mount must not lead elsewhere.
    if os.readlink(f"/proc/self/fd/{descriptor}") != directory:
        raise ProcessFailed(f"{directory} was replaced while the sandbox was being created. Try again.")
    return Mount(directory, descriptor, writable=True)


def _starts(rules: Sequence[Rule], cwd: str, places: Sequence[str]) -> list[str]:
    """The directories that rules can refer to: each is in the sandbox, and none is inside another."""
    found: set[str] = set()
    for rule in rules:
        absolute = HERE.pattern_start(rule.specifier or "", cwd)
        fixed = "" if absolute is None else absolute.partition("*")[0].partition("?")[0]
        start = cwd if absolute is None else _resolve(os.path.dirname(fixed))
        if any(HERE.is_below(start, place) for place in places):
            found.add(start)
        else:
            found.update(place for place in places if HERE.is_below(place, start))
    return [start for start in found if not any(start != other and HERE.is_below(start, other) for other in found)]


def _resolve(path: str) -> str:
    return os.path.realpath(os.path.expanduser(path))


def _hidden(unreadable: re.Pattern[str], cwd: str, starts: Sequence[str]) -> Iterator[str]:
    """Everything below that is denied; for a completely denied directory, only the directory."""
    waiting, looked_at = list(starts), 0
    while waiting:
        directory = waiting.pop()
        try:
            entries = list(os.scandir(directory))
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed or replaced meanwhile
        except PermissionError:
            # Hidden completely: a command of the session may have made it unreadable and can make it readable again.
            yield directory
            continue
        except OSError as error:
            raise ProcessFailed(
                f"{directory} cannot be searched for files that must not be read: {error.strerror or error}."
            ) from None
        looked_at += len(entries)
        if looked_at > _MAX_ENTRIES:
            raise ProcessFailed(
                f"A rule denies reading some files, and {cwd} contains more than {_MAX_ENTRIES} files to check. "
                "Work in a smaller directory, or use absolute paths in the rule."
            )
        for entry in entries:
            path = entry.path.casefold()
            denied = unreadable.fullmatch(path) is not None
            if entry.is_symlink():
                target = os.path.realpath(entry.path)
                if denied and os.path.exists(target):  # bubblewrap would create a missing one
                    yield target
            elif not entry.is_dir(follow_symlinks=False):
                if denied:
                    yield entry.path
            elif all(map(unreadable.fullmatch, (f"{path}/{_PROBE}", f"{path}/{_PROBE}/{_PROBE}"))):
                yield entry.path
            else:
                waiting.append(entry.path)
