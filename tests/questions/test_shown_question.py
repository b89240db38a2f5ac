"""What a person is shown of a question holds no secret, and what they choose is what was offered."""

from typing import Any

from claude_code_mcp.model.question import Question, QuestionKind
from claude_code_mcp.questions.presentation import as_offered, form_without_secrets, without_secrets
from claude_code_mcp.redaction import Redactor
from claude_code_mcp.secret_shapes import MARK
from claude_code_mcp.server.elicitation.forms import answer_of, form_of

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
    assert as_offered(question, shown, answer).answers == {
        f"Use {FIRST}?": SECOND,
        f"Use {SECOND}?": [SECOND, FIRST],
        "Other?": "something else",
    }


def test_questions_that_differ_in_a_secret_only_stay_two() -> None:
    question = asked({"question": FIRST, "options": options("a")}, {"question": SECOND, "options": options("a")})
    shown = without_secrets(question, redactor)
    answer = answer_of(shown, "accept", {"answer1": "a", "other2": "mine"})
    assert answer is not None
    assert as_offered(question, shown, answer).answers == {FIRST: "a", SECOND: "mine"}


def test_a_secret_at_the_place_where_a_long_text_is_cut_is_hidden_first() -> None:
    plan = "x" * 11_990 + " ghp_AbCdEf0123456789AbCdEf0123456789AbCd " + FIRST
    question = Question("q", "s", QuestionKind.PLAN_REVIEW, "ExitPlanMode", {"plan": plan}, "Plan ready for review")
    message, _ = form_of(without_secrets(question, redactor))
    assert "ghp_" not in message
    assert "opaque" not in message


def test_a_question_without_secrets_is_shown_as_it_is() -> None:
    question = asked({"question": "Which?", "options": [*options("a"), "b", "b"]})
    assert without_secrets(question, redactor).tool_input == question.tool_input


def test_of_a_server_s_form_what_people_read_is_redacted_and_what_the_server_compares_stays() -> None:
    field = {"type": "string", "title": FIRST, "oneOf": [{"const": FIRST, "title": f"is {FIRST}"}]}
    form = {"type": "object", "properties": {"a": field, "b": {"items": {"enum": [SECOND], "enumNames": [SECOND]}}}}
    clean = form_without_secrets(form, redactor)
    assert clean["properties"]["a"] == {
        "type": "string",
        "title": MARK,
        "oneOf": [{"const": FIRST, "title": f"is {MARK}"}],
    }
    assert clean["properties"]["b"]["items"] == {"enum": [SECOND], "enumNames": [MARK]}
