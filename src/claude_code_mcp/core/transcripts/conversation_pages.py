"""A conversation in pages, read backwards from a place in it.

A place in a conversation is `7`, before the seventh turn, or `7.3`, before the third item of that turn; before `7.1`
there is its prompt. Secrets are taken out before anything is shortened, and what was shortened says so. Only what is on
a page is looked at closely, from its end on. Linear in what is read; blocks on the disk.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ..model.text import cut, cut_data
from .conversation import ConversationTurn, Item, read_turn
from .outline import Outline
from .transcript_export import facts_without_secrets, item_without_secrets

Redact = Callable[[Any], Any]
MAX_PREVIEW = 8_000
"""Characters of a tool's result for who can ask for the whole item."""
_MAX_TEXT = 100_000
_MAX_INPUT = 60_000
_OVERHEAD = 200
"""What an item costs beside its texts."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is on a page."""

    size: int
    """Characters, about; there is always one item at least."""
    most_turns: int | None = None
    """If given, a page has whole turns alone: at least one, and no more than so many."""
    longest_result: int = 50_000
    """Characters of the result of a tool."""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """What is on a page of one turn, which has this number, counted from 1. Only the first part of a page may lack
    the turn's beginning, and then it has no prompt."""

    number: int
    turn: ConversationTurn


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Parts of turns that follow one another, oldest first."""

    parts: tuple[TurnPart, ...]
    previous: str | None
    """The place before which the next page ends; None if this one has the beginning."""


class _Room:
    """The space that is left on a page; the first thing always fits."""

    def __init__(self, extent: Extent) -> None:
        self.longest_result = extent.longest_result
        self._left = extent.size
        self._divides = extent.most_turns is None
        self._used = False

    @property
    def full(self) -> bool:
        return self._used and self._left <= 0

    def take(self, size: int) -> bool:
        """Whether this much is for this page; it is counted in any case. No turn is divided if none may be."""
        fits = not self._used or size <= self._left or not self._divides
        self._left -= size
        self._used = True
        return fits


def read_page_before(
    path: str, outline: Outline, before: str | None, extent: Extent, redact: Redact
) -> ConversationPage:
    """What lies before a place, or at the end. ValueError for what is no place."""
    number, end = _place(before, len(outline.turns))
    room, parts = _Room(extent), list[TurnPart]()
    while number > 0:
        if room.full or len(parts) == extent.most_turns:
            return _page(parts, f"{number + 1}")
        turn, start = _end_of(read_turn(path, outline.turns[number - 1]), end, room, redact)
        if turn.items or turn.prompt is not None:
            parts.append(TurnPart(number, turn))
        if start:
            return _page(parts, f"{number}.{start}")
        number, end = number - 1, None
    return _page(parts, None)


def _page(backwards: list[TurnPart], previous: str | None) -> ConversationPage:
    return ConversationPage(tuple(reversed(backwards)), previous)


def _place(before: str | None, turns: int) -> tuple[int, int | None]:
    """The last turn of the page, and before which of its items the page ends; None for behind them all."""
    if before is None:
        return turns, None
    number, dot, item = before.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (number, item if dot else "0")):
        raise ValueError("not a place")
    if int(number) > turns:
        return turns, None
    return (int(number), int(item)) if dot and int(item) else (int(number) - 1, None)


def _end_of(turn: ConversationTurn, end: int | None, room: _Room, redact: Redact) -> tuple[ConversationTurn, int]:
    """The items of a turn before one that there is room for, and the number of the first; 0 with the prompt."""
    turn = facts_without_secrets(turn, redact)
    kept: list[Item] = []
    items = turn.items if end is None else turn.items[: end - 1]
    for number in range(len(items), 0, -1):
        # Secrets first: one that is cut in half would not be recognised.
        item = shortened(item_without_secrets(items[number - 1], redact), room.longest_result)
        if not room.take(_size(item)):
            return replace(turn, prompt=None, items=kept[::-1]), number + 1
        kept.append(item)
    prompt = None if turn.prompt is None else cut(redact(turn.prompt), _MAX_TEXT)
    if prompt is not None and not room.take(len(prompt) + _OVERHEAD):
        return replace(turn, prompt=None, items=kept[::-1]), 1
    return replace(turn, prompt=prompt, items=kept[::-1]), 0


def whole_item(path: str, outline: Outline, number: int, item_id: str, redact: Redact) -> Item | None:
    """One item of a turn with all of its texts; None if there is none."""
    if not 1 <= number <= len(outline.turns):
        return None
    items = read_turn(path, outline.turns[number - 1]).items
    # By the id that was shown, which may be one without a secret.
    return next((item_without_secrets(item, redact) for item in items if redact(item.id) == item_id), None)


def shortened(item: Item, longest_result: int) -> Item:
    """The item with its long texts cut, each with a mark, and `cut` set if one is."""
    short = replace(
        item,
        text=cut(item.text, _MAX_TEXT),
        result=cut(item.result, longest_result),
        output=cut(item.output, longest_result),
        diff=cut(item.diff, _MAX_TEXT),
    )
    if _length(item.input) > _MAX_INPUT:
        short.input = cut_data(item.input, _MAX_INPUT, _MAX_INPUT)
    short.cut = short != item
    return short


def _size(item: Item) -> int:
    return len(item.text) + len(item.result) + len(item.output) + len(item.diff) + _length(item.input) + _OVERHEAD


def _length(value: Any) -> int:
    return 0 if value is None else len(json.dumps(value, default=str))
