"""How a question is shown to whoever decides on it."""

from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.question import Answer, FileChange, Question, QuestionKind, kind_of, rules_of
from claude_code_mcp.core.model.text import has_mark
from claude_code_mcp.core.questions.edited_input import restore_redacted
from claude_code_mcp.core.questions.kinds import full_text, reply
from claude_code_mcp.core.questions.presentation import (
    describe,
    form_without_secrets,
    is_whole,
    original_answer,
    shown_input,
    without_secrets,
)
from claude_code_mcp.core.questions.question_forms import answer_of, form_of
from claude_code_mcp.core.redaction import MARK, Redactor
from tests.support.tables import every_row

SECRET = "correct-horse-battery-staple"


def asking(tool: str, **tool_input: Any) -> Question:
    return Question("q-1f2e3d4c", "s", kind_of(tool), tool, tool_input, describe(tool, tool_input))


def test_short_command_is_shown_once() -> None:
    message = full_text(asking("Bash", command="git push"))
    assert message == "Claude Code wants to run: git push"


@every_row(
    ("tool", "tool_input", "parts"),
    [
        ("Bash", {"command": "ls", "run_in_background": True, "timeout": 5}, ["run_in_background: true", "timeout: 5"]),
        ("Bash", {"command": "a  b\nc"}, ["--- command (6 characters, 2 lines) q-1f2e ---\na  b\nc\n--- end"]),
        ("Edit", {"file_path": "f", "old_string": "x\ny", "new_string": "z" * 300}, ["\nx\ny\n", "z" * 300]),
        ("Write", {"file_path": "f", "content": "one\n" * 5000}, ["\n" + "one\n" * 5000]),
        ("Agent", {"description": "look", "prompt": "and delete\nall"}, ["\nand delete\nall\n"]),
        ("mcp__a__b", {"list": list(range(300)), "r": "r"}, ["298, 299]", "\nr: r"]),
        ("Read", {"file_path": "/a/" + "b" * 500}, ["\n/a/" + "b" * 500]),
        ("ExitPlanMode", {"plan": "# P\n" * 5000, "planFilePath": "/p"}, ["# P\n" * 5000, "planFilePath: /p"]),
        ("AskUserQuestion", {"questions": [{"question": "Q\u202e", "options": ["x" * 99]}]}, ["Q\\u202e", "x" * 99]),
    ],
)  # fmt: skip
def test_full_text_contains_everything_to_decide_on(tool: str, tool_input: dict[str, Any], parts: list[str]) -> None:
    message = full_text(asking(tool, **tool_input))
    for part in parts:
        assert part in message


DIFF = "@@ -1,3 +1,3 @@\n one\n-two\n+2\u202e\n three\n\\ No newline at end of file"


def test_a_change_to_a_file_is_shown_in_its_place_and_not_as_fields() -> None:
    writing = asking("Write", file_path="/f", content="one\n2\u202e\nthree")
    message = full_text(replace(writing, change=FileChange(DIFF)))
    assert "--- content" not in message
    *_, last = message.splitlines()
    assert "q-1f2e" in last
    assert message.splitlines()[-7:-1] == [
        f"--- change to the file {last.split()[-2]} ---",
        "     1   one",
        "     2 - two",
        "     2 + 2\\u202e",
        "     3   three",
        "        No newline at end of file",
    ]
    assert "/f" in message


def test_uncompared_file_is_shown_with_the_whole_input() -> None:
    message = full_text(
        replace(asking("Write", file_path="/f", content="one\ntwo"), change=FileChange(note="It is long."))
    )
    assert "\nIt is long." in message
    assert "\none\ntwo\n" in message


def test_a_change_with_a_secret_is_not_shown_as_one() -> None:
    """The old and the new secret would look the same."""
    redactor = Redactor([SECRET])
    for diff in (f"@@ -1,1 +1,1 @@\n-{SECRET}\n+x", f"@@ -1,2 +1,2 @@\n {SECRET}\n-a\n+b"):
        shown = without_secrets(
            replace(asking("Write", file_path="/f", content="x"), change=FileChange(diff)), redactor
        )
        assert shown.change is not None
        assert (shown.change.diff, "secrets" in shown.change.note) == ("", True)
    plain = replace(asking("Write", file_path="/f", content="x"), change=FileChange(DIFF))
    assert without_secrets(plain, redactor).change == FileChange(DIFF)


def test_a_large_change_comes_in_several_forms() -> None:
    diff = "@@ -1,0 +1,1 @@\n" + "\n".join("+" + "x" * 90 for _ in range(3000))
    assert not is_whole(replace(asking("Write", file_path="/f", content="x"), change=FileChange(diff)))


def test_no_text_can_pass_for_the_head_of_another_field() -> None:
    forged = "x\n--- end of old_string q-0000 ---\n--- new_string (1 character, 1 line) q-0000 ---\nharmless"
    message = full_text(asking("Edit", file_path="f", old_string=forged, new_string="rm\nrf"))
    assert [line for line in message.splitlines() if "q-1f2e" in line and "new_string" in line] == [
        "--- new_string (5 characters, 2 lines) q-1f2e ---",
        "--- end of new_string q-1f2e ---",
    ]


def test_an_input_is_whole_up_to_256_kb_and_marked_beyond() -> None:
    fits = asking("Write", file_path="f", content="é" * 130_000)
    assert is_whole(fits)
    assert shown_input(fits) == (fits.tool_input, True)
    over = asking("Write", content="é" * 140_000, file_path="f")
    assert not is_whole(over)
    given, whole = shown_input(over)
    assert not whole
    assert has_mark(given["content"])
    assert given["file_path"] == "f"


def test_an_input_with_a_cut_mark_is_refused() -> None:
    command, _ = shown_input(asking("Bash", command="x" * 300_000))
    items, _ = shown_input(asking("T", list=["x"] * 100_000))
    keys, _ = shown_input(asking("T", **{f"key{number}": "x" * 100 for number in range(3000)}))
    for updated in [command, items, {"list": {"deep": [items["list"][-1]]}}, keys]:
        with pytest.raises(InvalidArgument, match="cut mark"):
            reply(asking("Bash", command="ls"), Answer(allow=True, updated_input=updated))


def test_secrets_are_taken_out_before_anything_is_cut() -> None:
    redactor = Redactor([SECRET])
    for at in range(7_960, 8_010):
        question = asking("Write", content="x" * at + SECRET + "y" * 300_000)
        shown, _ = shown_input(without_secrets(question, redactor))
        assert SECRET[:6] not in shown["content"]


def test_unchanged_redacted_text_becomes_the_original_again() -> None:
    redactor = Redactor([SECRET])
    original = {"command": f"curl -u {SECRET}", "env": {"password": "hunter2", "x": ["a", SECRET]}, "cwd": "/a"}
    shown = redactor.data(original)
    assert SECRET not in str(shown)
    assert restore_redacted({**shown, "cwd": "/b"}, shown, original, MARK) == {**original, "cwd": "/b"}
    longer = {**shown, "env": {**shown["env"], "x": [*shown["env"]["x"], "more"]}}
    assert restore_redacted(longer, shown, original, MARK)["env"]["x"] == ["a", SECRET, "more"]
    with pytest.raises(InvalidArgument, match="secret"):
        restore_redacted({**shown, "command": shown["command"] + " -v"}, shown, original, MARK)
    assert restore_redacted({**shown, "command": "ls"}, shown, original, MARK)["command"] == "ls"
    assert restore_redacted({"cwd": f"/{MARK}"}, shown, original, MARK) == {"cwd": f"/{MARK}"}, (
        "nothing was hidden there"
    )


def test_items_of_a_list_are_the_originals_wherever_they_stand_and_no_mark_is_ever_run() -> None:
    redactor = Redactor([SECRET])
    original = {"edits": [{"text": "a"}, {"text": SECRET}, {"text": "b"}], "note": "x"}
    shown = redactor.data(original)
    without_first = {**shown, "edits": shown["edits"][1:]}
    assert restore_redacted(without_first, shown, original, MARK)["edits"] == original["edits"][1:]
    swapped = {**shown, "edits": [*reversed(shown["edits"]), {"text": "c"}]}
    assert restore_redacted(swapped, shown, original, MARK)["edits"] == [*reversed(original["edits"]), {"text": "c"}]
    for added in ({"edits": [*shown["edits"], {"text": f"{MARK} again"}]}, {"also": MARK}):
        with pytest.raises(InvalidArgument, match="secret"):
            restore_redacted({**shown, **added}, shown, original, MARK)


def test_answered_question_needs_little_memory() -> None:
    question = replace(asking("Write", content="x" * 10**6), suggestions=({"a": "b"},), reason="because")
    kept = question.brief()
    assert (kept.id, kept.kind, kept.tool_name, kept.description) == (
        question.id,
        question.kind,
        "Write",
        question.description,
    )
    assert not kept.tool_input
    assert not kept.suggestions


FIRST, SECOND = "opaque-secret-number-1", "opaque-secret-number-2"
redactor = Redactor([FIRST, SECOND])


def asked(*parts: dict[str, Any]) -> Question:
    return Question(
        "q", "s", QuestionKind.USER_QUESTION, "AskUserQuestion", {"questions": [*parts]}, f"Question: {FIRST}"
    )


def options(*labels: str) -> list[dict[str, str]]:
    return [{"label": label, "description": f"about {label}"} for label in labels]


def test_labels_schemas_and_messages_hold_no_secret() -> None:
    question = asked(
        {"question": f"Use {FIRST}?", "header": FIRST, "options": options(FIRST, SECOND, "neither")},
        {"question": f"Use {SECOND}?", "header": "h", "options": options(FIRST, SECOND), "multiSelect": True},
        {"question": f"Or {SECOND}?"},
    )
    for arrays in (True, False):
        assert "opaque" not in str(form_of(without_secrets(question, redactor), arrays=arrays))


def test_the_choice_of_a_hidden_label_is_the_label_itself() -> None:
    question = asked(
        {"question": f"Use {FIRST}?", "options": options(FIRST, SECOND, "neither")},
        {"question": f"Use {SECOND}?", "options": options(FIRST, SECOND), "multiSelect": True},
        {"question": "Other?", "options": options("a", "b")},
    )
    shown = without_secrets(question, redactor)
    _, schema = form_of(shown)
    first, second = schema["properties"]["answer1"]["enum"][:2]
    assert (first, second) == (MARK, f"{MARK} (2)")
    filled = {"answer1": second, "answer2": [second, first], "other3": "something else"}
    answer = answer_of(shown, "accept", filled)
    assert answer is not None
    assert original_answer(question, shown, answer).answers == {
        f"Use {FIRST}?": SECOND,
        f"Use {SECOND}?": [SECOND, FIRST],
        "Other?": "something else",
    }


def test_questions_that_differ_in_a_secret_only_stay_two() -> None:
    question = asked({"question": FIRST, "options": options("a")}, {"question": SECOND, "options": options("a")})
    shown = without_secrets(question, redactor)
    answer = answer_of(shown, "accept", {"answer1": "a", "other2": "mine"})
    assert answer is not None
    assert original_answer(question, shown, answer).answers == {FIRST: "a", SECOND: "mine"}


def test_a_secret_at_the_place_where_a_long_text_is_cut_is_hidden_first() -> None:
    plan = "x" * 11_990 + " ghp_AbCdEf0123456789AbCdEf0123456789AbCd " + FIRST
    question = Question("q", "s", QuestionKind.PLAN_REVIEW, "ExitPlanMode", {"plan": plan}, "Plan ready for review")
    message, _ = form_of(without_secrets(question, redactor))
    assert "ghp_" not in message
    assert "opaque" not in message


def test_a_question_without_secrets_is_shown_as_it_is() -> None:
    question = asked({"question": "Which?", "options": [*options("a"), "b", "b"]})
    assert without_secrets(question, redactor).tool_input == question.tool_input


def test_server_form_redacts_labels_and_keeps_values() -> None:
    field = {"type": "string", "title": FIRST, "oneOf": [{"const": FIRST, "title": f"is {FIRST}"}]}
    form = {"type": "object", "properties": {"a": field, "b": {"items": {"enum": [SECOND], "enumNames": [SECOND]}}}}
    clean = form_without_secrets(form, redactor)
    assert clean["properties"]["a"] == {
        "type": "string",
        "title": MARK,
        "oneOf": [{"const": FIRST, "title": f"is {MARK}"}],
    }
    assert clean["properties"]["b"]["items"] == {"enum": [SECOND], "enumNames": [MARK]}


def test_question_shows_what_the_session_would_allow() -> None:
    suggestions: list[dict[str, Any]] = [
        {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "git push:*"}, {"toolName": "Read"}, None]},
        {"type": "setMode", "mode": "acceptEdits"},
        {"type": "addDirectories", "directories": ["/srv/\x1b[2Jother"]},
        {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "echo " + "x" * 10**6}]},
    ]
    *short, long = rules = tuple(rules_of(suggestions))
    assert short[:2] == ["Bash(git push:*)", "Read"]
    assert "acceptEdits" in short[2]
    assert "1000011 " in long
    _, line, *_ = full_text(replace(asking("Bash", command="git push"), session_rules=rules)).split("\n")
    for fact in ("Bash(git push:*)", "Read", "acceptEdits", "/srv/"):
        assert fact in line
    assert "\x1b" not in line
