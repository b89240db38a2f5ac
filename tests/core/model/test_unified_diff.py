"""Diffs by lines: always true, small where they can be, within a budget."""

import re

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.unified_diff import unified_diff

_HUNK = re.compile(r"@@ -(\d+),(\d+) \+(\d+),(\d+) @@")
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "", "one", "two"]), max_size=40).map("\n".join)


def applied(before: str, diff: str) -> str:
    """What a diff makes of a text; every line that it names must be where it says."""
    old, result, at = before.split("\n"), [], 0
    ends = {"old": before.endswith("\n") or not before, "new": True}
    sign = ""
    for line in diff.split("\n") if diff else []:
        hunk = _HUNK.fullmatch(line)
        if hunk is not None:
            start = int(hunk[1]) - (int(hunk[2]) > 0)
            result += old[at:start]
            at = start
            assert len(result) == int(hunk[3]) - (int(hunk[4]) > 0)
        elif line.startswith("\\"):
            ends["new"] = ends["new"] and sign not in ("+", " ")
        elif line.startswith("+"):
            result.append(line[1:])
            sign = "+"
        else:
            assert old[at] == line[1:]
            at += 1
            sign = line[0]
            if sign == " ":
                result.append(line[1:])
    rest = old[at:]
    text = "\n".join(result + rest)
    return text + "\n" if rest in ([], [""]) and result and ends["new"] and not text.endswith("\n") else text


@given(TEXTS, TEXTS)
def test_a_diff_applied_to_the_first_text_is_the_second(before: str, after: str) -> None:
    before, after = before + "\n", after + "\n"
    assert applied(before, unified_diff(before, after)) == after


def test_one_changed_line_is_one_line_that_goes_and_one_that_comes_with_its_number() -> None:
    lines = [f"line {number}" for number in range(1, 61)]
    before = "\n".join(lines) + "\n"
    lines[29] = "another"
    diff = unified_diff(before, "\n".join(lines) + "\n").split("\n")
    assert diff[0] == "@@ -1,60 +1,60 @@"  # a short file is there whole
    assert [line for line in diff[1:] if line[0] != " "] == ["-line 30", "+another"]


def test_long_file_shows_the_lines_around_each_change() -> None:
    lines = [f"line {number}" for number in range(1, 1001)]
    before = "\n".join(lines)
    lines[99], lines[899] = "x", "y"
    hunks = [line for line in unified_diff(before, "\n".join(lines)).split("\n") if line.startswith("@@")]
    assert hunks == ["@@ -92,17 +92,17 @@", "@@ -892,17 +892,17 @@"]


def test_a_missing_line_break_at_the_end_is_a_change() -> None:
    assert unified_diff("a\nb\n", "a\nb").split("\n")[1:] == [" a", "-b", "+b", "\\ No newline at end of file"]
    assert unified_diff("a", "a") == ""


def test_texts_without_anything_in_common_are_not_searched_for_long() -> None:
    """Beyond the budget all lines go and all come; they would be compared half a billion times otherwise."""
    before, after = "a\nb\n" * 15_000, "c\nd\n" * 15_000
    diff = unified_diff(before, after).split("\n")
    assert [line[0] for line in diff[1:]] == ["-"] * 30_000 + ["+"] * 30_000
