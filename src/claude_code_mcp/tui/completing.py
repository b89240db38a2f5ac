"""What the word before the cursor may become: a slash command, or a file behind `@`.

Only `files` reads the disk: one directory, and no more entries of it than can be shown.
"""

import os
from collections.abc import Iterable
from typing import NamedTuple

MOST = 8
_MOST_READ = 2_000


class Word(NamedTuple):
    """What is being completed: the sign it begins with and what follows that, from `start` on."""

    sign: str
    text: str
    start: int


def word_before(line: str, column: int, *, is_first_line: bool) -> Word | None:
    """The command or the mention that ends at the cursor; None if there is neither."""
    before = line[:column]
    start = max(before.rfind(" "), before.rfind("\t")) + 1
    word = before[start:]
    if word.startswith("@"):
        return Word("@", word[1:], start)
    if word.startswith("/") and start == 0 and is_first_line:
        return Word("/", word[1:], start)
    return None


def commands(known: Iterable[str], beginning: str) -> list[str]:
    """The commands that begin like this, the shortest first."""
    wanted = beginning.casefold()
    fitting = {name for name in known if name.casefold().startswith(wanted) and name != beginning}
    return sorted(fitting, key=lambda name: (len(name), name))[:MOST]


def files(directory: str, beginning: str) -> list[str]:
    """The entries of a directory that begin like this, as paths below it; directories end in a slash."""
    folder, _, name = beginning.rpartition("/")
    place = os.path.join(directory, os.path.expanduser(folder)) if folder else directory
    found: list[str] = []
    try:
        with os.scandir(place) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST_READ:
                    break
                fits = entry.name.casefold().startswith(name.casefold())
                if fits and entry.name.isprintable() and (name.startswith(".") or not entry.name.startswith(".")):
                    found.append(entry.name + ("/" if entry.is_dir() else ""))
    except (OSError, ValueError):
        return []
    prefix = f"{folder}/" if folder else ""
    return [prefix + entry for entry in sorted(found) if prefix + entry != beginning][:MOST]
