"""Changes one value in the text of a JSON file without changing any other character. Pure.

Comments, trailing commas, order, indentation and line ends stay, because people edit these files by hand. Text that
cannot be parsed with certainty is refused with ValueError. Takes time linear in the text.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_BLANK = re.compile(r"(?:[ \t\r\n\ufeff]++|//[^\r\n]*+|/\*.*?\*/)*+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null")
_REST_OF_LINE = re.compile(r"[ \t]*(?:/\*[^\r\n]*?\*/[ \t]*)?(?://[^\r\n]*)?")
_MAX_DEPTH = 200


@dataclass(slots=True)
class Value:
    """The position of a value; `members` only for an object."""

    start: int
    end: int
    members: "dict[str, Member] | None" = None


@dataclass(slots=True)
class Member:
    start: int
    value: Value
    comma: int | None = None
    """The position of the comma after it."""


def set_value(text: str, path: Sequence[str], value: Any) -> str:
    """The text with the value at the path: replaces the old value, or is added after the last member of its object.
    Missing objects on the path are created. ValueError if the text is not JSON with comments, or if a value on the path
    is not an object."""
    if not text.strip("\ufeff \t\r\n"):
        for name in reversed(path):
            value = {name: value}
        return text + json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    place, missing = _find(parse(text), path)
    for name in reversed(missing[1:]):
        value = {name: value}
    unit, newline = _indentation(text), "\r\n" if "\r\n" in text else "\n"
    # The members of an object stand one step further in than the line that the object begins in.
    if not missing:
        return text[: place.start] + _dumped(value, unit, _level(text, place.start), newline) + text[place.end :]
    member = f"{json.dumps(missing[0], ensure_ascii=False)}: "
    inner = _level(text, place.start) + unit
    return _insert(text, place, member + _dumped(value, unit, inner, newline), inner, newline)


def remove_value(text: str, path: Sequence[str]) -> str:
    """The text without the member at the path; unchanged if there is none."""
    *parents, name = path
    place, missing = _find(parse(text), parents)
    if missing or not place.members or name not in place.members:
        return text
    members = list(place.members.values())
    at = list(place.members).index(name)
    member = members[at]
    if member.comma is not None:
        start = _line_start(text, member.start)
        end = member.comma + 1
        rest = _REST_OF_LINE.match(text, end)
        assert rest is not None
        return text[:start] + text[rest.end() :]
    if at == 0:  # comments above it stay
        return text[: max(place.start + 1, _line_start(text, member.start))] + text[member.value.end :]
    before = members[at - 1]
    assert before.comma is not None
    kept = text[before.comma + 1 : _line_start(text, member.start)]
    return text[: before.comma] + kept + text[member.value.end :]


def is_empty(text: str, path: Sequence[str]) -> bool:
    """Whether the object at the path has neither members nor comments. False if it is missing or not an object."""
    place, missing = _find(parse(text), path)
    return not missing and place.members == {} and not text[place.start + 1 : place.end - 1].strip()


def _line_start(text: str, at: int) -> int:
    """The start of the blanks before a member, including the line break before them."""
    start = at
    while start and text[start - 1] in " \t":
        start -= 1
    if start and text[start - 1] == "\n":
        start -= 2 if text[max(0, start - 2) : start] == "\r\n" else 1
    return start


def _insert(text: str, place: Value, member: str, inner: str, newline: str) -> str:
    members = list((place.members or {}).values())
    if not members:
        outer = _level(text, place.start)
        # What stands in an empty object can only be comments: they stay before the first member.
        kept = text[place.start + 1 : place.end - 1].rstrip()
        return f"{text[: place.start + 1]}{kept}{newline}{inner}{member}{newline}{outer}{text[place.end - 1 :]}"
    last = members[-1]
    if "\n" not in text[place.start : place.end]:
        # An object in one line stays in one line.
        compact = json.dumps(json.loads("{" + member + "}"), ensure_ascii=False)[1:-1]
        return f"{text[: last.value.end]}, {compact}{text[last.value.end :]}"
    after = last.value.end if last.comma is None else last.comma + 1
    rest = _REST_OF_LINE.match(text, after)
    assert rest is not None
    # A comment on the line of the last member is about that one, and stays beside it.
    comma = "," if last.comma is None else ""
    trailing = "," if last.comma is not None else ""
    head = f"{text[: last.value.end]}{comma}{text[last.value.end : rest.end()]}"
    following = text[rest.end() :]
    closing = "" if following[:1] in "\r\n" else f"{newline}{_level(text, place.start)}"
    return f"{head}{newline}{inner}{member}{trailing}{closing}{following.lstrip(' ') if closing else following}"


def _dumped(value: Any, unit: str, level: str, newline: str) -> str:
    return json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"{newline}{level}")


def _indentation(text: str) -> str:
    """One step of the file's indentation."""
    found = re.search(r"\n([ \t]+)\S", text)
    return found[1] if found is not None else "  "


def _level(text: str, at: int) -> str:
    """The indentation of the line that contains this position."""
    line = text.rfind("\n", 0, at) + 1
    found = re.match(r"[ \t]*", text[line:at])
    return found[0] if found is not None else ""


def _find(root: Value, path: Sequence[str]) -> tuple[Value, list[str]]:
    """The value at the path, or the last existing object on the path and the missing names."""
    place = root
    for number, name in enumerate(path):
        if place.members is None:
            raise ValueError(f"{'.'.join(path[:number]) or 'the file'} is not an object")
        if name not in place.members:
            return place, list(path[number:])
        place = place.members[name].value
    return place, []


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(text: str) -> Value:
    """Parse a text into positions; ValueError if it is not JSON, apart from comments and trailing commas."""
    value, at = _value(text, _skip(text, 0), 0)
    if _skip(text, at) != len(text):
        raise ValueError(f"there is text after the end, at character {at}")
    return value


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found is not None else at


def _value(text: str, at: int, depth: int) -> tuple[Value, int]:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    first = text[at : at + 1]
    if first == "{":
        return _object(text, at, depth)
    if first == "[":
        return _array(text, at, depth)
    found = (_STRING if first == '"' else _SCALAR).match(text, at)
    if found is None:
        raise ValueError(f"no value begins at character {at}")
    json.loads(found[0])
    return Value(at, found.end()), found.end()


def _object(text: str, at: int, depth: int) -> tuple[Value, int]:
    value = Value(at, at, {})
    assert value.members is not None
    last: Member | None = None
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        if last is not None and last.comma is None:
            raise ValueError(f"a comma is missing before character {at}")
        found = _STRING.match(text, at)
        if found is None:
            raise ValueError(f"a name must begin at character {at}")
        name = json.loads(found[0])
        if name in value.members:
            raise ValueError(f"{name!r} appears twice")
        colon = _skip(text, found.end())
        if text[colon : colon + 1] != ":":
            raise ValueError(f"a colon is missing at character {colon}")
        inner, end = _value(text, _skip(text, colon + 1), depth + 1)
        last = value.members[name] = Member(at, inner)
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            last.comma = at
            at = _skip(text, at + 1)
    value.end = at + 1
    return value, at + 1


def _array(text: str, at: int, depth: int) -> tuple[Value, int]:
    start, at = at, _skip(text, at + 1)
    while text[at : at + 1] != "]":
        _, at = _value(text, at, depth + 1)
        at = _skip(text, at)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise ValueError(f"a comma is missing before character {at}")
    return Value(start, at + 1), at + 1
