"""Text that is shortened, paged and made visible: nothing is lost without a word.

Times as text: one format everywhere, whatever number they come from.
"""

import json
import math
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.config import ALL_TOOLSETS, load_settings
from claude_code_mcp.core.model.text import (
    as_json,
    clip,
    clip_line,
    cut,
    cut_data,
    gaps,
    has_mark,
    hidden_in,
    iso,
    one_line,
    page_of,
    size_of,
    visible,
)
from claude_code_mcp.server.tools.code import SessionInfo
from claude_code_mcp.server.tools.tool import Tool
from claude_code_mcp.server.tools.toolsets import tools_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def test_a_cut_text_says_how_much_is_missing_and_where_it_is() -> None:
    assert cut("x" * 10, 10) == "x" * 10
    assert re.fullmatch(r"x{10}\[\[claude-code-mcp .*\b20\b.*\b30\b.*\]\]", cut("x" * 30, 10))
    assert cut("x" * 30, 10, "result").endswith('; part "result" has all of it]]')


@given(st.text(max_size=300), st.integers(1, 40))
def test_the_pages_of_a_text_are_the_text(text: str, size: int) -> None:
    pages, offset = [], 0
    while True:
        page = page_of(text, offset, size)
        assert len(page.text) <= size
        assert (page.offset, page.total) == (offset, len(text))
        pages.append(page.text)
        if page.next_offset is None:
            break
        assert page.next_offset > offset
        offset = page.next_offset
    assert "".join(pages) == text


def test_a_page_ends_behind_whitespace_where_there_is_some_near() -> None:
    words = "one two three four " * 20
    assert page_of(words, 0, 10).text == "one two "
    assert page_of("x" * 100, 0, 10).text == "x" * 10
    assert page_of("short", 99, 10) == ("", 5, None, 5)


@pytest.mark.parametrize(
    "value",
    [
        cut("x" * 30, 10),
        {"a": [1, {"b": "before " + cut("x" * 30, 10) + " behind"}]},
        {cut("key" * 30, 10): 1},
        [[cut("x" * 30, 10)]],
        cut_data({"a": list(range(1000))}, 1000, 100),
        cut_data({f"{number}": 1 for number in range(1000)}, 10_000, 100),
        cut_data([[["deep"] * 10] * 100] * 100, 100, 100),
    ],
)
def test_a_mark_is_found_wherever_it_is(value: Any) -> None:
    assert has_mark(value)


@pytest.mark.parametrize("value", [None, 1, "x", "[[claude-code-mcp cut", {"a": ["cut 3 of 4"]}, "[[cut 3 of 4]]"])
def test_other_text_is_not_mistaken_for_a_mark(value: Any) -> None:
    assert not has_mark(value)


@given(JSON)
def test_data_that_fits_is_not_cut(value: Any) -> None:
    assert cut_data(value, 100_000, 100_000) == value
    assert not has_mark(value)


@given(JSON, st.integers(10, 200))
def test_data_is_either_whole_or_marked(value: Any, budget: int) -> None:
    short = cut_data(value, budget, 20)
    assert short == value or has_mark(short)


def test_data_of_any_shape_is_cut_to_about_its_budget() -> None:
    deep: Any = "x" * 500
    for _ in range(400):
        deep = [deep]
    for value in ({"a": "x" * 10**6, "b": "kept"}, [["x" * 90] * 900] * 900, {"a" * 10**6: 1}, {"a": deep}):
        assert len(json.dumps(cut_data(value, 5000, 1000, "q"))) < 50_000
    assert cut_data({"a": "x" * 10**6, "b": "kept"}, 5000, 1000)["b"] == "kept"


@pytest.mark.parametrize(
    "odd",
    ["\x00", "\x1b", "\r", "\x7f", "\x9b", "\u00ad", "\u200b", "\u200d", "\u202e", "\u2066", "\u2028", "\ufeff",
     "\ud800", "\u3164", "\u2800", "\U000e0041"],
)  # fmt: skip
def test_invisible_characters_are_escaped_as_in_json(odd: str) -> None:
    shown = visible(f"a{odd}b")
    assert shown.isprintable()
    assert json.loads(f'"{shown}"') == f"a{odd}b"
    assert hidden_in(f"a{odd}b") == 1
    assert as_json([f"a{odd}b"]).isprintable()


@pytest.mark.parametrize(
    "text", ["👩‍💻", "❤️‍🔥", "☀️", "می‌خواهم", "क्‍ष", "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f"]
)
def test_joiners_that_belong_to_a_character_are_left_alone(text: str) -> None:
    assert visible(text) == text
    assert hidden_in(text) == 0


def test_ordinary_text_is_left_alone() -> None:
    ordinary = "Grüße, 世界!\n\tdef f(): return '\\u202e'\n"
    assert visible(ordinary) == ordinary
    assert visible("one\r\ntwo") == "one\ntwo"
    assert hidden_in(ordinary) == 0


@given(JSON)
def test_json_stays_what_it_was(value: Any) -> None:
    assert json.loads(as_json(value)) == value
    as_json(value).encode()


@given(st.text(max_size=1000), st.integers(40, 200))
def test_line_breaks_are_escaped(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest
    assert line.isprintable()


@given(st.text(max_size=100), st.integers(1, 40))
def test_clipped_text_keeps_to_its_length_and_says_when_it_is_not_all(text: str, longest: int) -> None:
    clipped = clip(text, longest)
    assert len(clipped) <= longest
    assert clipped == text or clipped.endswith("…")
    assert len(clip_line(text, longest)) <= longest


def test_a_clipped_line_has_no_gaps() -> None:
    assert clip_line(" a\n\n b\tc ", 10) == "a b c"
    assert clip_line("one two three", 8) == "one two…"


def test_padding_is_reported() -> None:
    lines, spaces = gaps("a" + "\n" * 50 + "b" + " " * 500 + "c")
    assert (lines.split()[0], spaces.split()[0]) == ("49", "500")
    assert list(gaps("a\n\n\nb    c")) == []


TOOLS = tools_of(load_settings({}, toolsets=ALL_TOOLSETS, allow_disk_resume=True))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1794760274.25, "2026-11-15T16:31:14.250Z"),
        (1e300, "9999-12-31T23:59:59.999Z"),
        (math.nan, "1970-01-01T00:00:00.000Z"),
        (-1e300, "1970-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_is_iso_8601_in_utc(seconds: float, text: str) -> None:
    assert iso(seconds) == text


def test_it_reads_back_as_the_same_moment() -> None:
    assert datetime.fromisoformat(iso(1794760274.25)) == datetime.fromtimestamp(1794760274.25, UTC)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KB"),
        (3_565_158, "3.4 MB"),
        ((1 << 20) - 6, "1 MB"),
        (74_422 << 20, "72.7 GB"),
        (5 << 40, "5 TB"),
        (5000 << 40, "5,000 TB"),
    ],
)
def test_sizes_are_said_as_people_say_them(count: int, words: str) -> None:
    assert size_of(count) == words


def times(schema: Any, path: str = "") -> dict[str, Any]:
    """Every property that is a moment by its name, with its type."""
    if not isinstance(schema, dict):
        return {}
    found = {}
    for name, about in (schema.get("properties") or {}).items():
        if name.endswith("At") or name in ("timestamp", "at", "time"):
            found[f"{path}.{name}"] = about.get("type")
        found |= times(about, f"{path}.{name}")
    return found | times(schema.get("items"), f"{path}[]")


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_no_result_has_a_time_that_is_a_number(tool: Tool[Any]) -> None:
    assert set(times(tool.listing().output_schema).values()) <= {"string"}


def test_the_guard_sees_times() -> None:
    expected = (".pendingInputs[].expiresAt", ".limit.resetsAt", ".limit.continuesAt")
    assert times(TOOLS["claude_get_status"].listing().output_schema) == dict.fromkeys(expected, "string")
    assert set(times(SessionInfo.model_json_schema()).values()) == {"string"}
