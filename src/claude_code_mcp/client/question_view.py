"""A question line by line, with what each line is: all that is decided on, whole, with nothing invisible. Pure.

An edit is shown as the lines that go and the lines that come, everything else as `questions/presentation.py` shows it.
Every line of a file has a sign before it, so that no content can look like a line of ours. Takes time linear in the
input: there is no search for the smallest difference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import StrEnum
from itertools import takewhile
from typing import Any, NamedTuple

from ..model.question import Question
from ..model.text import visible
from ..questions.presentation import full_text

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
    """All of a question."""
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


def _texts(tool_input: Mapping[str, Any], fields: tuple[str, str]) -> tuple[str | None, str | None]:
    before, after = (tool_input.get(name, "") if name else "" for name in fields)
    return (before, after) if isinstance(before, str) and isinstance(after, str) else (None, None)


def changed_lines(before: str, after: str) -> Iterator[Line]:
    """The lines of both texts: those that are the same at the start and at the end once, between them all that go and
    all that come."""
    old, new = _split(before), _split(after)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    for line in old[:start]:
        yield Line(f"  {line}", Style.SAME)
    for line in old[start : len(old) - end]:
        yield Line(f"- {line}", Style.REMOVED)
    for line in new[start : len(new) - end]:
        yield Line(f"+ {line}", Style.ADDED)
    for line in old[len(old) - end :]:
        yield Line(f"  {line}", Style.SAME)


def _split(text: str) -> list[str]:
    """The lines of a text; a difference in the last line break is to be seen as well."""
    if not text:
        return []
    lines = visible(text.replace("\r\n", "\\r\n")).split("\n")
    return lines[:-1] if lines[-1] == "" else [*lines[:-1], f"{lines[-1]}  [no line break at the end]"]


def _common(old: list[str], new: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
