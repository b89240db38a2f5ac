"""How a tool call reads in one line."""

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.questions.presentation import describe
from tests.support.tables import every_row

Input = dict[str, Any]


def ask(*questions: str) -> Input:
    return {"questions": [{"question": question} for question in questions]}


@every_row(
    ("tool", "tool_input", "line"),
    [
        ("Bash", {"command": "git push"}, "Run: git push"),
        ("Bash", {"command": "make\n  test", "run_in_background": True}, "Run: make ⏎ test (in the background)"),
        ("Bash", {}, "Run: ?"),
        ("PowerShell", {"command": "dir"}, "Run: dir"),
        ("Write", {"file_path": "a.py", "content": "one\ntwo\n"}, "Write a.py: 2 lines"),
        ("Write", {"file_path": "a.py", "content": ""}, "Write a.py: 0 lines"),
        ("Read", {"file_path": "a.py"}, "Read a.py"),
        ("NotebookEdit", {"notebook_path": "n.ipynb"}, "Edit notebook n.ipynb"),
        ("Glob", {"pattern": "*.py"}, "Find files: *.py"),
        ("Grep", {"pattern": "TODO"}, "Search for: TODO"),
        ("WebFetch", {"url": "https://example.org", "prompt": "sum up"}, "Fetch https://example.org"),
        ("WebSearch", {"query": "weather"}, "Search the web: weather"),
        ("Agent", {"description": "look around", "prompt": "…"}, "Start agent: look around"),
        ("Task", {"prompt": "look"}, "Start agent: look"),
        ("EnterPlanMode", {}, "Enter plan mode"),
        ("ExitPlanMode", {"plan": "\n# The plan\n1. do it"}, "Plan ready for review: The plan"),
        ("ExitPlanMode", {}, "Plan ready for review"),
        ("AskUserQuestion", ask("Which?"), "Question: Which?"),
        ("AskUserQuestion", ask("Which?", "When?"), "Question: Which? / When?"),
        ("AskUserQuestion", {"questions": "nonsense"}, "Claude has a question"),
        ("AskUserQuestion", {"questions": [1, None]}, "Claude has a question"),
        ("mcp__calc__add", {"a": 1, "b": [2]}, "Use add of calc: a=1, b=[2]"),
        ("mcp__calc__add", {}, "Use add of calc"),
        ("mcp__calc__add__all", {}, "Use add__all of calc"),
        ("mcp__calc", {}, "Use mcp__calc"),
        ("my_mcp__calc__add", {}, "Use my_mcp__calc__add"),
        ("Sing", {"song": "ü"}, "Use Sing: song=ü"),
    ],
)
def test_call_description(tool: str, tool_input: Input, line: str) -> None:
    assert describe(tool, tool_input) == line


@every_row(
    ("path", "cwd", "description"),
    [
        ("/srv/app/src/a.py", "/srv/app", "src/a.py"),
        ("/srv/app/src/a.py", "/srv/app/", "src/a.py"),
        ("/srv/application/a.py", "/srv/app", "/srv/application/a.py"),
        ("/etc/passwd", "/srv/app", "/etc/passwd"),
        ("/srv/app/../../etc/passwd", "/srv/app", "/srv/app/../../etc/passwd"),
        ("/srv/app/a.py", "", "/srv/app/a.py"),
    ],
)
def test_files_of_the_session_are_named_from_its_directory(path: str, cwd: str, description: str) -> None:
    assert describe("Read", {"file_path": path}, cwd) == f"Read {description}"


@every_row(
    ("old", "new", "description"),
    [
        ("a", "b", "1 line changed"),
        ("a\nb\nc", "a\nX\nc", "1 line changed"),
        ("a\nb\nc", "new\na\nb\nc", "1 line changed"),
        ("a\nb\nc", "a\nb\nc\nnew", "1 line changed"),
        ("a\nb\nc\nd", "a\nd", "2 lines changed"),
        ("a\nb\nc", "x\ny\nz", "3 lines changed"),
        ("", "a\nb", "2 lines changed"),
        ("a\na", "a\na\na", "1 line changed"),
        ("same", "same", "0 lines changed"),
    ],
)
def test_an_edit_reports_how_many_lines_it_changes(old: str, new: str, description: str) -> None:
    tool_input = {"file_path": "src/auth.py", "old_string": old, "new_string": new}
    assert describe("Edit", tool_input) == f"Edit src/auth.py: {description}"
    assert describe("Edit", {**tool_input, "replace_all": True}) == f"Edit src/auth.py: {description}, everywhere"


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_no_edit_changes_more_lines_than_there_are(before: list[str], after: list[str]) -> None:
    line = describe("Edit", {"file_path": "f", "old_string": "\n".join(before), "new_string": "\n".join(after)})
    changed = int(line.split()[2])
    assert abs(len(before) - len(after)) <= changed <= max(len(before), len(after))
    assert (changed == 0) == (before == after)


@every_row("trick", ["\x1b[2K", "\r", "\x08" * 20, "\u202e", "\u2066", "\x9b31m", "\x00", "\u2028"])
def test_nothing_in_a_line_steers_a_terminal(trick: str) -> None:
    line = describe("Bash", {"command": f"rm -rf /{trick}echo harmless"})
    assert line.isprintable()
    assert line.startswith("Run: rm -rf /")
    assert line.endswith("echo harmless")


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = st.sampled_from(["Edit", "Write", "Bash", "Agent", "ExitPlanMode", "AskUserQuestion", "mcp__a__b"]) | st.text()
KEYS = st.sampled_from(["file_path", "old_string", "new_string", "content", "command", "plan", "questions"])


@given(NAMES, st.dictionaries(KEYS | st.text(), JSON))
def test_any_call_at_all_has_one_short_printable_line(tool: str, tool_input: Input) -> None:
    line = describe(tool, tool_input)
    assert 0 < len(line) <= 200
    assert line.isprintable()


def test_a_long_command_is_cut_visibly() -> None:
    line = describe("Bash", {"command": "x" * 1000})
    assert len(line) == 200
    assert re.search(r"\[… 1005 .* …\]", line)


def test_a_secret_at_the_place_where_the_line_is_cut_is_hidden_first() -> None:
    token = "ghp_AbCdEf0123456789AbCdEf0123456789AbCd"
    assert "ghp_" not in describe("Bash", {"command": "x" * 180 + f" {token} and more"})
    assert "ghp_" not in describe("mcp__a__b", {"value": "x" * 45 + f" {token}"})


def test_the_end_of_a_long_command_is_in_its_line() -> None:
    padded = {"command": "git status" + " " * 5000 + "; rm -rf /home"}
    line = describe("Bash", padded)
    assert line.startswith("Run: git status")
    assert line.endswith("; rm -rf /home")
    assert "[… 5029 " in line


@every_row(
    ("command", "line"),
    [
        ("ls" + "\n" * 40 + "rm x", "Run: ls ⏎[40 line breaks]⏎ rm x"),
        ("ls" + " " * 100 + "; rm x", "Run: ls [100 spaces] ; rm x"),
        ("a  b\r\nc", "Run: a  b ⏎ c"),
        ("rm \u202ex", "Run: rm \\u202ex"),
        ("rm \x1b[2Kx\r", "Run: rm \\u001b[2Kx\\r"),
        ("rm\u200b x\u3164", "Run: rm\\u200b x\\u3164"),
    ],
)
def test_hidden_content_is_shown(command: str, line: str) -> None:
    assert describe("Bash", {"command": command}) == line
