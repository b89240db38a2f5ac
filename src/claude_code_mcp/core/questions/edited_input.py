"""Checks an edited tool input before it replaces the original: restores redacted secrets, refuses cut marks. Pure."""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..model.text import has_mark, json_parts

REQUIRED_FIELDS = {
    "Agent": ("description", "prompt"),
    "Bash": ("command",),
    "Edit": ("file_path", "old_string", "new_string"),
    "Glob": ("pattern",),
    "Grep": ("pattern",),
    "MultiEdit": ("file_path", "edits"),
    "NotebookEdit": ("notebook_path", "new_source"),
    "Read": ("file_path",),
    "Skill": ("skill",),
    "Task": ("description", "prompt"),
    "WebFetch": ("url", "prompt"),
    "WebSearch": ("query",),
    "Write": ("file_path", "content"),
}
"""The fields that Claude Code's own tools require."""


def refuse_cut(updated: Mapping[str, Any], original: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for an input with a cut mark, because the omitted text would be lost. A mark that is also
    in the original text is allowed."""
    # Texts of the original may contain such a mark themselves.
    whole = {part for part in json_parts(original) if isinstance(part, str)}
    if any(isinstance(part, str) and part not in whole and has_mark(part) for part in json_parts(updated)):
        raise InvalidArgument(
            "updatedInput contains a cut mark ([[claude-code-mcp cut …]]): it was made from a truncated input. Read "
            "the complete input in pages, or allow it without updatedInput.",
            field="updatedInput",
        )


def restore_redacted(updated: Any, shown: Any, original: Any, mark: str) -> Any:
    """The input that a caller edited based on a redacted one, with the secrets restored.

    Every part that is still as `shown` is replaced by the `original`; items of a list whose length changed are matched
    by value. Raises InvalidArgument if the caller changed or added a text that contains the `mark` of a secret: the
    tool would run with the mark, because the secret for it is unknown.
    """
    # Compare the whole part first: an unchanged part becomes the original with its secrets.
    if updated == shown:
        return original
    if isinstance(updated, Mapping) and isinstance(shown, Mapping) and isinstance(original, Mapping):
        return {
            key: restore_redacted(value, shown[key], original[key], mark)
            if key in shown and key in original
            else _without_mark(value, mark, hidden=shown != original)
            for key, value in updated.items()
        }
    if isinstance(updated, list) and isinstance(shown, list) and isinstance(original, list | tuple):
        if len(updated) == len(shown) == len(original):
            return [restore_redacted(*items, mark) for items in zip(updated, shown, original, strict=True)]
        return _restore_items(updated, shown, original, mark)
    return _without_mark(updated, mark, hidden=shown != original)


def _restore_items(updated: list[Any], shown: list[Any], original: Sequence[Any], mark: str) -> list[Any]:
    """Restore a list with more or fewer items than before, whose positions do not match."""
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for at, item in enumerate(shown[: len(original)]):
        places[json.dumps(item, sort_keys=True)].append(at)
    hidden = shown != list(original)
    found = []
    for item in updated:
        same = places.get(json.dumps(item, sort_keys=True))
        found.append(original[same.popleft()] if same else _without_mark(item, mark, hidden=hidden))
    return found


def _without_mark(value: Any, mark: str, *, hidden: bool) -> Any:
    """Return the value. If a secret was `hidden` in it, raise InvalidArgument if it contains the mark."""
    # The mark has no characters that JSON would escape.
    if hidden and mark in json.dumps(value, ensure_ascii=False):
        raise InvalidArgument(
            f"updatedInput changes text in which {mark} stands for a hidden secret. Leave that text unchanged, or "
            "replace all of it.",
            field="updatedInput",
        )
    return value
