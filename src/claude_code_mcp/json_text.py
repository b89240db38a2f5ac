"""JSON that every reader takes: no half of a surrogate pair, no NaN or infinity, nothing nested without end. Pure.

Python reads and writes more than JSON allows, and what it lets in through one door must not break the next one. Each
writer of the package goes through here, or has a reason of its own not to.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 200
"""Levels of nesting that all our readers take; pydantic's parser ends here too."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_SURROGATE = re.compile(r"\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f]")
"""Finds every lone surrogate that `json.dumps` has escaped; may also find what is none, which costs only time."""


def sound_text(text: str) -> str:
    """The text with a replacement character for every half of a surrogate pair."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def sound(value: Any, level: int = 0) -> Any:
    """A copy that can be written: halves of surrogate pairs replaced, null for what is no number. ValueError if it is
    nested too deeply."""
    if isinstance(value, str):
        return sound_text(value)
    if value is None or value.__class__ is int or value.__class__ is bool:
        return value  # every message passes here, and the checks below are dearer
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list | tuple | Mapping):
        return value
    if level >= DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(value, dict | Mapping):
        return {sound_text(key) if isinstance(key, str) else key: sound(part, level + 1) for key, part in value.items()}
    return [sound(part, level + 1) for part in value]


def flaw(value: Any, level: int = 0) -> tuple[str, str] | None:
    """Where something is that cannot be written, in dots, and what is wrong with it; None if all of it can be."""
    if not isinstance(value, Mapping | list | tuple):
        wrong = _flaw_of_scalar(value)
        return None if wrong is None else ("", wrong)
    if level >= DEEPEST:
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
        return "contains half of a surrogate pair, which is no character"
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number"
    return None


def encode(value: Any) -> bytes:
    """Compact JSON in plain ASCII, one line. What cannot be written is replaced, as `sound` does; ValueError for what
    is nested too deeply or is no JSON value."""
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
    """The value in a JSON text as `sound` makes it, however it was written. ValueError if there is none."""
    try:
        return sound(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


# -- files that people write -----------------------------------------------------------------------------------------

_STRING = r'"(?:[^"\\]+|\\.)*"?'
_STRING_OR_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|/\*(?:.*?\*/|.*)", re.DOTALL)
_STRING_OR_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def decode_with_comments(text: str) -> Any:
    """Reads JSON as editors write and take it: with comments, commas behind the last item, and a byte order mark.

    Takes time in proportion to the text; raises ValueError, whose message repeats nothing of it.
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
