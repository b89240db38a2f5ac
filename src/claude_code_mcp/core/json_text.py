"""JSON that every reader accepts: no unpaired surrogates, no NaN or infinity, no unbounded nesting. Pure.

Python reads and writes more than JSON allows, and such input must not break other readers. Every writer in the package
uses this module unless it has a documented reason. `UnescapedText` decodes the escapes of JSON and other notations, for
searching in text.
"""

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from html import unescape
from typing import Any

MAX_DEPTH = 200
"""Levels of nesting that all our readers accept; pydantic's parser has the same limit."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f]")
"""Finds every lone surrogate that `json.dumps` has escaped; false matches only cost time."""


def sound_text(text: str) -> str:
    """The text with a replacement character for every lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def sound(value: Any, level: int = 0) -> Any:
    """A copy that can be written: lone surrogates replaced, null for NaN and infinity. ValueError if it is nested too
    deeply."""
    if isinstance(value, str):
        return sound_text(value)
    if value is None or value.__class__ is int or value.__class__ is bool:
        return value  # every message passes here, and the checks below are dearer
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list | tuple | Mapping):
        return value
    if level >= MAX_DEPTH:
        raise ValueError("nested too deeply")
    if isinstance(value, dict | Mapping):
        return {sound_text(key) if isinstance(key, str) else key: sound(part, level + 1) for key, part in value.items()}
    return [sound(part, level + 1) for part in value]


def flaw(value: Any, level: int = 0) -> tuple[str, str] | None:
    """The dotted path of a value that cannot be written, and the problem; None if everything can be written."""
    if not isinstance(value, Mapping | list | tuple):
        wrong = _flaw_of_scalar(value)
        return None if wrong is None else ("", wrong)
    if level >= MAX_DEPTH:
        return "", "is nested too deeply"
    for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
        wrong = _flaw_of_scalar(key)
        if wrong is not None:
            return "", f"has a name that {wrong}"
        found = flaw(part, level + 1)
        if found is not None:
            return (f"{key}.{found[0]}" if found[0] else str(key)), found[1]
    return None


def _flaw_of_scalar(value: Any) -> str | None:
    if isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None:
        return "contains half of a surrogate pair, which is not a character"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    return None


def encode(value: Any) -> bytes:
    """Compact JSON in plain ASCII, one line. Replaces invalid parts like `sound`; ValueError for a value that is nested
    too deeply or is not a JSON value."""
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        if "\\ud" not in text or _ESCAPED_SURROGATE.search(text) is None:
            return text.encode("ascii")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        pass
    except TypeError as error:
        raise ValueError(str(error)) from None
    return json.dumps(sound(value), separators=(",", ":"), allow_nan=False).encode("ascii")


def decode(text: bytes | str) -> Any:
    """Parse JSON and apply `sound`. ValueError if it is not valid JSON."""
    try:
        return sound(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


# -- files that people write -----------------------------------------------------------------------------------------

_STRING = r'"(?:[^"\\]+|\\.)*"?'
_STRING_OR_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def decode_with_comments(text: str) -> Any:
    """Parse JSON as editors write it: with comments, trailing commas, and a byte order mark.

    Linear time; raises ValueError, whose message repeats nothing of the text.
    """
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text)
    except ValueError:
        plain = _STRING_OR_COMMENT.sub(_blank_comment, text)
        plain = _STRING_OR_LAST_COMMA.sub(lambda found: found[0] if found[0][0] == '"' else " ", plain)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    try:
        return json.loads(plain)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _blank_comment(found: re.Match[str]) -> str:
    """A string as it is; of a comment only its line ends, so that errors name the right line."""
    return found[0] if found[0][0] == '"' else " " + "\n" * found[0].count("\n")


# -- escapes undone ---------------------------------------------------------------------------------------------------


_ESCAPE = re.compile(
    r"""
      \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}   # a character in two halves
    | \\u[0-9a-fA-F]{4} | \\u\{[0-9a-fA-F]{1,6}\} | \\U[0-9a-fA-F]{8}
    | (?:\\x[89a-fA-F][0-9a-fA-F])+ | \\x[0-7][0-9a-fA-F]          # bytes of UTF-8 belong together
    | (?:\\[23][0-7]{2})+ | \\[01][0-7]{2}
    | '\\''  | '"'"'
    | \\[\s\S]
    | (?:%[89a-fA-F][0-9a-fA-F])+ | %[0-7][0-9a-fA-F]
    | &(?:\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z]{2,8});
    """,
    re.VERBOSE,
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "e": "\x1b", "E": "\x1b"}
_MARKS = ("\\", "%", "&", "'")
_MAX_LEVELS = 6
"""How deeply nested escapes are decoded: JSON in JSON in a URL in HTML."""


class UnescapedText:
    r"""The text with all escapes undone, in whatever mixture and one inside the other: those of JSON and JavaScript
    (`\/`, `\"`, `\u0026`, `\u{26}`), of Python and C (`\x26`, `\046`, `\'`), of shells (`\&`, `'\''`, `'"'"'`, `$'…'`),
    of URLs (`%2F`, `%2f`, `%252F`) and of HTML (`&amp;`, `&#38;`, `&#x26;`). Time and memory are linear in its
    length."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._levels: list[_Level] = []
        for _ in range(_MAX_LEVELS):
            level = _Level(self.text) if any(mark in self.text for mark in _MARKS) else None
            if level is None or level.text == self.text:
                break
            self._levels.append(level)
            self.text = level.text

    @property
    def is_changed(self) -> bool:
        """Whether there were any."""
        return bool(self._levels)

    def original(self, begin: int, end: int) -> tuple[int, int]:
        """Where a part of the text (not an empty one) was in the original: an escape belongs to it as a whole."""
        for level in reversed(self._levels):
            begin, end = level.original(begin, end)
        return begin, end


def unescaped(text: str) -> str:
    """The text with all escapes undone."""
    return UnescapedText(text).text


class _Level:
    """One layer of escapes, undone."""

    def __init__(self, text: str) -> None:
        parts: list[str] = []
        self._starts: list[int] = []
        """Where each part begins, in the text without escapes."""
        self._origins: list[tuple[int, int, bool]] = []
        """The begin and the end of each part in the text before, and whether it is as it was there."""
        reached = length = 0
        for found in _ESCAPE.finditer(text):
            for part, begin, end, plain in (
                (text[reached : found.start()], reached, found.start(), True),
                (_unescape(found[0]), found.start(), found.end(), False),
            ):
                if part:
                    parts.append(part)
                    self._starts.append(length)
                    self._origins.append((begin, end, plain))
                    length += len(part)
            reached = found.end()
        if reached < len(text):
            parts.append(text[reached:])
            self._starts.append(length)
            self._origins.append((reached, len(text), True))
        self.text = "".join(parts)

    def original(self, begin: int, end: int) -> tuple[int, int]:
        first, last = bisect_right(self._starts, begin) - 1, bisect_right(self._starts, end - 1) - 1
        began, _, plain = self._origins[first]
        start = began + (begin - self._starts[first] if plain else 0)
        began, ended, plain = self._origins[last]
        return start, began + (end - self._starts[last]) if plain else ended


def _unescape(escape: str) -> str:
    kind = escape[:2]
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "replace")
    if escape[0] == "&":
        return unescape(escape)
    if kind in ("\\u", "\\U") and len(escape) > 2:
        return _of_number(escape)
    if kind == "\\x" and len(escape) > 2:
        return _of_bytes(bytes.fromhex(escape.replace("\\x", "")))
    if kind[1:].isdigit() and len(escape) > 2:
        return _of_bytes(bytes(int(digits, 8) for digits in escape.split("\\")[1:]))
    return "'" if escape[0] == "'" else _NAMED.get(escape[1], escape[1])


def _of_number(escape: str) -> str:
    if escape.count("\\u") == 2:
        high, low = (int(half, 16) for half in escape.split("\\u")[1:])
        return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
    number = int(escape.strip("\\uU{}"), 16)
    return chr(number) if number < 0x110000 else escape[1:]


def _of_bytes(data: bytes) -> str:
    """Decodes as UTF-8 bytes, as in the representation of bytes; otherwise as characters, as in the representation of
    text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
