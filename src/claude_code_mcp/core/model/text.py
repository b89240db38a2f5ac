"""Text for people and programs: shortening, paging, single lines, visible characters. Pure.

The only place that shortens text, in three ways: `cut` adds a mark with the number of missing characters, `clip` and
`clip_line` end in an ellipsis within a fixed length, `one_line` keeps both ends. All functions are linear in the length
of the text. Redact a text before you shorten or page it: half a secret is no longer recognized.
"""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

_CUT_MARK = "[[claude-code-mcp cut {left_out} of {total} characters{rest}]]"
_IS_CUT_MARK = re.compile(r"\[\[claude-code-mcp cut \d")
"""The beginning of every mark. It is documented: callers may search for it."""
_EMOJI = "[\u00a9\u00ae\u203c\u2049\u2122\u2139\u2190-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_JOINING = "[\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u17b3\u17b6-\u180a\u1820-\u18af]"
"""Letters of scripts that use joiners."""
_BELONGS = "|".join(
    (
        f"(?:(?<={_EMOJI})|(?<={_EMOJI}\ufe0f))\u200d(?={_EMOJI})",
        f"(?<={_JOINING})[\u200c\u200d](?={_JOINING})",
        "(?<=\U0001f3f4)[\U000e0020-\U000e007e]{1,8}\U000e007f",
    )
)
"""Places where an invisible character belongs to a visible one, as in emoji; the same as in `web/src/words.ts`."""
_PERHAPS_INVISIBLE = re.compile(f"(?P<belongs>{_BELONGS})|[^\\x20-\\x7e\\n\\t]")
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks by category that are nevertheless invisible."""
_GAP = re.compile(r"[ \t]{9,}|[ \t]*\n[ \t\n]*")
_PAGE_LOOK_BACK = 1000
"""How far before the end of a page to look for whitespace."""
_MAX_DEPTH = 100
_MAX_ITEMS = 200
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# -- shortening -------------------------------------------------------------------------------------------------


def cut(text: str, longest: int, part: str | None = None) -> str:
    """The first `longest` characters of a text that is too long, followed by a mark; `part` is the name by which the
    whole can be requested. The mark is not counted."""
    return text if len(text) <= longest else text[:longest] + mark(len(text) - longest, len(text), part)


def mark(left_out: int, total: int, part: str | None = None) -> str:
    """The mark for omitted characters."""
    return _CUT_MARK.format(left_out=left_out, total=total, rest=f'; part "{part}" has all of it' if part else "")


def has_mark(value: Any) -> bool:
    """Whether a JSON value has a cut mark in its strings, keys or nested values."""
    return any(isinstance(part, str) and _IS_CUT_MARK.search(part) for part in json_parts(value))


def json_parts(value: Any) -> Iterator[Any]:
    """Every part of a JSON value: itself, keys and nested values, in no particular order, at any depth."""
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
    """At most `longest` characters; a shortened text ends in `ending`."""
    return text if len(text) <= longest else text[: longest - len(ending)].rstrip() + ending


def sharing_line(shares: Iterable[Mapping[str, str]]) -> str:
    """The people that a session is shared with, and their access, as one line. `shared` is as in reports (`with`,
    `access`)."""
    return ", ".join(f"{share['with']} ({share['access']})" for share in shares)


def clip_line(text: str, longest: int) -> str:
    """The text on one line, with single spaces, clipped. Reads only as much of a long text as needed."""
    return clip(" ".join(text[: 20 * longest].split()), longest)


def cut_data(value: Any, budget: int, longest: int, part: str | None = None) -> Any:
    """A JSON value of the same shape with at most about `budget` characters of text, none longer than `longest`. A mark
    replaces what is missing: at the end of a string, as the last item of a list, as the last key."""
    return _Cutter(budget, longest, part).value(value, 0)


class _Cutter:
    """Walks a JSON value depth first, with a common budget for all strings."""

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
        if depth > _MAX_DEPTH:
            return _items_mark(len(value), self._part)
        return self._object(value, depth) if isinstance(value, Mapping) else self._list(value, depth)

    def _text(self, text: str) -> str:
        room = max(0, min(self._longest, self._left))
        self._left -= min(len(text), room) + 8
        return cut(text, room, self._part)

    def _object(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for number, (key, item) in enumerate(value.items()):
            if number >= _MAX_ITEMS or self._left <= 0:
                kept[_items_mark(len(value) - number, self._part)] = None
                break
            kept[self._text(str(key))] = self.value(item, depth + 1)
        return kept

    def _list(self, value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
        kept: list[Any] = []
        for number, item in enumerate(value):
            if number >= _MAX_ITEMS or self._left <= 0:
                kept.append(_items_mark(len(value) - number, self._part))
                break
            kept.append(self.value(item, depth + 1))
        return kept


def _items_mark(count: int, part: str | None) -> str:
    rest = f'; part "{part}" has all of them' if part else ""
    return f"[[claude-code-mcp cut {count} more entries{rest}]]"


# -- pages ------------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """A page of a long text. The pages in order are the text."""

    text: str
    offset: int
    next_offset: int | None
    """None on the last page."""
    total: int


def page_of(text: str, offset: int, size: int) -> Page:
    """At most `size` characters from `offset` on. Ends at nearby whitespace if possible, so that no word that a
    redactor looks for is split."""
    offset = min(offset, len(text))
    end = offset + size
    if end >= len(text):
        return Page(text[offset:], offset, None, len(text))
    near = text[max(offset + size // 2, end - _PAGE_LOOK_BACK) : end]
    end -= next((torn for torn, character in enumerate(reversed(near)) if character.isspace()), 0)
    return Page(text[offset:end], offset, end, len(text))


# -- nothing invisible ------------------------------------------------------------------------------------------


def visible(text: str) -> str:
    """The text with everything escaped that is invisible or controls a screen: control characters, direction marks,
    zero-width characters, lone surrogates. Line breaks and tabs stay, and so do joiners inside emoji and words that
    need them; CR LF is one line break. The escapes are those of JSON, so JSON remains valid."""
    return _PERHAPS_INVISIBLE.sub(_escape, text.replace("\r\n", "\n"))


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    if found["belongs"] is not None:
        return character
    return character if character.isprintable() and character not in _BLANK_LETTERS else json.dumps(character)[1:-1]


def hidden_in(text: str) -> int:
    """The number of characters that `visible` escapes."""
    return sum(_escape(found) != found[0] for found in _PERHAPS_INVISIBLE.finditer(text.replace("\r\n", "\n")))


def as_json(value: Any) -> str:
    """JSON in which everything is visible and which can be encoded as UTF-8."""
    return visible(json.dumps(value, ensure_ascii=False, default=str))


def one_line(text: str, longest: int) -> str:
    """The text on one line: line breaks as ⏎, long gaps replaced by their length, and a long text shortened in the
    middle. Everything omitted is mentioned."""
    if len(text) > 4 * longest:  # the ends decide; the middle is only counted
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
    """Describes each long run of empty lines or spaces, behind which text may be out of sight."""
    for found in _GAP.finditer(text):
        empty = found[0].count("\n") - 1
        if empty >= 20:
            yield f"{empty} empty lines in a row"
        elif max(map(len, found[0].split("\n"))) >= 100:
            yield f"{len(found[0])} spaces in a row"


# -- numbers and times ------------------------------------------------------------------------------------------

_SIZE_UNITS = ("B", "KB", "MB", "GB", "TB")
_SIZE_STEP = 1024


def count_of(number: float, noun: str, form: str = ",") -> str:
    """`1 line`, `2,000 lines`; `form` is how the number is formatted."""
    return f"{number:{form}} {noun}" if number == 1 else f"{number:{form}} {noun}s"


def size_of(count: float) -> str:
    """A number of bytes, human-readable: `512 B`, `3.4 MB`, `72.7 GB`. Units are powers of 1024."""
    for unit in _SIZE_UNITS[:-1]:
        # Decided by the rounded count: 1,048,570 bytes are 1 MB, not 1024 KB.
        if round(count, 1) < _SIZE_STEP:
            return f"{count:.1f}".removesuffix(".0") + f" {unit}"
        count /= _SIZE_STEP
    return f"{count:,.1f}".removesuffix(".0") + f" {_SIZE_UNITS[-1]}"


def iso(seconds: float) -> str:
    """A Unix time as text, such as `2026-11-15T16:31:14.000Z`, limited to the calendar's range."""
    if 0 <= seconds < 1 << 32:  # also false for NaN
        whole = int(seconds)
        return f"{_whole_second(whole)}.{int((seconds - whole) * 1000):03d}Z"
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except (OverflowError, ValueError):  # a file from elsewhere can contain any number, or NaN
        moment = datetime.max.replace(tzinfo=UTC) if seconds > 0 else _EPOCH
    return f"{moment.isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


@lru_cache(maxsize=16)
def _whole_second(seconds: int) -> str:
    """Cached, because thousands of messages may arrive per second."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat().removesuffix("+00:00")


def age(timestamp: str, now: float) -> str:
    """How long before `now` (Unix seconds) an ISO time was: `5m`."""
    try:
        seconds = now - datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return "-"
    for unit, letter in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= unit:
            return f"{seconds // unit:.0f}{letter}"
    return f"{max(0.0, seconds):.0f}s"


_SOON = 20 * 3600.0
"""Times within this many seconds are shown without a date."""


def local_time(timestamp: str | None, now: float) -> str:
    """An ISO time in local time: `17:00`, or `Tue 24 Nov 17:00` if it could be another day."""
    try:
        moment = datetime.fromisoformat(timestamp or "").astimezone()
    except (ValueError, OverflowError):
        return "an unknown time"
    is_today = moment.date() == datetime.fromtimestamp(now).astimezone().date()
    is_soon = 0 <= moment.timestamp() - now < _SOON
    return moment.strftime("%H:%M" if is_today or is_soon else "%a %d %b %H:%M")


def csv_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as CSV (RFC 4180) with a header row. A text that a spreadsheet would treat as a formula gets a leading
    apostrophe, because others choose the names of projects and people."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    return "".join(",".join(map(_quoted, line)) + "\r\n" for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _quoted(text: str) -> str:
    doubled = text.replace('"', '""')
    return f'"{doubled}"' if any(letter in text for letter in ',"\r\n') else text


def base64url(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
