"""The files that the calls of a conversation have changed, as Claude Code has noted it: what is known of a session that
has no worktree. Commands may have changed others, which nobody has noted."""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..model.text import has_mark, one_line, visible
from ..model.unified_diff import unified_diff
from .conversation import Item
from .conversation_pages import ConversationPage

MAX_LENGTH = 2 << 20
"""Characters of all differences that are returned at once."""
_MAX_PAGES = 40
_MAX_PATH = 1000

ReadPage = Callable[[str | None], Awaitable[ConversationPage]]


class EditedFile(NamedTuple):
    """A file with what calls have changed in it, as hunks of unified diffs in the order of the calls."""

    path: str
    diffs: list[str]


class EditedFiles(NamedTuple):
    """The first changed first; `cut` if something was left out."""

    files: list[EditedFile]
    cut: bool


async def edited_files(read: ReadPage) -> EditedFiles:
    """What the calls of a conversation have changed. `read` returns the page before a place; None: the last one."""
    found: list[tuple[str, str]] = []
    before: str | None = None
    room, shortened = MAX_LENGTH, False
    for _ in range(_MAX_PAGES):
        page = await read(before)
        for path, diff in reversed([*_edits(page)]):
            room -= len(diff)
            if room < 0:
                return EditedFiles(_by_file(found), True)
            found.append((path, diff))
            shortened = shortened or has_mark(diff)
        before = page.previous
        if before is None:
            return EditedFiles(_by_file(found), shortened)
    return EditedFiles(_by_file(found), True)


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
    """The file that a call has changed; of a notebook the cell too, since lines are counted in that."""
    called = item.input if isinstance(item.input, Mapping) else {}
    path, notebook = called.get("file_path"), called.get("notebook_path")
    if isinstance(notebook, str):
        named = f"cell {called['cell_id']}" if called.get("cell_id") else ""
        if called.get("edit_mode") == "insert":
            named = f"new cell after {named}" if named else "new first cell"
        return f"{notebook}, {named}" if named else notebook
    return path if isinstance(path, str) else ""


def _by_file(newest_first: list[tuple[str, str]]) -> list[EditedFile]:
    files: dict[str, EditedFile] = {}
    for path, diff in reversed(newest_first):
        files.setdefault(path, EditedFile(path, [])).diffs.append(diff)
    return [*files.values()]


def diff_of(files: Iterable[EditedFile], directory: str) -> str:
    """The changes as git would print them, with paths below the directory where they are. A path is the model's own
    text: it stays on its line, and cannot be taken for a line of a diff."""
    return "\n".join(line for file in files for line in _diff_lines(file, directory))


def _diff_lines(file: EditedFile, directory: str) -> Iterator[str]:
    path = visible(one_line(file.path.removeprefix(os.path.join(directory, "")), _MAX_PATH))
    yield f"diff --git a/{path} b/{path}"
    yield f"--- a/{path}"
    yield f"+++ b/{path}"
    for diff in file.diffs:
        yield diff.rstrip("\n")
