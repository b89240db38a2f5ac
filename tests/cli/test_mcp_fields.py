"""What a person types into a form of a server, and what it comes to."""

import re
from typing import Any

import pytest

from claude_code_mcp.cli.mcp.prompts import LEFT_OUT, FieldEntry, InvalidFieldValue, read_entries


def entry(required: bool = False, **schema: Any) -> FieldEntry:
    [found] = read_entries({"properties": {"x": schema}, "required": ["x"] if required else []})
    return found


SIZE: dict[str, Any] = {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}
COLORS: dict[str, Any] = {
    "type": "array",
    "items": {"anyOf": [{"const": "r", "title": "Red, dark"}, {"const": "b", "title": "Blue"}]},
}


@pytest.mark.parametrize(
    ("schema", "line", "value"),
    [
        ({"type": "integer"}, " 7 ", 7),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "boolean"}, "y", True),
        ({"type": "boolean"}, "No", False),
        ({"type": "string"}, " kept as it is ", " kept as it is "),
        ({"type": "string", "format": "date"}, "2026-11-15", "2026-11-15"),
        ({"type": "string", "format": "email"}, "a@b.example", "a@b.example"),
        (SIZE, "2", "l"),
        (SIZE, "large", "l"),
        (SIZE, "La", "l"),
        (SIZE, "s", "s"),
        (COLORS, "1,2", ["r", "b"]),
        (COLORS, "Blue, Red, dark", ["b", "r"]),
        (COLORS, "blue,1", ["b", "r"]),
        ({"type": "string", "enum": ["10", "20", "1"]}, "1", "1"),
        ({"type": "string", "enum": ["a", "b"], "enumNames": ["First", "Second"]}, "second", "b"),
        ({"type": "integer", "default": 3}, "", 3),
        ({"type": "string"}, "", LEFT_OUT),
    ],
)
def test_a_line_is_read_as_the_type_of_the_field(schema: dict[str, Any], line: str, value: Any) -> None:
    found = entry(**schema).value(line)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("schema", "line", "reason"),
    [
        ({"type": "integer"}, "seven", "whole|integer"),
        ({"type": "integer"}, "1.5", "whole|integer"),
        ({"type": "number"}, "nan", "number"),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "10", r"1\D+9"),
        ({"type": "boolean"}, "maybe", r"yes\b.*\bno\b"),
        ({"type": "string", "minLength": 3}, "ab", "3"),
        ({"type": "string", "maxLength": 3}, "abcd", "3"),
        ({"type": "string", "format": "email"}, "nobody", "email"),
        ({"type": "string", "format": "uri"}, "no address", "https?://"),
        ({"type": "string", "format": "date-time"}, "2026-11-15", r"\d\d:\d\d"),
        (SIZE, "3", r"1\D+2.*Small, Large"),
        (SIZE, "huge", "Small, Large"),
        ({"type": "string", "enum": ["10", "20"]}, "1x", "10, 20"),
        (COLORS, "1,green", "Red, dark, Blue"),
        ({**COLORS, "minItems": 2}, "1", "2"),
    ],
)
def test_a_line_that_does_not_fit_is_refused_with_what_would(schema: dict[str, Any], line: str, reason: str) -> None:
    with pytest.raises(InvalidFieldValue, match=reason):
        entry(**schema).value(line)


def test_required_field_is_enforced() -> None:
    with pytest.raises(InvalidFieldValue, match="required"):
        entry(required=True, type="string").value("  ")
    assert entry(required=True, type="string", default="x").value("") == "x"


def test_prompt_describes_the_field() -> None:
    prompt = entry(type="integer", minimum=1, maximum=9, default=5, required=True).prompt
    assert re.fullmatch(r"  x \(.*\b1\D+9\b.*\brequired\b.*\) \[5\]: ", prompt)
    sizes = entry(**{**SIZE, "title": "Size", "description": "Of the shirt", "default": "l"})
    assert sizes.heading.splitlines() == ["  Size: Of the shirt", "    1  Small", "    2  Large"]
    assert sizes.prompt == "  x (1 to 2) [Large]: "
    assert sizes.choices == ["Small", "Large"]
    assert entry(type="boolean", default=True).prompt == "  x (yes or no) [yes]: "


@pytest.mark.parametrize("schema", [None, [], {"properties": 7}, {"properties": {"x": 7}}, {"required": 7}])
def test_a_form_of_another_shape_has_no_fields(schema: Any) -> None:
    assert read_entries(schema) == []


def test_what_steers_a_terminal_is_not_shown() -> None:
    shown = entry(title="\x1b[2JTitle", type="string", enum=["\x1b]0;a\x07b", "c"])
    assert "\x1b" not in shown.heading + shown.prompt
