"""A conversation in pages, read backwards.

A position in a conversation is `7`, before the seventh turn, or `7.3`, before the third item of that turn; the prompt
is before `7.1`. Texts are redacted before they are shortened, and shortened texts are marked. Only the content of a
page is parsed completely. Linear in the input; blocks on the disk.
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
"""Characters of a tool result for callers that can request the whole item."""
_MAX_TEXT = 100_000
_MAX_INPUT = 60_000
_OVERHEAD = 200
"""The size of an item in addition to its texts."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of a page."""

    size: int
    """Approximate number of characters; a page always has at least one item."""
    most_turns: int | None = None
    """If set, a page has only whole turns: at least one and at most this many."""
    longest_result: int = 50_000
    """Characters of a tool result."""


@dataclass(frozen=True, slots=True)
class TurnPart:
    """The part of one turn on a page, with the turn's number, counted from 1. Only the first part of a page may lack
    the turn's beginning; then it has no prompt."""

    number: int
    turn: ConversationTurn


@dataclass(frozen=True, slots=True)
class ConversationPage:
    """Consecutive parts of turns, oldest first."""

    parts: tuple[TurnPart, ...]
    previous: str | None
    """The position before which the next page ends; None if this page has the beginning."""


class _Room:
    """The remaining space on a page; the first item always fits."""

    def __init__(self, extent: Extent) -> None:
        self.longest_result = extent.longest_result
        self._left = extent.size
        self._divides = extent.most_turns is None
        self._used = False

    @property
    def full(self) -> bool:
        return self._used and self._left <= 0

    def take(self, size: int) -> bool:
        """Whether this much fits; it is counted in any case. Nothing is split if turns must be whole."""
        fits = not self._used or size <= self._left or not self._divides
        self._left -= size
        self._used = True
        return fits


def read_page_before(
    path: str, outline: Outline, before: str | None, extent: Extent, redact: Redact
) -> ConversationPage:
    """The page before a position, or at the end. Raises ValueError for an invalid position."""
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
    """The last turn of the page, and the item before which the page ends; None for the turn's end."""
    if before is None:
        return turns, None
    number, dot, item = before.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in (number, item if dot else "0")):
        raise ValueError("not a position in a conversation")
    if int(number) > turns:
        return turns, None
    return (int(number), int(item)) if dot and int(item) else (int(number) - 1, None)


def _end_of(turn: ConversationTurn, end: int | None, room: _Room, redact: Redact) -> tuple[ConversationTurn, int]:
    """The items of a turn before a given one that fit, and the number of the first; 0 with the prompt."""
    turn = facts_without_secrets(turn, redact)
    kept: list[Item] = []
    items = turn.items if end is None else turn.items[: end - 1]
    for number in range(len(items), 0, -1):
        # Secrets first: one that is cut in half would not be recognized.
        item = shortened(item_without_secrets(items[number - 1], redact), room.longest_result)
        if not room.take(_size(item)):
            return replace(turn, prompt=None, items=kept[::-1]), number + 1
        kept.append(item)
    prompt = None if turn.prompt is None else cut(redact(turn.prompt), _MAX_TEXT)
    if prompt is not None and not room.take(len(prompt) + _OVERHEAD):
        return replace(turn, prompt=None, items=kept[::-1]), 1
    return replace(turn, prompt=prompt, items=kept[::-1]), 0


def whole_item(path: str, outline: Outline, number: int, item_id: str, redact: Redact) -> Item | None:
    """One item of a turn with its complete texts; None if it does not exist."""
    if not 1 <= number <= len(outline.turns):
        return None
    items = read_turn(path, outline.turns[number - 1]).items
    # By the id that was shown, which may be one without a secret.
    return next((item_without_secrets(item, redact) for item in items if redact(item.id) == item_id), None)


def shortened(item: Item, longest_result: int) -> Item:
    """The item with long texts cut, each with a mark; then `cut` is set."""
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
