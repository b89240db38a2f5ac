"""Computes how a tool call would change a file, before a person is asked, so that the change can be shown in context.

A session may have put anything into its directories. So this reads only regular files below them, follows no links, and
reads only what the policy lets the principal read. All functions block on the disk.
"""

import json
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import ClaudeCodeError, InvalidArgument
from ..model.question import FileChange
from ..model.unified_diff import unified_diff
from ..private_files import is_absence, open_at

MAX_BYTES = 512 << 10
"""Bytes of a file, or characters of text, above which no diff is computed."""
_MAX_SEARCHED = 64 << 20
"""Maximum characters searched for all edits of one call, because each edit is searched for in the whole text."""
MAX_DIFF = 200_000
"""Characters of a diff that is shown."""
_NOT_TEXT = FileChange(note="The existing file is not text, so no diff can be shown.")
EDITING_TOOLS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})


def changed_file(tool_name: str, tool_input: object) -> str | None:
    """The path that a call of one of the `EDITING_TOOLS` would write to; None where no diff is possible."""
    if not isinstance(tool_input, Mapping):
        return None
    path = tool_input.get("notebook_path" if tool_name == "NotebookEdit" else "file_path")
    return path if isinstance(path, str) and os.path.isabs(path) and "\0" not in path else None


def file_change(
    tool_name: str,
    tool_input: Mapping[str, Any],
    path: str,
    directories: Sequence[str],
    readable: Callable[[str], str],
) -> FileChange | None:
    """The change that the call would make to the current file; None if the file does not exist or may not be read here.

    `readable` returns where a path leads and raises ClaudeCodeError if it may not be read; `directories` are those that
    the session works in.
    """
    try:
        before = _read(path, directories, readable)
    except (OSError, ClaudeCodeError) as error:
        unread = isinstance(error, OSError) and not is_absence(error)
        return FileChange(note="The existing file cannot be read, so no diff can be shown.") if unread else None
    except UnicodeDecodeError:
        return _NOT_TEXT
    return _change(tool_name, tool_input, before) if isinstance(before, str) else before


def _read(path: str, directories: Sequence[str], readable: Callable[[str], str]) -> str | FileChange | None:
    """The text of the file, the reason why there is no diff, or None if it is not a file in the session's
    directories."""
    real = readable(path)
    roots = [os.path.realpath(directory) for directory in directories]
    if not any(real.startswith(os.path.join(root, "")) for root in roots):
        return None
    with open(real, "rb", opener=open_at) as file:
        # On the open file: the path may lead to another file by now.
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        if found.st_size > MAX_BYTES:
            return FileChange(note=f"The existing file has {found.st_size:,} bytes, too many for a diff.")
        content = file.read(MAX_BYTES + 1)[:MAX_BYTES]
    return _NOT_TEXT if b"\0" in content else content.decode()


def file_text(path: str, directory: str, readable: Callable[[str], str]) -> tuple[str, str]:
    """The path of a file relative to a directory of the session, and its text; `path` may be relative to that
    directory. InvalidArgument otherwise: the error does not distinguish missing, outside and unreadable files."""
    whole = os.path.normpath(os.path.join(directory, path))
    try:
        content = _read(whole, (directory,), readable) if "\0" not in path else None
    except (OSError, ClaudeCodeError):
        content = None
    except UnicodeDecodeError:
        content = _NOT_TEXT
    if content is None:
        raise InvalidArgument(
            "There is no such file in the session's directory, or you are not allowed to read it.", field="path"
        )
    if not isinstance(content, str):
        reason = "it is not text" if content is _NOT_TEXT else f"it has more than {MAX_BYTES:,} bytes"
        raise InvalidArgument(f"The file cannot be shown: {reason}.", field="path")
    return os.path.relpath(whole, directory), content


def _change(tool_name: str, tool_input: Mapping[str, Any], before: str) -> FileChange | None:
    if tool_name == "NotebookEdit":
        return _cell_change(tool_input, before)
    after = _after(tool_name, tool_input, before)
    if after is None:
        # Edits use plain line feeds, whatever line breaks the file has.
        before = before.replace("\r\n", "\n")
        after = _after(tool_name, tool_input, before)
    if after is None or len(after) > MAX_BYTES:
        return None
    diff = unified_diff(before, after)
    if len(diff) > MAX_DIFF:
        return FileChange(
            note=f"The existing file has {before.count(chr(10)) + 1:,} lines; the change is too long for a diff."
        )
    return FileChange(diff=diff) if diff else FileChange(note="The file already has this content.")


def _cell_change(tool_input: Mapping[str, Any], notebook: str) -> FileChange | None:
    """The change to the source of one cell, by lines of that cell; None if the call does not fit the notebook."""
    mode, new, wanted = (
        tool_input.get("edit_mode") or "replace",
        tool_input.get("new_source"),
        tool_input.get("cell_id"),
    )
    if not isinstance(new, str) and mode != "delete":
        return None
    try:
        cells = json.loads(notebook)["cells"]
        number = _cell_number(cells, wanted)
        if mode == "insert":
            return FileChange(
                unified_diff("", str(new)), f"A new cell after cell {wanted}." if wanted else "A new first cell."
            )
        if number is None:
            return None
        source = cells[number]["source"]
        before = source if isinstance(source, str) else "".join(source)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    diff = unified_diff(before, "" if mode == "delete" else str(new))
    deleted = " is deleted" if mode == "delete" else ""
    note = f"Cell {number + 1} of {len(cells)}{deleted}; line numbers count from the start of the cell."
    return FileChange(diff, note) if diff and len(diff) <= MAX_DIFF else FileChange(note=note)


def _cell_number(cells: Any, wanted: object) -> int | None:
    """The index of a cell by its id, or by `cell-3`, which Claude Code uses for cells without an id."""
    for number, cell in enumerate(cells):
        if wanted is not None and cell.get("id") == wanted:
            return number
    place = re.fullmatch(r"cell-(\d{1,6})", wanted) if isinstance(wanted, str) else None
    return int(place[1]) if place is not None and int(place[1]) < len(cells) else None


def _after(tool_name: str, tool_input: Mapping[str, Any], before: str) -> str | None:
    """The text after the call; None if the call does not fit the text, in which case Claude Code rejects it too."""
    if tool_name == "Write":
        content = tool_input.get("content")
        return content if isinstance(content, str) else None
    edits = tool_input.get("edits") if tool_name == "MultiEdit" else [tool_input]
    text, searched = before, 0
    for edit in edits if isinstance(edits, list) else [None]:
        searched += len(text)
        edited = _edited(text, edit) if searched <= _MAX_SEARCHED else None
        if edited is None or len(edited) > MAX_BYTES:
            return None
        text = edited
    return text


def _edited(text: str, edit: object) -> str | None:
    if not isinstance(edit, Mapping):
        return None
    old, new = edit.get("old_string"), edit.get("new_string")
    if not isinstance(old, str) or not isinstance(new, str) or not old:
        return None
    found = text.count(old)
    if edit.get("replace_all"):
        # Checked first: a short text that occurs often may be replaced by a long one.
        too_long = len(text) + found * (len(new) - len(old)) > MAX_BYTES
        return None if not found or too_long else text.replace(old, new)
    return text.replace(old, new, 1) if found == 1 else None
