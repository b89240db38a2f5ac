"""Questions, tool calls and diffs as lines for people, comments on such lines, and a decision as the arguments of
`claude_respond`. Pure.

An edit is shown as removed and added lines, with line numbers if the server has compared the file; everything else as
`core/questions/presentation.py` shows it. Every line of a file begins with a sign, so that no content can look like a
line of ours. Takes time linear in the input: there is no search for the smallest difference.

The message of comments reads as the console's does (`web/src/comments.ts`): file, line and its text for each comment.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, NamedTuple

from ..core.model.question import Question
from ..core.model.text import visible
from ..core.model.unified_diff import equal_ends
from ..core.questions.kinds import ACCEPT_EDITS, Reaction, full_text
from ..core.questions.presentation import change_lines, describe, fields_in_change
from .live_sessions import OpenQuestion

EDITED = {"Edit": ("old_string", "new_string"), "Write": ("", "content"), "NotebookEdit": ("", "new_source")}
"""The tools that change a file, with the fields that hold the text before and after."""


class Style(StrEnum):
    PLAIN = "plain"
    HEAD = "head"
    REMOVED = "removed"
    ADDED = "added"
    SAME = "same"


class Line(NamedTuple):
    text: str
    style: Style = Style.PLAIN


def question_lines(question: Question) -> Iterator[Line]:
    """A whole question as lines: its head, then every field, and for an edit the removed and added lines."""
    if question.change is not None and question.change.diff:
        yield from _changed_file(question, question.change.diff)
        return
    fields = EDITED.get(question.tool_name)
    before, after = _texts(question.tool_input, fields) if fields else (None, None)
    if before is None or after is None:
        first, *rest = full_text(question).split("\n")
        yield Line(first, Style.HEAD)
        yield from map(Line, rest)
        return
    others = {name: value for name, value in question.tool_input.items() if name not in (fields or ())}
    head, *rest = full_text(replace(question, tool_input=others)).split("\n")
    yield Line(head, Style.HEAD)
    yield from map(Line, rest)
    yield from changed_lines(before, after)


def _changed_file(question: Question, diff: str) -> Iterator[Line]:
    """The head and the other fields, then the change in its place in the file, with line numbers."""
    others = {name: value for name, value in question.tool_input.items() if name not in fields_in_change(question)}
    head, *rest = full_text(replace(question, tool_input=others, change=None)).split("\n")
    yield Line(head, Style.HEAD)
    yield from map(Line, rest)
    for sign, line in change_lines(diff):
        yield Line(line, _DIFF_STYLES.get(sign, Style.SAME))


def _texts(tool_input: Mapping[str, Any], fields: tuple[str, str]) -> tuple[str | None, str | None]:
    before, after = (tool_input.get(name, "") if name else "" for name in fields)
    return (before, after) if isinstance(before, str) and isinstance(after, str) else (None, None)


def changed_lines(before: str, after: str) -> Iterator[Line]:
    """The lines of both texts: common lines at the start and the end once, between them all removed and all added
    lines."""
    old, new = _split(before), _split(after)
    start, end = equal_ends(old, new)
    for line in old[:start]:
        yield Line(f"  {line}", Style.SAME)
    for line in old[start : len(old) - end]:
        yield Line(f"- {line}", Style.REMOVED)
    for line in new[start : len(new) - end]:
        yield Line(f"+ {line}", Style.ADDED)
    for line in old[len(old) - end :]:
        yield Line(f"  {line}", Style.SAME)


def _split(text: str) -> list[str]:
    """The lines of a text, so that a difference in the last line break is visible too."""
    if not text:
        return []
    # An edit may change only line ends, and a person must see the change.
    lines = visible(text.replace("\r\n", "\\r\n")).split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], f"{lines[-1]}  [no line break at the end]"]


# -- tool view --------------------------------------------------------------------------------------------------------


_DIFF_STYLES = {"+": Style.ADDED, "-": Style.REMOVED, "@": Style.HEAD}


def call_line(name: str, tool_input: object, cwd: str = "") -> str:
    """The call in one line."""
    return visible(describe(name, tool_input if isinstance(tool_input, dict) else {}, cwd))


def input_lines(name: str, tool_input: object, diff: str = "") -> Iterator[Line]:
    """The complete input of the tool; for an edit, the removed and added lines."""
    fields: Mapping[str, Any] = tool_input if isinstance(tool_input, Mapping) else {}
    before, after = EDITED.get(name, ("", ""))
    texts = (fields.get(before, "") if before else "", fields.get(after, ""))
    is_edit = name in EDITED and all(isinstance(text, str) for text in texts)
    for key, value in fields.items():
        if not (is_edit and key in (before, after)):
            yield from _field(str(key), value)
    if diff:
        yield from diff_lines(diff)
    elif is_edit:
        yield from changed_lines(*texts)


def diff_lines(diff: str) -> Iterator[Line]:
    """A diff as git writes it."""
    return (Line(line, _DIFF_STYLES.get(line[:1], Style.SAME)) for line in visible(diff).split("\n"))


def _field(name: str, value: Any) -> Iterator[Line]:
    text = visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    first, *rest = text.split("\n")
    if not rest:
        yield Line(f"{visible(name)}: {first}")
        return
    yield Line(f"{visible(name)}:", Style.HEAD)
    yield from (Line(f"  {line}") for line in (first, *rest))


def result_text(content: object) -> str:
    """The text in a tool's result."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    shown = (block.get("text") or f"[{block.get('type')}]" for block in blocks if isinstance(block, Mapping))
    return "\n".join(map(str, shown))


# -- deciding ---------------------------------------------------------------------------------------------------------


_ALLOW = frozenset({"a", "allow", "y", "yes"})
_SESSION = frozenset({"s", "session"})
_EDITS = frozenset({"e", "edits"})
_DENY = frozenset({"d", "deny", "n", "no"})


class NoAnswer(Exception):
    """The input is not an answer; the text says what would be."""


def decide(asked: OpenQuestion, decision: str, text: str = "") -> dict[str, Any]:
    """The arguments of `claude_respond` for a one-word decision, with a reason for a denial. NoAnswer if it does not
    fit the question."""
    possible = asked.reactions
    if decision in _DENY:
        return {"decision": "deny", **({"reason": text} if text else {})}
    # A text after `allow` may have been meant as a condition, which an allowance cannot carry.
    if text:
        raise NoAnswer(f"{decision!r} takes no text; `deny` does.")
    if Reaction.ALLOW not in possible:
        raise NoAnswer("Answer every part of this question, or deny it.")
    if decision in _ALLOW:
        return {"decision": "allow"}
    if decision in _SESSION and Reaction.SESSION in possible:
        return {"decision": "allow", "scope": "session"}
    if decision in _EDITS and Reaction.EDITS in possible:
        return {"decision": "allow", "permissionMode": ACCEPT_EDITS}
    raise NoAnswer(f"{decision!r} is not a valid answer to this question." if decision else "Type an answer.")


# -- comments on lines of a diff --------------------------------------------------------------------------------------


MAX_COMMENTS = 50
MAX_COMMENT_LENGTH = 1000
_MAX_QUOTE = 300
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")


class LinePlace(NamedTuple):
    """A line that can be commented on."""

    file: str
    line: int
    """The current line number; for a removed line, the number before the change."""
    is_removed: bool
    quote: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}{' (removed)' if self.is_removed else ''}"


class DiffRow(NamedTuple):
    """A raw line of git's diff, with control characters; `place` if it is a line of a file."""

    text: str
    style: Style
    place: LinePlace | None = None


def diff_rows(diff: str) -> Iterator[DiffRow]:
    """The lines of `git diff` output. The lines of a hunk are identified by its counts: a removed line may look like
    the header of a file."""
    file = ""
    before = after = old_left = new_left = 0
    for text in diff.split("\n"):
        sign, content = text[:1], text[1:].removesuffix("\r")
        if (old_left or new_left) and sign in " -+":
            is_removed = sign == "-"
            line = before if is_removed else after
            old_left, before = (old_left - 1, before + 1) if sign != "+" else (old_left, before)
            new_left, after = (new_left - 1, after + 1) if sign != "-" else (new_left, after)
            style = Style.REMOVED if is_removed else Style.ADDED if sign == "+" else Style.SAME
            yield DiffRow(text, style, LinePlace(file, line, is_removed, content[:_MAX_QUOTE]))
        elif hunk := _HUNK.match(text):
            before, old_left, after, new_left = (int(number or 1) for number in hunk.groups())
            yield DiffRow(text, Style.HEAD)
        elif text.startswith("\\"):
            yield DiffRow(text, Style.SAME)  # "No newline at end of file": the hunk may continue after it
        else:
            old_left = new_left = 0
            if text.startswith("diff --git "):
                file = text.rpartition(" b/")[2]
            elif text.startswith(("--- a/", "+++ b/")):
                file = text[6:].rstrip("\t")
            is_head = text.startswith(("diff --git ", "--- ", "+++ "))
            yield DiffRow(text, Style.HEAD if is_head else Style.SAME)


class LineComments:
    """The comments on the changes of one session, until they are sent."""

    def __init__(self) -> None:
        self._texts: dict[LinePlace, str] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[tuple[LinePlace, str]]:
        """By file and line."""
        return iter(sorted(self._texts.items()))

    def at(self, place: LinePlace) -> str:
        """The comment on a line; empty if there is none."""
        return self._texts.get(place, "")

    def write(self, place: LinePlace, text: str) -> str:
        """Write or replace a comment; an empty text removes it. Return why it cannot be written, or an empty string."""
        text = text.strip()
        if not text:
            self._texts.pop(place, None)
        elif len(text) > MAX_COMMENT_LENGTH:
            return f"A comment has at most {MAX_COMMENT_LENGTH} characters; this one has {len(text)}."
        elif place not in self._texts and len(self._texts) >= MAX_COMMENTS:
            return f"A message can carry at most {MAX_COMMENTS} comments."
        else:
            self._texts[place] = text
        return ""

    def remove(self, sent: Iterable[tuple[LinePlace, str]]) -> None:
        """Remove these comments, except those rewritten since."""
        for place, text in sent:
            if self._texts.get(place) == text:
                del self._texts[place]


def comments_message(comments: Iterable[tuple[LinePlace, str]]) -> str:
    """The comments as one message. A quoted line stays on one line: a carriage return in a file must not make its
    content look like the person's own text."""
    parts = [
        f"{_quoted(place.file)}:{place.line}{', as it was before the change' if place.is_removed else ''}:\n"
        f"> {_quoted(place.quote)}\n\n{text}"
        for place, text in comments
    ]
    head = "A comment on the changes:" if len(parts) == 1 else f"{len(parts)} comments on the changes:"
    return "\n\n".join([head, *parts])


def _quoted(text: str) -> str:
    return " ".join(text.splitlines())
