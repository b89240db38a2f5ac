"""What of a report is too long for one answer, and what an answer weighs at most."""

import json
from typing import Any

import pytest

from claude_code_mcp.core.model.question import Question, QuestionKind
from claude_code_mcp.core.model.text import has_mark
from claude_code_mcp.core.questions.question_forms import answer_of, form_of, next_offset, wants_next_page
from claude_code_mcp.core.redaction import Redactor
from claude_code_mcp.server.tools.paging import ResultParts
from claude_code_mcp.server.tools.session_report import SessionReport, pending_inputs

SECRET = "correct-horse-battery-staple"


def questions(count: int, size: int) -> list[Question]:
    return [
        Question(f"q-{number:016}", "s", QuestionKind.PERMISSION, "Write", {"content": "x" * size}, "Write it")
        for number in range(count)
    ]


def test_many_questions_come_whole_as_long_as_there_is_room_and_the_others_can_be_read() -> None:
    asked = questions(30, 200_000)
    parts = ResultParts(Redactor())
    shown = pending_inputs(asked, parts)
    assert [entry.input_id for entry in shown] == [question.id for question in asked]
    whole = [entry.input_id for entry in shown if not has_mark(entry.tool_input)]
    assert whole == [question.id for question in asked[:2]]
    cut = parts.truncated or []
    assert [item["part"] for item in cut] == [question.id for question in asked[2:]]
    answer = SessionReport(session_id="s", status="waiting_for_input", pending_inputs=shown, truncated=cut)
    assert len(answer.model_dump_json()) + len(answer.text()) < 1_500_000


def test_more_questions_than_one_answer_lists_are_listed_from_an_offset() -> None:
    asked = questions(120, 10)
    seen: list[str] = []
    start: int | None = 0
    while start is not None:
        parts = ResultParts(Redactor())
        seen += [entry.input_id for entry in pending_inputs(asked, parts, start)]
        rest = [cut for cut in parts.truncated or [] if cut["part"] == "pendingInputs"]
        start = rest[0]["nextOffset"] if rest else None
    assert seen == [question.id for question in asked]


def test_a_text_loses_its_secrets_before_it_is_cut() -> None:
    for at in range(70, 101):
        parts = ResultParts(Redactor([SECRET]))
        assert SECRET[:5] not in parts.text("result", "x" * at + SECRET + "y" * 100, 100)


def test_structured_output_that_is_too_long_is_left_to_be_read() -> None:
    parts = ResultParts(Redactor())
    assert parts.data("structuredOutput", {"a": 1}, 100) == {"a": 1}
    assert parts.data("structuredOutput", None, 100) is None
    assert parts.truncated is None
    assert parts.data("structuredOutput", {"a": "x" * 100}, 100) is None
    assert parts.truncated == [
        {"part": "structuredOutput", "nextOffset": 0, "total": len(json.dumps({"a": "x" * 100}))}
    ]


def test_long_denials_are_reported_with_cut_marks() -> None:
    denials = [{"tool_name": "Write", "tool_input": {"content": "x" * 10_000}}] * 100
    shortened = ResultParts(Redactor()).shortened(denials, 50_000)
    assert has_mark(shortened)
    assert len(json.dumps(shortened)) < 60_000
    assert ResultParts(Redactor()).shortened(denials[:2], 50_000) == denials[:2]


def large(tool: str = "Write", kind: QuestionKind = QuestionKind.PERMISSION, **tool_input: Any) -> Question:
    return Question("q-1", "s", kind, tool, tool_input, "something large")


LARGE = [
    large(content="word " * 100_000),
    large("ExitPlanMode", QuestionKind.PLAN_REVIEW, plan="word " * 100_000),
    large(
        "AskUserQuestion", QuestionKind.USER_QUESTION, questions=[{"question": "word " * 100_000, "options": ["yes"]}]
    ),
]


@pytest.mark.parametrize("question", LARGE, ids=lambda one: str(one.kind))
def test_forms_before_the_last_can_only_be_denied_or_turned(question: Question) -> None:
    offset: int | None = 0
    text, forms = "", 0
    while offset is not None:
        message, schema = form_of(question, offset=offset)
        text += message.partition("\n\n")[2]
        forms += 1
        offset = next_offset(question, offset)
        if offset is not None:
            _, deny = schema["properties"]["decision"]["enum"]
            assert deny == "Deny"
    assert forms == 3
    assert "word " * 100_000 in text
    assert "Show the next part" not in json.dumps(schema)
    assert wants_next_page("accept", {"decision": "Show the next part"})
    assert not wants_next_page("decline", {"decision": "Show the next part"})
    for early in ({"decision": "Allow once"}, {"decision": "Approve the plan"}, {"answer1": "yes"}, {}):
        assert answer_of(question, "accept", early, all_shown=False) is None
    denied = answer_of(question, "accept", {"decision": "Deny", "reason": "no"}, all_shown=False)
    assert denied is not None
    assert (denied.allow, denied.message) == (False, "no")
