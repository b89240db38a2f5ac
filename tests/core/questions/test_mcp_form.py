"""Forms of MCP servers, put as user questions."""

from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.question import Answer, Question, QuestionKind
from claude_code_mcp.core.questions.form_model import TOOL, check_answers, filled_in, questions_of
from claude_code_mcp.core.questions.kinds import reply
from tests.support.tables import every_row


def form(**properties: Any) -> dict[str, Any]:
    return {"message": "Details?", "requestedSchema": {"type": "object", "properties": properties}}


FIELDS = [
    ({"type": "string"}, "Ada", "Ada"),
    ({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}, "Green", "g"),
    ({"type": "string", "enum": ["r", "g"]}, "g", "g"),
    ({"type": "string", "oneOf": [{"const": "r", "title": "Red"}]}, "Red", "r"),
    ({"type": "boolean"}, "Yes", True),
    ({"type": "boolean"}, "No", False),
    ({"type": "boolean"}, "true", True),
    ({"type": "integer"}, "7", 7),
    ({"type": "number"}, "7.5", 7.5),
    ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}, ["a", "b"], ["a", "b"]),
    ({"type": "array", "items": {"enum": ["a, b", "a", "b"]}}, ["a, b", "a"], ["a, b", "a"]),
    ({"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red, dark"}]}}, ["Red, dark"], ["r"]),
    ({"type": "integer"}, "7.0", 7),
    ({"type": "string", "oneOf": [{"const": 1, "title": "One"}, {"const": 2, "title": "One"}]}, "One (2)", 2),
]


@every_row(("field", "given", "expected"), FIELDS)
def test_an_answer_becomes_the_value_of_its_field(field: dict[str, Any], given: Any, expected: Any) -> None:
    asked = form(it=field)
    question = Question("q", "s", QuestionKind.USER_QUESTION, TOOL, questions_of("x", asked), "")
    body = reply(question, Answer(allow=True, answers=[given]))
    result = filled_in("x", asked, body["updatedInput"]["answers"])
    assert result == {"action": "accept", "content": {"it": expected}}


def test_every_field_is_a_question_of_its_own() -> None:
    asked = form(name={"type": "string", "title": "Name"}, color={"type": "string", "enum": ["red"]})
    questions = questions_of("x", asked)["questions"]
    assert [one["question"] for one in questions] == ["x asks: Details? [Name]", "x asks: Details? [color]"]
    assert [option["label"] for option in questions[1]["options"]] == ["red"]


def test_fields_without_an_answer_are_left_out() -> None:
    asked = form(name={"type": "string"}, age={"type": "integer"})
    texts = [one["question"] for one in questions_of("x", asked)["questions"]]
    assert filled_in("x", asked, {texts[1]: "3"}) == {"action": "accept", "content": {"age": 3}}


@every_row(("label", "action"), [("Yes", "accept"), ("No", "decline")])
def test_a_form_without_fields_asks_yes_or_no(label: str, action: str) -> None:
    asked = {"message": "Really?"}
    text = questions_of("x", asked)["questions"][0]["question"]
    assert filled_in("x", asked, {text: label})["action"] == action


def test_fields_with_equal_titles_are_distinguished() -> None:
    asked = form(first={"type": "string", "title": "Name"}, second={"type": "string", "title": "Name"})
    first, second = (one["question"] for one in questions_of("x", asked)["questions"])
    assert first != second
    answer = filled_in("x", asked, {first: "Ada", second: "Lovelace"})
    assert answer["content"] == {"first": "Ada", "second": "Lovelace"}


@every_row(("label", "action"), [("Yes", "accept"), ("No", "decline")])
def test_an_address_is_shown_and_its_answer_has_no_content(label: str, action: str) -> None:
    asked = {"mode": "url", "message": "Sign in.", "url": "https://example.com/a", "elicitationId": "1"}
    text = questions_of("x", asked)["questions"][0]["question"]
    assert "https://example.com/a" in text
    assert filled_in("x", asked, {text: label}) == {"action": action}


MISFITS = [
    ({"type": "number"}, "many", "must be a number"),
    ({"type": "number"}, "nan", "must be a number"),
    ({"type": "number"}, "9" * 5000, "must be a number"),
    ({"type": "integer"}, "7.5", "must be a whole number"),
    ({"type": "integer", "minimum": 3}, "2", "must be at least 3"),
    ({"type": "number", "maximum": 3}, "3.5", "must be at most 3"),
    ({"type": "string", "minLength": 2}, "x", "must be at least 2 characters"),
    ({"type": "string", "format": "date"}, "soon", "must be a date"),
    ({"type": "string", "enum": ["a", "b"]}, "c", "must be one of a, b"),
    ({"type": "boolean"}, "perhaps", "must be Yes or No"),
    ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a", "c"], "must be one of a, b"),
    ({"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 1}, ["a", "b"], "must be at most 1 chosen"),
    ({"type": "string", "title": "Name"}, "", "is required"),
]


@every_row(("field", "given", "why"), MISFITS)
def test_an_answer_that_the_form_does_not_take_is_refused_by_the_name_of_its_field(
    field: dict[str, Any], given: Any, why: str
) -> None:
    asked = form(it=field)
    asked["requestedSchema"]["required"] = ["it"]
    text = questions_of("x", asked)["questions"][0]["question"]
    with pytest.raises(InvalidArgument) as refused:
        check_answers("x", asked, {text: given})
    assert refused.value.message == f"{field.get('title', 'it')}: {why}."


def test_several_labels_are_not_mistaken_for_one_that_has_a_comma_in_it() -> None:
    asked = form(it={"type": "array", "items": {"enum": ["a, b", "a", "b"]}})
    text = questions_of("x", asked)["questions"][0]["question"]
    assert filled_in("x", asked, {text: ["a", "b"]})["content"] == {"it": ["a", "b"]}


def test_what_a_field_is_goes_with_its_question() -> None:
    field = {"type": "integer", "title": "Age", "minimum": 0, "default": 7, "format": "x", "pattern": "(a+)+$"}
    (question,) = questions_of("x", form(it=field))["questions"]
    assert question["field"] == {
        "title": "Age",
        "type": "integer",
        "required": False,
        "format": "x",
        "default": "7",
        "minimum": 0,
    }
    color = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}], "default": "r"}
    assert questions_of("x", form(it=color))["questions"][0]["field"]["default"] == "Red"
