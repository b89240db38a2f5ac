"""One value of a JSON file is changed, and every other character stays."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.cli.json_edit import remove_value, set_value
from claude_code_mcp.core.json_text import decode_with_comments

COMMENTED = """\
// what Zed has
{
  "theme": "One Dark", // dark
  /* servers */
  "context_servers": {
    "files": { "command": "npx", "args": ["-y", "a, {b}"] }, // a comment, with "quotes"
    // the last word
  },
}
"""


def test_adding_a_member_keeps_comments_and_trailing_commas() -> None:
    changed = set_value(COMMENTED, ["context_servers", "ours"], {"command": "x"})
    assert changed == COMMENTED.replace('"quotes"\n', '"quotes"\n    "ours": {\n      "command": "x"\n    },\n')
    assert decode_with_comments(changed)["context_servers"]["ours"] == {"command": "x"}
    assert set_value(changed, ["context_servers", "ours"], {"command": "x"}) == changed


def test_a_value_is_replaced_in_its_place() -> None:
    changed = set_value(COMMENTED, ["context_servers", "files", "command"], "uvx")
    assert changed == COMMENTED.replace('"npx"', '"uvx"')


def test_a_member_is_removed_with_its_line() -> None:
    text = '{\n  "a": 1, // one\n  "b": 2\n}\n'
    assert remove_value(text, ["a"]) == '{\n  "b": 2\n}\n'
    assert remove_value(text, ["b"]) == '{\n  "a": 1 // one\n}\n'
    assert remove_value(text, ["c"]) == text
    assert remove_value('{"a": 1}', ["a"]) == "{}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "s": {\n    "n": 1\n  }\n}\n'),
        ("{}", '{\n  "s": {\n    "n": 1\n  }\n}'),
        ('{\r\n\t"a": 1\r\n}\r\n', '{\r\n\t"a": 1,\r\n\t"s": {\r\n\t\t"n": 1\r\n\t}\r\n}\r\n'),
        ('{"a": 1}', '{"a": 1, "s": {"n": 1}}'),
        ("{ // nothing yet\n}", '{ // nothing yet\n  "s": {\n    "n": 1\n  }\n}'),
    ],
)
def test_missing_parent_directories_are_created(text: str, expected: str) -> None:
    assert set_value(text, ["s", "n"], 1) == expected


@pytest.mark.parametrize(
    "text", ["[1]", '{"s": 1}', "{", '{"a" 1}', '{"a": 1 "b": 2}', "{'a': 1}", '{"s": {}, "s": {}}']
)
def test_ambiguous_input_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        set_value(text, ["s", "n"], 1)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), VALUES, max_size=4),
    st.sampled_from([None, 1, 2, "\t"]),
    st.booleans(),
    VALUES,
)
def test_any_document_has_the_new_value_and_all_others(
    document: dict[str, Any], indent: int | str | None, trailing: bool, value: Any
) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if trailing and indent is not None:
        text = re.sub(r"([^\s{\[,])\n(\s*[}\]])", r"\1, // kept\n\2", text)
    added = (
        set_value(text, ["new", "name"], value)
        if not isinstance(document.get("new", {}), int | str | list | bool | None)
        else text
    )
    if added is not text:
        expected = {**document, "new": {**document.get("new", {}), "name": value}}
        assert decode_with_comments(added) == expected
        assert added.count("// kept") == text.count("// kept")
        assert decode_with_comments(remove_value(added, ["new"])) == {k: v for k, v in expected.items() if k != "new"}
