r"""A text with its escapes undone.

What is undone, in whatever mixture and one inside the other: escapes of JSON and JavaScript (`\/`, `\"`, `\u0026`,
`\u{26}`), of Python and C (`\x26`, `\046`, `\'`), of shells (`\&`, `'\''`, `'"'"'`, `$'…'`), of URLs (`%2F`, `%2f`,
`%252F`) and of HTML (`&amp;`, `&#38;`, `&#x26;`). Time and memory are linear in the length of the text.
"""

import re
from bisect import bisect_right
from html import unescape

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
_MOST_LEVELS = 6
"""So deep escapes are looked through: JSON in JSON in a URL in HTML."""


class UnescapedText:
    """The text with all escapes undone."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._levels: list[_Level] = []
        for _ in range(_MOST_LEVELS):
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
                (_undone(found[0]), found.start(), found.end(), False),
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


def _undone(escape: str) -> str:
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
    """Bytes of UTF-8, as in the representation of bytes; else characters, as in that of a text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")
