"""Text for people and programs: shortened with a mark that says so, read in pages, with nothing in it invisible. Pure.

Everything here takes time linear in the text. Secrets must be taken out of a text before it is shortened or paged: half
a secret is no longer recognised as one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

_MARK = "[[claude-code-mcp cut {left_out} of {total} characters{rest}]]"


_IS_MARK = re.compile(r"\[\[claude-code-mcp cut \d")


"""What every mark begins with. It is documented: callers may look for it."""


_ODD = re.compile("[^\\x20-\\x7e\\n\\t]")


_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")


"""Letters and marks by their category, but nothing is to be seen of them."""


_GAP = re.compile(r"[ \t]{9,}|[ \t]*\n[ \t\n]*")


_LOOK_BACK = 1000


_DEEPEST = 100


_MOST_ITEMS = 200


def cut(text: str, longest: int, part: str | None = None) -> str:
    """The beginning of a text that is too long, and a mark behind it; `part` is what the whole can be asked for by.

    The beginning has `longest` characters; the mark comes on top of that.
    """
    return text if len(text) <= longest else text[:longest] + mark(len(text) - longest, len(text), part)


def mark(left_out: int, total: int, part: str | None = None) -> str:
    """Stands where characters were left out."""
    return _MARK.format(left_out=left_out, total=total, rest=f'; part "{part}" has all' if part else "")


def has_mark(value: Any) -> bool:
    """Whether a cut mark is anywhere in a JSON value: in its texts, its keys or what it holds."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if _IS_MARK.search(one):
                return True
        elif isinstance(one, Mapping):
            waiting.extend(one)
            waiting.extend(one.values())
        elif isinstance(one, list | tuple):
            waiting.extend(one)
    return False


class Page(NamedTuple):
    """Some of a long text. The pages of a text, one after the other, are the text."""

    text: str
    offset: int
    next_offset: int | None
    """None on the last page."""
    total: int


def page_of(text: str, offset: int, size: int) -> Page:
    """At most `size` characters from `offset` on. Ends at whitespace where there is some near, so that no word that a
    redactor would look at is torn apart."""
    offset = min(offset, len(text))
    end = offset + size
    if end >= len(text):
        return Page(text[offset:], offset, None, len(text))
    near = text[max(offset + size // 2, end - _LOOK_BACK) : end]
    trailing = next((number for number, one in enumerate(reversed(near)) if one.isspace()), None)
    end -= trailing or 0
    return Page(text[offset:end], offset, end, len(text))


def cut_data(value: Any, budget: int, longest: int, part: str | None = None) -> Any:
    """A JSON value of the same shape with about `budget` characters of text at most, none longer than `longest`.

    Wherever something is missing there is a mark: at the end of a text, as the last item of a list, as the last key.
    """
    return _Cutter(budget, longest, part).value(value, 0)


class _Cutter:
    def __init__(self, budget: int, longest: int, part: str | None) -> None:
        self._left = budget
        self._longest = longest
        self._part = part

    def value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, Mapping | list | tuple):
            self._left -= 8
            return value
        if depth > _DEEPEST:
            return _items_mark(len(value), self._part)
        return self._object(value, depth) if isinstance(value, Mapping) else self._list(value, depth)

    def _text(self, text: str) -> str:
        room = max(0, min(self._longest, self._left))
        self._left -= min(len(text), room) + 8
        return cut(text, room, self._part)

    def _object(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for number, (key, one) in enumerate(value.items()):
            if number >= _MOST_ITEMS or self._left <= 0:
                kept[_items_mark(len(value) - number, self._part)] = None
                break
            kept[self._text(str(key))] = self.value(one, depth + 1)
        return kept

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        kept: list[Any] = []
        for number, one in enumerate(value):
            if number >= _MOST_ITEMS or self._left <= 0:
                kept.append(_items_mark(len(value) - number, self._part))
                break
            kept.append(self.value(one, depth + 1))
        return kept


def _items_mark(count: int, part: str | None) -> str:
    rest = f'; part "{part}" has all' if part else ""
    return f"[[claude-code-mcp cut {count} more entries{rest}]]"


def visible(text: str) -> str:
    """The text with everything escaped that is not to be seen or steers a screen: controls, direction marks, zero-width
    characters, lone surrogates. Line breaks and tabs stay; CR LF is one line break.

    The escapes are JSON's, so JSON stays the JSON that it was.
    """
    return _ODD.sub(_shown, text.replace("\r\n", "\n"))


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    return character if character.isprintable() and character not in _INVISIBLE else json.dumps(character)[1:-1]


def hidden_in(text: str) -> int:
    """How many characters `visible` escapes."""
    return sum(_shown(one) != one[0] for one in _ODD.finditer(text.replace("\r\n", "\n")))


def as_json(value: Any) -> str:
    """JSON in which everything is to be seen, and which can be written as UTF-8."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def one_line(text: str, longest: int) -> str:
    """The text on one line: line breaks as ⏎, long gaps told by their length, and of a long text both ends, with how
    long it is between them. Nothing is dropped without a word."""
    if len(text) > 4 * longest:  # the ends decide; what is between them is only counted
        ends = _flat(text[: 2 * longest]), _flat(text[-2 * longest :])
    else:
        flat = _flat(text)
        if len(flat) <= longest:
            return flat
        ends = flat, flat
    told = f"[… {len(text)} characters in all …]"
    room = max(0, longest - len(told))
    tail = room // 3
    return ends[0][: room - tail] + told + (ends[1][-tail:] if tail else "")


def _flat(text: str) -> str:
    flat = _GAP.sub(_told_gap, text.replace("\r\n", "\n").strip(" \n\t"))
    return visible(flat.replace("\t", " "))


def _told_gap(found: re.Match[str]) -> str:
    breaks = found[0].count("\n")
    if breaks == 1 and len(found[0]) <= 20:
        return " ⏎ "
    if breaks:
        return f" ⏎[{breaks} line breaks]⏎ " if breaks > 1 else f" ⏎[{len(found[0]) - 1} spaces] "
    return f" [{len(found[0])} spaces] "


def gaps(text: str, lines: int = 20, spaces: int = 100) -> Iterator[str]:
    """Words on each place where so many empty lines or spaces are in a row that what follows may be out of sight."""
    for found in _GAP.finditer(text):
        empty = found[0].count("\n") - 1
        if empty >= lines:
            yield f"{empty} empty lines in a row"
        elif max(map(len, found[0].split("\n"))) >= spaces:
            yield f"{len(found[0])} spaces in a row"


def count_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def iso(seconds: float) -> str:
    """A Unix time as text, such as `2026-11-15T16:31:14.000Z`; one outside the calendar is moved to its edge."""
    return f"{_moment(seconds).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def _moment(seconds: float) -> datetime:
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # a file from elsewhere can hold any number, also one that is none
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else _EPOCH
