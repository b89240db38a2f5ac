"""Turns of a conversation as text: in short lines, or in full as Markdown, whole or in pages.

Linear in what is written. Only `read_page` reads a file, and blocks on the disk.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..model.text import clip_line, page_of
from .conversation import ConversationTurn, Item, Outline, read_turn

_LONGEST_LINE = 160
_CURSOR = re.compile(r"(-?[0-9]{1,9})(?:\.([0-9]{1,12}))?")
_BACKTICKS = re.compile("`{3,}")


@dataclass(frozen=True, slots=True)
class Detail:
    """How much of a conversation is written."""

    full: bool = False
    """Inputs and results of tools as they were, not one line of each."""
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class TextPage:
    """Some of a conversation. The pages one after the other are the whole."""

    text: str
    next_cursor: str | None
    """None on the last page."""


def read_page(
    path: str, outline: Outline, cursor: str, size: int, detail: Detail, redact: Callable[[Any], Any]
) -> TextPage:
    """About `size` characters from a cursor on: `7` is the seventh turn, `-1` the last one, `7.2000` the seventh behind
    its first 2000 characters. A turn is torn apart only if it does not fit on a page alone. ValueError for what is no
    cursor. Secrets are taken out by `redact` before anything is cut."""
    turn, offset = _position(cursor, len(outline.turns))
    parts: list[str] = []
    left = size
    while turn <= len(outline.turns):
        text = turn_text(turn, without_secrets(read_turn(path, outline.turns[turn - 1]), redact), detail)
        piece = page_of(text, offset, max(left, 1))
        if piece.next_offset is not None and parts:
            return TextPage("\n".join(parts), str(turn))
        parts.append(piece.text)
        if piece.next_offset is not None:
            return TextPage("\n".join(parts), f"{turn}.{piece.next_offset}")
        left -= len(piece.text)
        turn, offset = turn + 1, 0
    return TextPage("\n".join(parts), None)


def _position(cursor: str, turns: int) -> tuple[int, int]:
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise ValueError("not a cursor")
    turn = int(found[1])
    return (turn if turn > 0 else max(1, turns + 1 + turn)), int(found[2] or 0)


def without_secrets(turn: ConversationTurn, redact: Callable[[Any], Any]) -> ConversationTurn:
    """The turn as it may be shown."""
    items = [item_without_secrets(item, redact) for item in turn.items]
    return replace(turn, prompt=redact(turn.prompt), items=items)


def item_without_secrets(item: Item, redact: Callable[[Any], Any]) -> Item:
    """The item as it may be shown."""
    return replace(
        item, text=redact(item.text), input=redact(item.input), result=redact(item.result), diff=redact(item.diff)
    )


def turn_text(number: int, turn: ConversationTurn, detail: Detail) -> str:
    """One turn, counted from 1, under a heading of its own."""
    return "\n".join(_turn_lines(number, turn, detail)).strip() + "\n"


def markdown(
    title: str, facts: Iterable[tuple[str, str]], turns: Iterable[ConversationTurn], detail: Detail
) -> Iterator[str]:
    """A whole conversation, a piece at a time."""
    yield f"# {' '.join(title.split())}\n\n"
    yield "".join(f"- {name}: {' '.join(value.split())}\n" for name, value in facts)
    for number, turn in enumerate(turns, 1):
        yield "\n" + turn_text(number, turn, detail)


def _turn_lines(number: int, turn: ConversationTurn, detail: Detail) -> Iterator[str]:
    yield f"## {number} · {(turn.at or '')[:19].replace('T', ' ')}".rstrip(" ·")
    yield ""
    if turn.prompt is not None:
        yield from (f"> {line}".rstrip() for line in turn.prompt.splitlines())
        yield ""
    for item in turn.items:
        yield from _item_lines(item, detail)


def _item_lines(item: Item, detail: Detail) -> Iterator[str]:
    match item.kind:
        case "text":
            yield item.text.strip()
            yield ""
        case "message":
            yield from (f"> {line}".rstrip() for line in item.text.splitlines())
            yield ""
        case "thinking" if detail.thinking and item.text.strip():
            yield from _quoted("thinking", item.text)
        case "note":
            yield f"*{item.text}*"
            yield ""
        case "tool":
            yield from _full_call(item) if detail.full else _short_call(item)


def _short_call(item: Item) -> Iterator[str]:
    yield clip_line(f"[{item.name}] {arguments(item.input)}", _LONGEST_LINE)
    changes = f" {_changed(item.diff)}" if item.diff else ""
    if item.status:
        yield clip_line(f"[{item.status}]{changes} {item.result}", _LONGEST_LINE)
    if item.agent:
        yield f"[subagent {item.agent}]"
    yield ""


def _changed(diff: str) -> str:
    lines = diff.splitlines()
    return f"+{sum(line.startswith('+') for line in lines)} -{sum(line.startswith('-') for line in lines)}"


def _full_call(item: Item) -> Iterator[str]:
    agent = f", subagent {item.agent}" if item.agent else ""
    yield f"**{' '.join(item.name.split())}** ({item.status or 'no result'}{agent})"
    yield ""
    yield from _quoted("", full_input(item.input))
    if item.diff:
        yield from _quoted("diff", item.diff)
    elif item.result:
        yield from _quoted("", item.result)


def _quoted(kind: str, text: str) -> Iterator[str]:
    """A block that the text in it cannot end: the fence is longer than any in it."""
    fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(text)), default=0))
    yield f"{fence}{kind}"
    yield text.strip("\n")
    yield fence
    yield ""


def arguments(tool_input: object) -> str:
    """The value alone where there is only one, such as a command or a path; else all with their names."""
    fields = tool_input if isinstance(tool_input, dict) else {}
    texts = {
        str(name): value if isinstance(value, str) else _json(value)
        for name, value in fields.items()
        if name != "description"
    }
    if len(texts) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def full_input(tool_input: object) -> str:
    """All that a tool was given: a command as it is, anything else field by field."""
    if not isinstance(tool_input, dict):
        return _json(tool_input)
    if isinstance(tool_input.get("command"), str):
        return str(tool_input["command"])
    parts = []
    for name, value in tool_input.items():
        text = value if isinstance(value, str) else _json(value)
        parts.append(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}")
    return "\n".join(parts)


def _json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "[not shown]"
