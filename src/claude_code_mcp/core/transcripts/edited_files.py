"""The files that a conversation's tool calls changed, as Claude Code recorded them: the known changes of a session
without a worktree. Changes made by commands are not recorded."""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ..model.text import has_mark, one_line, visible
from ..model.unified_diff import unified_diff
from .conversation import Item
from .conversation_pages import ConversationPage

MAX_LENGTH = 2 << 20
"""Characters of all diffs in one result."""
_MAX_PAGES = 40
_MAX_PATH = 1000

ReadPage = Callable[[str | None], Awaitable[ConversationPage]]


class EditedFile(NamedTuple):
    """A file and its changes, as hunks of unified diffs in the order of the calls."""

    path: str
    diffs: list[str]


class EditedFiles(NamedTuple):
    """Files in the order of their first change; `cut` if something was omitted."""

    files: list[EditedFile]
    cut: bool


async def edited_files(read: ReadPage) -> EditedFiles:
    """The changes made by a conversation's calls. `read` returns the page before a position; None: the last page."""
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
    """The content of a file that a call created, which Claude Code does not record as a change."""
    content = item.input.get("content") if isinstance(item.input, Mapping) and item.name == "Write" else None
    return unified_diff("", content) if isinstance(content, str) and "created" in item.result else ""


def _path_of(item: Item) -> str:
    """The file that a call changed; for a notebook also the cell, because lines are counted within it."""
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
    """The changes in git's format, with paths relative to the directory if possible. A path is text from the model: it
    stays on its line and cannot look like a line of a diff."""
    return "\n".join(line for file in files for line in _diff_lines(file, directory))


def _diff_lines(file: EditedFile, directory: str) -> Iterator[str]:
    path = visible(one_line(file.path.removeprefix(os.path.join(directory, "")), _MAX_PATH))
    yield f"diff --git a/{path} b/{path}"
    yield f"--- a/{path}"
    yield f"+++ b/{path}"
    for diff in file.diffs:
        yield diff.rstrip("\n")
