"""What is written can be read by everybody, and what cannot be written is found and named."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.json_text import decode, decode_with_comments, encode, flaw, sound

_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=12,
)


def strict(data: bytes) -> Any:
    """Read as the strictest reader would."""
    data.decode("utf-8")
    value = json.loads(data, parse_constant=pytest.fail)
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


@given(_VALUES)
def test_everything_is_written_so_that_a_strict_reader_takes_it(value: Any) -> None:
    line = encode(value)
    assert line.isascii()
    assert b"\n" not in line
    assert strict(line) == sound(value)


@given(_VALUES)
def test_valid_messages_pass_unchanged_and_repaired_ones_are_valid(value: Any) -> None:
    assert flaw(sound(value)) is None
    if flaw(value) is None:
        assert strict(encode(value)) == value
    else:
        assert repr(sound(value)) != repr(value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [0, {"b": float("nan")}]}, "a.1.b"),
        ({"a": "\ud800"}, "a"),
        ({"a": {"\udfff": 1}}, "a"),
        (float("inf"), ""),
    ],
)
def test_problem_is_reported_with_its_location(value: Any, where: str) -> None:
    found = flaw(value)
    assert found is not None
    assert found[0] == where


def test_nesting_is_limited() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for work in (encode, sound):
        with pytest.raises(ValueError, match="nested"):
            work(deep)
    place, problem = flaw(deep) or ("", "")
    assert place == ".".join("0" * 200)
    assert "nested" in problem
    with pytest.raises(ValueError, match="nested"):
        decode("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1}', {"a": 1}),
        ('\ufeff{"a": [1, 2,], /* x */ "b": "//c", } // end', {"a": [1, 2], "b": "//c"}),
        ('{"a": "/* no */", "b": ",]", "c": "\\"//,}"}', {"a": "/* no */", "b": ",]", "c": '"//,}'}),
        ("[1, // one,\n 2 /* , */ , ]", [1, 2]),
    ],
)
def test_json_of_people_is_read_with_comments_and_last_commas(text: str, value: Any) -> None:
    assert decode_with_comments(text) == value


@pytest.mark.parametrize("text", ["", "{", '{"a": 1,,}', "/* {}", '{"a": "s3cret', "[" * 100_000, "{a: 's3cret'}"])
def test_invalid_json_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - it has no message of ours
        decode_with_comments(text)
    assert "s3cret" not in str(refused.value)


@given(_VALUES)
def test_json_without_comments_is_read_as_ever(value: Any) -> None:
    text = json.dumps(sound(value))
    assert decode_with_comments(text) == json.loads(text)
