"""Everything that a session has changed, by file: the difference in its worktree, or else its edits.

Both are shown within limits, and say so where something is left out. Pure but for the reading of pages.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..model.line_diff import unified_diff
from ..model.text import has_mark
from ..store.conversation import Item
from ..store.transcript_reader import ConversationPage

LONGEST = 2 << 20
"""Characters of all differences that are shown at once."""
_MOST_PAGES = 40
_HEAD = re.compile(r"^diff --git ", re.MULTILINE)
_NEW_NAME = re.compile(r"^\+\+\+ (?:b/)?(.+)$", re.MULTILINE)
_OLD_NAME = re.compile(r"^--- (?:a/)?(.+)$", re.MULTILINE)
_RENAMED = re.compile(r"^rename to (.+)$", re.MULTILINE)
_HUNKS = re.compile(r"^@@ ", re.MULTILINE)
_NOWHERE = "/dev/null"


class ChangedFile(NamedTuple):
    """A file with what was changed in it, as hunks of unified diffs in the order of the changes."""

    path: str
    diffs: list[str]
    note: str = ""
    """What else became of it: `new`, `deleted`, `renamed`, or why there are no lines to show."""

    def row(self) -> dict[str, Any]:
        return {"path": self.path, "diffs": self.diffs, "note": self.note}


def files_of_diff(text: str) -> tuple[list[ChangedFile], bool]:
    """The files of what `git diff` has printed, and whether some were left out."""
    places = [found.start() for found in _HEAD.finditer(text)]
    files: list[ChangedFile] = []
    room = LONGEST
    for start, end in zip(places, [*places[1:], len(text)], strict=True):
        room -= end - start
        if room < 0:
            return files, True
        files.append(_changed_file(text[start:end]))
    return files, False


def _changed_file(part: str) -> ChangedFile:
    hunks = _HUNKS.search(part)
    head = part[: hunks.start()] if hunks else part
    old, new = (found[1].rstrip("\t") if (found := name.search(head)) else "" for name in (_OLD_NAME, _NEW_NAME))
    renamed = _RENAMED.search(head)
    if old == _NOWHERE:
        note = "new"
    elif new == _NOWHERE:
        note = "deleted"
    else:
        note = "renamed" if renamed else "" if hunks else "binary, or only its mode"
    named = renamed[1] if renamed else old if new in ("", _NOWHERE) else new
    # Without lines that name it, the head of the part is all there is: `diff --git a/x b/x`.
    path = named or head.split("\n", 1)[0].rpartition(" b/")[2]
    return ChangedFile(path, [part[hunks.start() :].rstrip("\n")] if hunks else [], note)


ReadPage = Callable[[str | None], Awaitable[ConversationPage]]


async def files_of_conversation(read: ReadPage) -> tuple[list[ChangedFile], bool]:
    """The files that calls of a conversation have changed, the first changed first, and whether something was left
    out. Commands may have changed others, which nobody has noted. `read` gives the page before a place."""
    found: list[tuple[str, str]] = []
    before: str | None = None
    room, shortened = LONGEST, False
    for _ in range(_MOST_PAGES):
        page = await read(before)
        for path, diff in reversed([*_edits(page)]):
            room -= len(diff)
            if room < 0:
                return _by_file(found), True
            found.append((path, diff))
            shortened = shortened or has_mark(diff)
        before = page.previous
        if before is None:
            return _by_file(found), shortened
    return _by_file(found), True


def _edits(page: ConversationPage) -> Iterator[tuple[str, str]]:
    for part in page.parts:
        for item in part.turn.items:
            path, diff = _path_of(item), item.diff or _created(item)
            if path and diff and item.status == "ok":
                yield path, diff


def _created(item: Item) -> str:
    """Of a call that made a file: all of its lines, which Claude Code does not note as a change."""
    content = item.input.get("content") if isinstance(item.input, Mapping) and item.name == "Write" else None
    return unified_diff("", content) if isinstance(content, str) and "created" in item.result else ""


def _path_of(item: Item) -> str:
    path = item.input.get("file_path") if isinstance(item.input, Mapping) else None
    return path if isinstance(path, str) else ""


def _by_file(newest_first: list[tuple[str, str]]) -> list[ChangedFile]:
    files: dict[str, ChangedFile] = {}
    for path, diff in reversed(newest_first):
        files.setdefault(path, ChangedFile(path, [])).diffs.append(diff)
    return [*files.values()]
