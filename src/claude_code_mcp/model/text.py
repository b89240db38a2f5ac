"""Text for people and programs: shortened, read in pages, put on one line, compared by lines, with nothing in it
invisible. Pure.

The one place where text is shortened, in three manners: `cut` says in a mark how much is missing, `clip` and
`clip_line` end in an ellipsis and keep to a length, `one_line` keeps both ends. Everything here takes time linear in
the text. Secrets must be taken out of a text before it is shortened or paged: half a secret is no longer recognised.

Two texts are compared by lines (`unified_diff`), with line numbers. The result is always true: applied to the first
text it gives the second one. It is small as well where lines that occur once in both texts lead the way, and between
them while the work is within a budget; beyond it a stretch is shown as all lines that go and all that come. The time is
linear in the texts but for the sorting of those lines.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

_CUT_MARK = "[[claude-code-mcp cut {left_out} of {total} characters{rest}]]"
_IS_CUT_MARK = re.compile(r"\[\[claude-code-mcp cut \d")
"""What every mark begins with. It is documented: callers may look for it."""
_EMOJI = "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_JOINING = "[\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u180a\u1820-\u18af]"
"""Letters of scripts that are written with joiners."""
_BELONGS = "|".join(
    (
        f"(?:(?<={_EMOJI})|(?<={_EMOJI}\ufe0f))\u200d(?={_EMOJI})",
        f"(?<={_JOINING})[\u200c\u200d](?={_JOINING})",
        "(?<=\U0001f3f4)[\U000e0020-\U000e007e]{1,8}\U000e007f",
    )
)
"""Where a character that cannot be seen belongs to one that can, as in emoji; the same as in `web/src/words.ts`."""
_PERHAPS_INVISIBLE = re.compile(f"(?P<belongs>{_BELONGS})|[^\\x20-\\x7e\\n\\t]")
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks by their category, but nothing is to be seen of them."""
_GAP = re.compile(r"[ \t]{9,}|[ \t]*\n[ \t\n]*")
_PAGE_LOOK_BACK = 1000
"""How far before the end of a page whitespace is looked for."""
_DEEPEST = 100
_MOST_ITEMS = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- shortening -------------------------------------------------------------------------------------------------


def cut(text: str, longest: int, part: str | None = None) -> str:
    """The beginning of a text that is too long, and a mark behind it; `part` is what the whole can be asked for by.

    The beginning has `longest` characters; the mark comes on top of that.
    """
    return text if len(text) <= longest else text[:longest] + mark(len(text) - longest, len(text), part)


def mark(left_out: int, total: int, part: str | None = None) -> str:
    """Stands where characters were left out."""
    return _CUT_MARK.format(left_out=left_out, total=total, rest=f'; part "{part}" has all' if part else "")


def has_mark(value: Any) -> bool:
    """Whether a cut mark is anywhere in a JSON value: in its texts, its keys or what it holds."""
    return any(isinstance(part, str) and _IS_CUT_MARK.search(part) for part in json_parts(value))


def json_parts(value: Any) -> Iterator[Any]:
    """Every part of a JSON value: itself, keys and nested values, in no particular order, however deeply nested."""
    unread = [value]
    while unread:
        part = unread.pop()
        yield part
        if isinstance(part, Mapping):
            unread.extend(part)
            unread.extend(part.values())
        elif isinstance(part, list | tuple):
            unread.extend(part)


def clip(text: str, longest: int, ending: str = "…") -> str:
    """At most `longest` characters; where some are missing, the last of them are `ending`."""
    return text if len(text) <= longest else text[: longest - len(ending)].rstrip() + ending


def sharing_line(shares: Iterable[Mapping[str, str]]) -> str:
    """With whom a session is shared, and for what, as reports have it (`with`, `access`), in a line."""
    return ", ".join(f"{share['with']} ({share['access']})" for share in shares)


def clip_line(text: str, longest: int) -> str:
    """The text on one line, every gap a single space, clipped. Reads only so much of a long one as can be needed."""
    return clip(" ".join(text[: 20 * longest].split()), longest)


def cut_data(value: Any, budget: int, longest: int, part: str | None = None) -> Any:
    """A JSON value of the same shape with about `budget` characters of text at most, none longer than `longest`.

    Wherever something is missing there is a mark: at the end of a text, as the last item of a list, as the last key.
    """
    return _Cutter(budget, longest, part).value(value, 0)


class _Cutter:
    """Walks one JSON value depth first and takes every text out of a common budget."""

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
        for number, (key, item) in enumerate(value.items()):
            if number >= _MOST_ITEMS or self._left <= 0:
                kept[_items_mark(len(value) - number, self._part)] = None
                break
            kept[self._text(str(key))] = self.value(item, depth + 1)
        return kept

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        kept: list[Any] = []
        for number, item in enumerate(value):
            if number >= _MOST_ITEMS or self._left <= 0:
                kept.append(_items_mark(len(value) - number, self._part))
                break
            kept.append(self.value(item, depth + 1))
        return kept


def _items_mark(count: int, part: str | None) -> str:
    rest = f'; part "{part}" has all' if part else ""
    return f"[[claude-code-mcp cut {count} more entries{rest}]]"


# -- pages ------------------------------------------------------------------------------------------------------


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
    near = text[max(offset + size // 2, end - _PAGE_LOOK_BACK) : end]
    end -= next((torn for torn, character in enumerate(reversed(near)) if character.isspace()), 0)
    return Page(text[offset:end], offset, end, len(text))


# -- nothing invisible ------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """The text with everything escaped that is not to be seen or steers a screen: controls, direction marks, zero-width
    characters, lone surrogates. Line breaks and tabs stay, and joiners inside of emoji and of words that are written
    with them; CR LF is one line break.

    The escapes are JSON's, so JSON stays the JSON that it was.
    """
    return _PERHAPS_INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if found["belongs"] is not None:
        return character
    return character if character.isprintable() and character not in _BLANK_LETTERS else json.dumps(character)[1:-1]


def hidden_in(text: str) -> int:
    """How many characters `visible` escapes."""
    return sum(_escape(found) != found[0] for found in _PERHAPS_INVISIBLE.finditer(text.replace("\r\n", "\n")))


def as_json(value: Any) -> str:
    """JSON in which everything is to be seen, and which can be written as UTF-8."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def one_line(text: str, longest: int) -> str:
    """The text on one line: line breaks as ⏎, long gaps replaced by their length, and of a long text both ends with its
    length between them. Whatever is left out is mentioned."""
    if len(text) > 4 * longest:  # the ends decide; what is between them is only counted
        start, end = _flatten(text[: 2 * longest]), _flatten(text[-2 * longest :])
    else:
        start = end = _flatten(text)
        if len(start) <= longest:
            return start
    middle = f"[… {len(text)} characters in all …]"
    room = max(0, longest - len(middle))
    tail = room // 3
    return start[: room - tail] + middle + (end[-tail:] if tail else "")


def _flatten(text: str) -> str:
    flat = _GAP.sub(_describe_gap, text.replace("\r\n", "\n").strip(" \n\t"))
    return visible(flat.replace("\t", " "))


def _describe_gap(found: re.Match[str]) -> str:
    breaks = found[0].count("\n")
    if breaks == 1 and len(found[0]) <= 20:
        return " ⏎ "
    if breaks:
        return f" ⏎[{breaks} line breaks]⏎ " if breaks > 1 else f" ⏎[{len(found[0]) - 1} spaces] "
    return f" [{len(found[0])} spaces] "


def gaps(text: str) -> Iterator[str]:
    """Describes each place where so many empty lines or spaces are in a row that what follows may be out of sight."""
    for found in _GAP.finditer(text):
        empty = found[0].count("\n") - 1
        if empty >= 20:
            yield f"{empty} empty lines in a row"
        elif max(map(len, found[0].split("\n"))) >= 100:
            yield f"{len(found[0])} spaces in a row"


# -- numbers and times ------------------------------------------------------------------------------------------


def count_of(number: float, noun: str, form: str = ",") -> str:
    """`1 line`, `2,000 lines`; `form` is how the number is formatted."""
    return f"{number:{form}} {noun}" if number == 1 else f"{number:{form}} {noun}s"


def iso(seconds: float) -> str:
    """A Unix time as text, such as `2026-11-15T16:31:14.000Z`; one outside the calendar is moved to its edge."""
    if 0 <= seconds < 1 << 32:  # also false for what is no number
        whole = int(seconds)
        return f"{_whole_second(whole)}.{int((seconds - whole) * 1000):03d}Z"
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # a file from elsewhere can hold any number, also one that is none
        moment = datetime.max.replace(tzinfo=UTC) if seconds > 0 else _EPOCH
    return f"{moment.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


@lru_cache(maxsize=16)
def _whole_second(seconds: int) -> str:
    """Cached, since thousands of messages may be streamed within a second."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")


def age(timestamp: str, now: float) -> str:
    """How long before `now` (Unix seconds) a time such as that of `iso` was: `5m`."""
    try:
        seconds = now - datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return "-"
    for unit, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds // unit:.0f}{letter}"
    return f"{max(0.0, seconds):.0f}s"


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV (RFC 4180), with a head of all their names. A text that a spreadsheet would take for a formula has an
    apostrophe before it: names of projects and people are chosen by others."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    return "".join(",".join(map(_quoted, line)) + "\r\n" for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if any(letter in text for letter in ',"\r\n') else text


# -- two texts by lines ------------------------------------------------------------------------------------------------


_NO_BREAK = "\\ No newline at end of file"
_BUDGET = 60_000
"""Steps of the search for the shortest way, in all stretches of one comparison."""
_WHOLE_LINES = 400
"""A file of up to so many lines is shown whole around its changes; of a longer one, so many lines around each."""
_CONTEXT = 8


class _Stretch(NamedTuple):
    """Lines of both texts that are the same, or lines of which those of the first go and those of the second come."""

    same: bool
    old: range
    new: range


def unified_diff(before: str, after: str) -> str:
    """The change from one text to the other as hunks of a unified diff, without the names of files; empty if there is
    none."""
    if before == after:
        return ""
    old, new = _lines(before), _lines(after)
    stretches = list(_joined(_compare(old, new)))
    context = max(len(old), len(new)) if len(old) <= _WHOLE_LINES else _CONTEXT
    return "\n".join(_hunk_lines(old, new, stretches, context))


def _lines(text: str) -> list[str]:
    """The lines with their breaks, so that a missing one at the end is a difference."""
    lines = text.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]]
    return [*ended, lines[-1]] if lines[-1] else ended


# -- comparing --------------------------------------------------------------------------------------------------------


def _compare(old: Sequence[str], new: Sequence[str]) -> Iterator[_Stretch]:
    budget = [_BUDGET]
    a = b = 0
    for anchor_old, anchor_new in [*_anchors(old, new), (len(old), len(new))]:
        yield from _between(old, new, range(a, anchor_old), range(b, anchor_new), budget)
        if anchor_old < len(old):
            yield _Stretch(True, range(anchor_old, anchor_old + 1), range(anchor_new, anchor_new + 1))
        a, b = anchor_old + 1, anchor_new + 1


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """The longest series of lines that occur once in each text, in the same order in both (patience)."""
    once_old, once_new = _unique(old), _unique(new)
    pairs = [(at, once_new[line]) for line, at in once_old.items() if line in once_new]
    ends: list[int] = []  # by length, the smallest place in the second text at which such a series ends
    last: list[int] = []  # the pair it ends with
    previous: list[int] = []
    for number, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        previous.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(place)
            last.append(number)
        else:
            ends[length], last[length] = place, number
    series: list[tuple[int, int]] = []
    number = last[-1] if last else -1
    while number >= 0:
        series.append(pairs[number])
        number = previous[number]
    return series[::-1]


def _unique(lines: Sequence[str]) -> dict[str, int]:
    """Where the lines are that occur once, in their order."""
    places: dict[str, int] = {}
    repeated: set[str] = set()
    for at, line in enumerate(lines):
        if line in places:
            repeated.add(line)
        places[line] = at
    return {line: at for line, at in places.items() if line not in repeated}


def _between(
    old: Sequence[str], new: Sequence[str], left: range, right: range, budget: list[int]
) -> Iterator[_Stretch]:
    """The stretches of two parts that have no anchor: the same at both ends, and between them the shortest way."""
    start = 0
    while start < min(len(left), len(right)) and old[left[start]] == new[right[start]]:
        start += 1
    end = 0
    while end < min(len(left), len(right)) - start and old[left[-1 - end]] == new[right[-1 - end]]:
        end += 1
    yield _Stretch(True, left[:start], right[:start])
    a, b = left.start + start, right.start + start
    for step in _steps(old[a : left.stop - end], new[b : right.stop - end], budget):
        took, came = step <= 0, step >= 0
        yield _Stretch(step == 0, range(a, a + took), range(b, b + came))
        a, b = a + took, b + came
    yield _Stretch(True, range(a, left.stop), range(b, right.stop))


def _steps(old: Sequence[str], new: Sequence[str], budget: list[int]) -> list[int]:
    """The shortest way from one list to another (Myers): -1 a line goes, 1 one comes, 0 one stays. All go and all come
    where that would cost more than is left of the budget."""
    everything = [-1] * len(old) + [1] * len(new)
    if not old or not new:
        return everything
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for distance in range(len(old) + len(new) + 1):
        budget[0] -= 2 * distance + 1  # of the copy below and of the diagonals
        if budget[0] < 0:
            return everything
        trace.append(dict(furthest))
        for diagonal in range(-distance, distance + 1, 2):
            x = _reached(furthest, diagonal, distance)
            while x < len(old) and x - diagonal < len(new) and old[x] == new[x - diagonal]:
                x, budget[0] = x + 1, budget[0] - 1
            furthest[diagonal] = x
            if x >= len(old) and x - diagonal >= len(new):
                return _way_back(trace, len(old), len(new))
    return everything


def _reached(furthest: dict[int, int], diagonal: int, distance: int) -> int:
    if _from_above(furthest, diagonal, distance):
        return furthest.get(diagonal + 1, 0)
    return furthest.get(diagonal - 1, 0) + 1


def _from_above(furthest: dict[int, int], diagonal: int, distance: int) -> bool:
    if diagonal in (-distance, distance):
        return diagonal == -distance
    return furthest.get(diagonal - 1, -1) < furthest.get(diagonal + 1, -1)


def _way_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[int]:
    steps: list[int] = []
    for distance in range(len(trace) - 1, -1, -1):
        furthest, diagonal = trace[distance], x - y
        above = _from_above(furthest, diagonal, distance)
        before = diagonal + 1 if above else diagonal - 1
        from_x = furthest.get(before, 0) if distance else 0
        from_y = from_x - before if distance else 0
        landed = from_x if above or not distance else from_x + 1
        steps += [0] * (x - landed)
        if distance:
            steps.append(1 if above else -1)
        x, y = from_x, from_y
    return steps[::-1]


def _joined(stretches: Iterator[_Stretch]) -> Iterator[_Stretch]:
    """With stretches of a kind that follow one another as one."""
    held: _Stretch | None = None
    for stretch in stretches:
        if not stretch.old and not stretch.new:
            continue
        if held is not None and held.same == stretch.same:
            old, new = range(held.old.start, stretch.old.stop), range(held.new.start, stretch.new.stop)
            held = _Stretch(held.same, old, new)
            continue
        if held is not None:
            yield held
        held = stretch
    if held is not None:
        yield held


# -- writing ----------------------------------------------------------------------------------------------------------


def _hunk_lines(old: Sequence[str], new: Sequence[str], stretches: Sequence[_Stretch], context: int) -> Iterator[str]:
    for hunk in _hunks(stretches, context):
        first, last = hunk[0], hunk[-1]
        yield f"@@ -{_place(first.old, last.old)} +{_place(first.new, last.new)} @@"
        for stretch in hunk:
            if stretch.same:
                yield from _marked(" ", old, stretch.old)
            else:
                yield from _marked("-", old, stretch.old)
                yield from _marked("+", new, stretch.new)


def _hunks(stretches: Sequence[_Stretch], context: int) -> Iterator[list[_Stretch]]:
    """Changes with the lines around them; those that are near each other together."""
    hunk: list[_Stretch] = []
    for number, stretch in enumerate(stretches):
        if not stretch.same:
            hunk.append(stretch)
            continue
        size, first, last = len(stretch.old), number == 0, number == len(stretches) - 1
        if first:
            hunk.append(_part(stretch, max(0, size - context), size))
        elif last:
            hunk.append(_part(stretch, 0, min(size, context)))
        elif size <= 2 * context:
            hunk.append(stretch)
        else:
            yield [*hunk, _part(stretch, 0, context)]
            hunk = [_part(stretch, size - context, size)]
    yield hunk


def _part(stretch: _Stretch, start: int, end: int) -> _Stretch:
    return _Stretch(stretch.same, stretch.old[start:end], stretch.new[start:end])


def _place(first: range, last: range) -> str:
    """Where a hunk is in a text, as a unified diff says it: of no lines, the one before."""
    count = last.stop - first.start
    return f"{first.start + 1 if count else first.start},{count}"


def _marked(sign: str, lines: Sequence[str], places: range) -> Iterator[str]:
    for place in places:
        line = lines[place]
        yield sign + line.removesuffix("\n")
        if not line.endswith("\n"):
            yield _NO_BREAK
