"""How a question is shown to whoever decides on it."""

from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.model.question import Answer, Question, kind_of
from claude_code_mcp.model.text import has_mark
from claude_code_mcp.questions.cli_reply import put_back, reply
from claude_code_mcp.questions.describe import describe
from claude_code_mcp.questions.presentation import is_whole, shown_input, told, without_secrets
from claude_code_mcp.redaction import Redactor
from claude_code_mcp.secret_shapes import MARK

SECRET = "correct-horse-battery-staple"


def asking(tool: str, **tool_input: Any) -> Question:
    return Question("q-1f2e3d4c", "s", kind_of(tool), tool, tool_input, describe(tool, tool_input))


def test_a_short_command_is_told_once() -> None:
    assert told(asking("Bash", command="git push")) == "Claude Code wants to: Run: git push"


@pytest.mark.parametrize(
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
def test_everything_that_is_decided_on_is_told(tool: str, tool_input: dict[str, Any], parts: list[str]) -> None:
    message = told(asking(tool, **tool_input))
    for part in parts:
        assert part in message


def test_no_text_can_pass_for_the_head_of_another_field() -> None:
    forged = "x\n--- end of old_string q-0000 ---\n--- new_string (1 character, 1 line) q-0000 ---\nharmless"
    message = told(asking("Edit", file_path="f", old_string=forged, new_string="rm\nrf"))
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


@pytest.mark.parametrize(
    "updated",
    [
        {"command": shown_input(asking("Bash", command="x" * 300_000))[0]["command"]},
        {"list": shown_input(asking("T", list=["x"] * 300_000))[0]["list"]},
        {"list": {"deep": [shown_input(asking("T", list=["x"] * 300_000))[0]["list"][-1]]}},
        shown_input(asking("T", **{f"key{number}": "x" * 100 for number in range(3000)}))[0],
    ],
)
def test_an_input_with_a_cut_mark_is_refused(updated: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="cut mark"):
        reply(asking("Bash", command="ls"), Answer(allow=True, updated_input=updated))


def test_secrets_are_taken_out_before_anything_is_cut() -> None:
    redactor = Redactor([SECRET])
    for at in range(7_960, 8_010):
        question = asking("Write", content="x" * at + SECRET + "y" * 300_000)
        shown, _ = shown_input(without_secrets(question, redactor))
        assert SECRET[:6] not in shown["content"]


def test_what_comes_back_as_it_was_shown_is_the_original_again() -> None:
    redactor = Redactor([SECRET])
    original = {"command": f"curl -u {SECRET}", "env": {"password": "hunter2", "x": ["a", SECRET]}, "cwd": "/a"}
    shown = redactor.data(original)
    assert SECRET not in str(shown)
    assert put_back({**shown, "cwd": "/b"}, shown, original, MARK) == {**original, "cwd": "/b"}
    longer = {**shown, "env": {**shown["env"], "x": [*shown["env"]["x"], "more"]}}
    assert put_back(longer, shown, original, MARK)["env"]["x"] == ["a", SECRET, "more"]
    with pytest.raises(InvalidArgument, match="stands for a secret"):
        put_back({**shown, "command": shown["command"] + " -v"}, shown, original, MARK)
    assert put_back({**shown, "command": "ls"}, shown, original, MARK)["command"] == "ls"
    assert put_back({"cwd": f"/{MARK}"}, shown, original, MARK) == {"cwd": f"/{MARK}"}, "nothing was hidden there"


def test_what_is_kept_of_an_answered_question_is_small() -> None:
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
