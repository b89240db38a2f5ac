"""A conversation from its end backwards, as items for programs that draw it: each with an id, none too long to show.

Linear in what is read. `read_items` blocks on the disk.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..model.text import cut, cut_data
from .conversation import ConversationTurn, Item, Outline, read_turn
from .transcript_text import without_secrets

_LONGEST_TEXT = 100_000
_LONGEST_RESULT = 50_000
"""Characters of one text, and of a tool's result or diff; a mark says where something is missing."""


@dataclass(frozen=True, slots=True)
class ItemPage:
    """Some items, oldest first."""

    items: list[dict[str, Any]]
    previous: str | None
    """What to pass as `before` for the page of those before them; None if these are the first."""


def read_items(path: str, outline: Outline, before: str | None, size: int, redact: Callable[[Any], Any]) -> ItemPage:
    """About `size` characters of items before a place, or at the end: `7.3` is the fourth item of the seventh turn.
    ValueError for what is no place. Secrets are taken out before anything is cut."""
    turn, end = _place(before, len(outline.turns))
    items: list[dict[str, Any]] = []
    while turn > 0:
        entries = list(_entries(turn, without_secrets(read_turn(path, outline.turns[turn - 1]), redact)))
        entries = entries[:end]
        while entries:
            size -= _size(entries[-1])
            if size < 0 and items:
                return ItemPage(items[::-1], f"{turn}.{len(entries)}")
            items.append(entries.pop())
        turn, end = turn - 1, None
    return ItemPage(items[::-1], None)


def _place(before: str | None, turns: int) -> tuple[int, int | None]:
    if before is None:
        return turns, None
    turn, dot, item = before.partition(".")
    if not (dot and all(part.isascii() and part.isdigit() and len(part) < 10 for part in (turn, item))):
        raise ValueError("not a place")
    return min(int(turn), turns), int(item)


def _entries(number: int, turn: ConversationTurn) -> Iterator[dict[str, Any]]:
    if turn.prompt is not None:
        prompt = cut(turn.prompt, _LONGEST_TEXT)
        yield {"kind": "prompt", "turn": number, "id": turn.message_id or "", "at": turn.at, "text": prompt}
    for item in turn.items:
        # That of a call, or of its line: what the CLI names it by while it happens.
        item_id = item.id if item.kind == "tool" else item.id.partition(":")[0]
        yield {"kind": item.kind, "turn": number, "id": item_id, **_fields(item)}


def _fields(item: Item) -> dict[str, Any]:
    if item.kind != "tool":
        return {"text": cut(item.text, _LONGEST_TEXT)}
    fields = {
        "name": item.name,
        "input": cut_data(item.input, _LONGEST_RESULT, _LONGEST_RESULT),
        "status": item.status,
        "result": cut(item.result, _LONGEST_RESULT),
        "diff": cut(item.diff, _LONGEST_RESULT),
        "agent": item.agent,
    }
    return {name: value for name, value in fields.items() if value}


def _size(entry: dict[str, Any]) -> int:
    """About how long it is as JSON; the input of a tool is bounded and counted as a whole."""
    return 100 + sum(len(value) if isinstance(value, str) else 500 for value in entry.values())
