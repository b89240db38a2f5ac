"""Pages of a conversation as data: its turns from a place backwards, with long texts shortened. Blocks on the disk.

Secrets are taken out before anything is shortened. What was shortened says so and can be read whole by its id.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..model.text import cut, cut_data
from .conversation import ConversationTurn, Item, Outline, read_turn
from .transcript_text import without_secrets

_PAGE = 400_000
"""Characters of a page; one turn is always there."""
_LONGEST_TEXT = 100_000
_LONGEST_RESULT = 8_000
_LONGEST_INPUT = 60_000


@dataclass(frozen=True, slots=True)
class TurnPage:
    """Turns that follow one another; `first` is the number of the first, counted from 1."""

    session_id: str
    title: str
    first: int
    turns: tuple[ConversationTurn, ...]
    total: int
    agents: tuple[str, ...] = ()
    """The subagents whose transcripts can be read."""
    left_behind: int = 0
    """Messages on branches that were given up."""


def last_turns(
    path: str, outline: Outline, before: int | None, limit: int, redact: Callable[[Any], Any]
) -> tuple[int, tuple[ConversationTurn, ...]]:
    """At most `limit` turns that end before the turn with this number, or with the last one, as many as fit on a page;
    the number of the first, and the turns in order."""
    end = len(outline.turns) + 1 if before is None else min(before, len(outline.turns) + 1)
    found: list[ConversationTurn] = []
    left = _PAGE
    for number in range(end - 1, 0, -1):
        if len(found) == limit or (found and left <= 0):
            break
        turn = without_secrets(read_turn(path, outline.turns[number - 1]), redact)
        found.append(replace(turn, prompt=turn.prompt, items=[shortened(item) for item in turn.items]))
        left -= sum(_size(item) for item in found[-1].items) + len(turn.prompt or "")
    return end - len(found), tuple(reversed(found))


def whole_item(path: str, outline: Outline, number: int, item_id: str, redact: Callable[[Any], Any]) -> Item | None:
    """One item of a turn with all of its texts; None if there is none."""
    if not 1 <= number <= len(outline.turns):
        return None
    turn = without_secrets(read_turn(path, outline.turns[number - 1]), redact)
    return next((item for item in turn.items if item.id == item_id), None)


def shortened(item: Item) -> Item:
    """The item with its long texts cut, each with a mark, and `cut` set if one is."""
    short = replace(
        item,
        text=cut(item.text, _LONGEST_TEXT),
        result=cut(item.result, _LONGEST_RESULT),
        diff=cut(item.diff, _LONGEST_TEXT),
    )
    if _length(item.input) > _LONGEST_INPUT:
        short.input = cut_data(item.input, _LONGEST_INPUT, _LONGEST_INPUT)
    short.cut = short != item
    return short


def _size(item: Item) -> int:
    return len(item.text) + len(item.result) + len(item.diff) + _length(item.input) + 200


def _length(value: Any) -> int:
    return 0 if value is None else len(json.dumps(value, default=str))
