"""What a question is made of."""

from typing import Any

from claude_code_mcp.core.model.question import Choice, Question, QuestionKind, kind_of
from tests.support.tables import every_row


def question(tool: str, tool_input: dict[str, Any]) -> Question:
    return Question("q-1", "s-1", kind_of(tool), tool, tool_input, "…")


@every_row(
    ("tool", "kind"),
    [
        ("ExitPlanMode", QuestionKind.PLAN_REVIEW),
        ("AskUserQuestion", QuestionKind.USER_QUESTION),
        ("Bash", QuestionKind.PERMISSION),
        ("EnterPlanMode", QuestionKind.PERMISSION),
        ("mcp__a__ExitPlanMode", QuestionKind.PERMISSION),
    ],
)
def test_the_tool_reports_the_kind(tool: str, kind: QuestionKind) -> None:
    assert kind_of(tool) is kind


def test_the_parts_of_a_user_question_are_its_choices() -> None:
    asked = question(
        "AskUserQuestion",
        {
            "questions": [
                {"question": "Which?", "header": "H", "options": [{"label": "a", "description": "A"}, "b"]},
                {"question": "More?", "multiSelect": True},
            ]
        },
    )
    assert asked.choices == (
        Choice("Which?", "H", (("a", "A"), ("b", ""))),
        Choice("More?", several=True),
    )
    assert asked.choices[0].labels == ("a", "b")


@every_row("questions", [None, "x", 5, {}, [], ["x", None]])
def test_a_malformed_user_question_has_no_choices(questions: object) -> None:
    assert question("AskUserQuestion", {"questions": questions}).choices == ()


@every_row("options", [None, "x", 5, {}])
def test_malformed_options_are_none(options: object) -> None:
    asked = question("AskUserQuestion", {"questions": [{"question": "Which?", "options": options}]})
    assert asked.choices == (Choice("Which?"),)


def test_other_kinds_have_no_choices() -> None:
    assert question("Bash", {"questions": [{"question": "Which?"}]}).choices == ()
