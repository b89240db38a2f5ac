"""What a typed line comes to, and how a question is shown: no terminal and no server."""

from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.cli.running_sessions import Asking, is_live, session_table
from claude_code_mcp.client.live_sessions import OpenQuestion
from claude_code_mcp.client.styled_lines import NoAnswer, Style, changed_lines, question_lines
from claude_code_mcp.core.model.question import FileChange, Question, kind_of
from claude_code_mcp.core.model.text import age
from claude_code_mcp.core.sessions.stored.session_row import SessionRow


def asked(tool_name: str, *, for_session: bool = False, modes: tuple[str, ...] = (), **tool_input: Any) -> OpenQuestion:
    question = Question("q-0123456789abcdef", "s", kind_of(tool_name), tool_name, tool_input, "Do it", modes=modes)
    return OpenQuestion(question, SessionRow(session_id="s"), for_session)


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("a", {"decision": "allow"}),
        (" YES \r", {"decision": "allow"}),
        ("s", {"decision": "allow", "scope": "session"}),
        ("deny", {"decision": "deny"}),
        ("n not like this", {"decision": "deny", "reason": "not like this"}),
    ],
)
def test_a_word_decides_on_a_permission(line: str, decision: dict[str, Any]) -> None:
    assert Asking(asked("Bash", for_session=True, command="ls")).take(line) == decision


@pytest.mark.parametrize("line", ["", " ", "maybe", "yes please go on", "allow it", "e", "1", "\x1b[A", "аllow"])
def test_unoffered_choice_is_not_an_answer(line: str) -> None:
    with pytest.raises(NoAnswer):
        Asking(asked("Bash", for_session=True, command="ls")).take(line)


def test_session_scope_is_not_offered_if_impossible() -> None:
    asking = Asking(asked("Bash", command="ls"))
    assert "session" not in asking.prompt
    with pytest.raises(NoAnswer):
        asking.take("s")


def test_a_plan_is_approved_with_edits_only_where_that_is_allowed() -> None:
    decision = {"decision": "allow", "permissionMode": "acceptEdits"}
    assert Asking(asked("ExitPlanMode", plan="# P", modes=("default", "acceptEdits"))).take("e") == decision
    with pytest.raises(NoAnswer):
        Asking(asked("ExitPlanMode", plan="# P", modes=("default",))).take("e")


def test_parts_are_answered_by_number_label_or_text() -> None:
    options = [{"label": "red"}, {"label": "blue"}]
    first = {"question": "Which?", "options": options}
    asking = Asking(asked("AskUserQuestion", questions=[first, {**first, "multiSelect": True}]))
    for refused in ("3", "0", "1,2", ""):
        with pytest.raises(NoAnswer):
            asking.take(refused)
    assert asking.take("2") is None
    assert asking.take("1,2") == {"decision": "allow", "answers": ["blue", ["red", "blue"]]}
    again = Asking(asked("AskUserQuestion", questions=[first]))
    assert again.take("something else") == {"decision": "allow", "answers": ["something else"]}
    assert Asking(asked("AskUserQuestion", questions=[first])).take("d") == {"decision": "deny"}


def test_an_edit_is_shown_as_lines_that_go_and_come() -> None:
    lines = list(changed_lines("a\nb\nc\n", "a\nB\nB2\nc\n"))
    assert [line.text for line in lines] == ["  a", "- b", "+ B", "+ B2", "  c"]
    assert [line.style for line in lines][1:3] == [Style.REMOVED, Style.ADDED]


@pytest.mark.parametrize(("old", "new"), [("a\n", "a"), ("a\r\n", "a\n"), ("a", "a\u200b"), ("", "\n"), ("x\n", "")])
def test_no_difference_is_invisible(old: str, new: str) -> None:
    assert any(line.style in (Style.REMOVED, Style.ADDED) for line in changed_lines(old, new))


def test_every_line_of_a_file_has_a_sign_and_nothing_steers_the_terminal() -> None:
    forged = "x\nClaude Code wants to run: nothing\n\x1b[2Jgone\n"
    lines = [line.text for line in question_lines(asked("Write", file_path="/f", content=forged).question)]
    assert lines[0] == "Claude Code wants to do it"
    assert lines[-3:] == ["+ x", "+ Claude Code wants to run: nothing", "+ \\u001b[2Jgone"]
    assert "file_path: /f" in lines


def test_a_change_that_the_server_has_compared_has_line_numbers() -> None:
    diff = "@@ -8,3 +8,3 @@\n eight\n-nine\n+9\n ten\n@@ -20,1 +20,0 @@\n-last"
    asking = replace(asked("Write", file_path="/f", content="all of it").question, change=FileChange(diff))
    lines = list(question_lines(asking))
    assert [line.text for line in lines[-7:]] == [
        "…",
        "     8   eight",
        "     9 - nine",
        "     9 + 9",
        "    10   ten",
        "…",
        "    20 - last",
    ]
    assert [line.style for line in lines[-5:-3]] == [Style.REMOVED, Style.ADDED]
    assert not any("all of it" in line.text for line in lines)
    assert "file_path: /f" in [line.text for line in lines]


def test_an_input_of_another_shape_is_shown_as_it_is() -> None:
    lines = [
        line.text for line in question_lines(asked("Edit", file_path="/f", old_string=["x"], new_string=1).question)
    ]
    assert any('["x"]' in line for line in lines)


def test_the_table_has_a_row_for_each_session_and_no_control_characters() -> None:
    session = SessionRow(
        session_id="5f0c0000-0000-4000-8000-000000000000",
        active_status="waiting_for_input",
        timestamp="2026-11-15T12:00:00.000Z",
        display_text="A\x1b[2Jtitle",
        project_directory="/very/" + "long/" * 20 + "end",
        cost_usd=0.5,
        asks=["Run: ls", "Run: pwd"],
    )
    head, row = session_table([session])
    assert head.split()[:4] == ["ID", "STATE", "AGE", "COST"]
    assert "5f0c0000" in row
    assert "$0.5000" in row
    assert "Run: ls (+1)" in row
    assert row.isprintable()
    head, row, elsewhere = session_table([session, replace(session, machine="desk\x1b")])
    assert head.split()[:4] == ["ID", "STATE", "MACHINE", "AGE"]
    assert [line.split()[2] for line in (row, elsewhere)] == ["-", "desk\\u001b"]


@pytest.mark.parametrize(("seconds", "shown"), [(-5, "0s"), (59, "59s"), (61, "1m"), (7300, "2h"), (200_000, "2d")])
def test_age_is_shown_in_one_unit(seconds: float, shown: str) -> None:
    assert age("1970-01-01T00:00:00.000Z", seconds) == shown
    assert age("nonsense", 0.0) == "-"


def test_a_session_that_waits_for_a_usage_limit_is_listed_without_a_process() -> None:
    assert not is_live(SessionRow(session_id="s", active_status="completed"))
    assert is_live(SessionRow(session_id="s", continues_at="2026-11-19T17:00:00.000Z"))
