"""The files that a conversation's tool calls changed, as Claude Code recorded them: the known changes of a session
without a worktree. Changes made by commands are not recorded."""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ..model.text import has_mark, one_line, visible
from ..model.unified_diff import unified_diff
from .conversation import ConversationTurn, Item
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


class EditingTurn(NamedTuple):
    """A turn in which files were changed."""

    number: int
    prompt: str
    is_last: bool
    """Whether the conversation ends with it."""


class EditedFiles(NamedTuple):
    """Files in the order of their first change; `cut` if something was omitted."""

    files: list[EditedFile]
    cut: bool
    turns: list[EditingTurn]
    """All turns that changed files, oldest first, whichever was asked for."""


class _Edit(NamedTuple):
    turn: int
    path: str
    diff: str


async def edited_files(read: ReadPage, since: int = 1, until: int | None = None) -> EditedFiles:
    """The changes made by a conversation's calls from turn `since` to turn `until`; None: to its end. `read` returns
    the page before a position; None: the last page."""
    found = _Found([], {})
    before: str | None = None
    room = MAX_LENGTH
    for _ in range(_MAX_PAGES):
        page = await read(before)
        for part in reversed(page.parts):
            found.last = max(found.last, part.number)
            found.unread = part.number
            edits = [_Edit(part.number, *edit) for edit in _edits(part.turn)]
            # A turn that is divided has its prompt on an earlier page than its last edits.
            if edits or part.number in found.prompts:
                found.prompts[part.number] = part.turn.prompt or found.prompts.get(part.number, "")
            if until is not None and part.number > until:
                continue
            for edit in reversed(edits):
                room -= len(edit.diff)
                if room < 0:
                    return found.since(since)
                found.newest_first.append(edit)
        before = page.previous
        if before is None:
            found.unread = 0
            break
    return found.since(since)


@dataclass
class _Found:
    newest_first: list[_Edit]
    prompts: dict[int, str]
    """Of turns with edits."""
    last: int = 0
    """The number of the conversation's last turn."""
    unread: int = 0
    """Nothing is known of turns before this one, and maybe not all of it."""

    def since(self, turn: int) -> EditedFiles:
        wanted = [edit for edit in self.newest_first if edit.turn >= turn]
        cut = self.unread >= turn or any(has_mark(edit.diff) for edit in wanted)
        prompts = sorted(self.prompts.items())
        turns = [EditingTurn(number, prompt, number == self.last) for number, prompt in prompts]
        return EditedFiles(_by_file(wanted), cut, turns)


def _edits(turn: ConversationTurn) -> Iterator[tuple[str, str]]:
    for item in turn.items:
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


def _by_file(newest_first: list[_Edit]) -> list[EditedFile]:
    files: dict[str, EditedFile] = {}
    for _, path, diff in reversed(newest_first):
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
