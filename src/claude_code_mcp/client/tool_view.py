"""A call of a tool as lines: what it is in one, its input, what it changes, what came of it. Pure, linear."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..model.text import visible
from ..questions.presentation import describe
from .question_view import EDITED, Line, Style, changed_lines

_DIFF_STYLES = {"+": Style.ADDED, "-": Style.REMOVED, "@": Style.HEAD}


def call_line(name: str, tool_input: object, cwd: str = "") -> str:
    """The call in one line."""
    return visible(describe(name, tool_input if isinstance(tool_input, dict) else {}, cwd))


def input_lines(name: str, tool_input: object, diff: str = "") -> Iterator[Line]:
    """All that the tool was given; of an edit, the lines that go and those that come."""
    fields: Mapping[str, Any] = tool_input if isinstance(tool_input, Mapping) else {}
    before, after = EDITED.get(name, ("", ""))
    texts = (fields.get(before, "") if before else "", fields.get(after, ""))
    is_edit = name in EDITED and all(isinstance(text, str) for text in texts)
    for key, value in fields.items():
        if not (is_edit and key in (before, after)):
            yield from _field(str(key), value)
    if diff:
        yield from (Line(line, _DIFF_STYLES.get(line[:1], Style.SAME)) for line in visible(diff).split("\n"))
    elif is_edit:
        yield from changed_lines(*texts)


def _field(name: str, value: Any) -> Iterator[Line]:
    text = visible(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    first, *rest = text.split("\n")
    if not rest:
        yield Line(f"{visible(name)}: {first}")
        return
    yield Line(f"{visible(name)}:", Style.HEAD)
    yield from (Line(f"  {line}") for line in (first, *rest))


def result_text(content: object) -> str:
    """What a tool returned, as far as it is text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    shown = (block.get("text") or f"[{block.get('type')}]" for block in blocks if isinstance(block, Mapping))
    return "\n".join(map(str, shown))
