"""A question as it may be shown, without secrets, and the way back from what a person chose to what was offered.

Secrets are taken out before anything is cut to length: of a secret that was cut, the rest could not be recognised.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..model.question import Answer, Choice, Question, QuestionKind
from .showing import Redacts

_FOR_PEOPLE = ("title", "description", "enumNames")
_FIELDS_WITHIN = ("properties", "items", "oneOf", "anyOf")


def without_secrets(question: Question, redactor: Redacts) -> Question:
    """The question with every text of it redacted. Labels and texts that would then be the same are numbered."""
    given = redactor.data(question.tool_input)
    if question.kind is QuestionKind.USER_QUESTION and given != question.tool_input:
        given = _told_apart(given)
    return replace(
        question,
        tool_input=given,
        description=redactor.text(question.description),
        reason=question.reason and redactor.text(question.reason),
        blocked_path=question.blocked_path and redactor.text(question.blocked_path),
    )


def as_offered(question: Question, shown: Question, answer: Answer) -> Answer:
    """The answer to a question that was shown without secrets, in the words of the question itself."""
    if not isinstance(answer.answers, Mapping) or shown.tool_input == question.tool_input:
        return answer
    pairs = {
        one.question: (other, _labels(other, one)) for other, one in zip(question.choices, shown.choices, strict=True)
    }
    answers = dict(_offered(pairs, text, value) for text, value in answer.answers.items())
    return replace(answer, answers=answers)


def form_without_secrets(schema: Mapping[str, Any], redactor: Redacts) -> dict[str, Any]:
    """A server's form with its titles and descriptions redacted. Values stay: the server compares them."""
    clean: dict[str, Any] = dict(schema)
    for name in _FOR_PEOPLE:
        if name in clean:
            clean[name] = redactor.data(clean[name])
    for name in _FIELDS_WITHIN:
        within = clean.get(name)
        if isinstance(within, Mapping) and name == "properties":
            clean[name] = {key: _part(one, redactor) for key, one in within.items()}
        elif isinstance(within, list):
            clean[name] = [_part(one, redactor) for one in within]
        elif within is not None:
            clean[name] = _part(within, redactor)
    return clean


def _part(schema: Any, redactor: Redacts) -> Any:
    return form_without_secrets(schema, redactor) if isinstance(schema, Mapping) else schema


def _labels(offered: Choice, shown: Choice) -> dict[str, str]:
    return dict(zip(shown.labels, offered.labels, strict=True))


def _offered(
    pairs: Mapping[str, tuple[Choice, Mapping[str, str]]], text: str, value: str | Sequence[str]
) -> tuple[str, str | Sequence[str]]:
    if text not in pairs:
        return text, value
    choice, labels = pairs[text]
    if isinstance(value, str):
        return choice.question, labels.get(value, value)
    return choice.question, [labels.get(one, one) for one in value]


def _told_apart(given: Mapping[str, Any]) -> dict[str, Any]:
    questions = given.get("questions")
    if not isinstance(questions, list):
        return dict(given)
    parts = [dict(part) if isinstance(part, Mapping) else part for part in questions]
    _number([part for part in parts if isinstance(part, dict)], "question")
    for part in parts:
        options = part.get("options") if isinstance(part, dict) else None
        if isinstance(options, list):
            part["options"] = [dict(one) if isinstance(one, Mapping) else {"label": str(one)} for one in options]
            _number(part["options"], "label")
    return {**given, "questions": parts}


def _number(entries: list[dict[str, Any]], field: str) -> None:
    seen: set[str] = set()
    for number, entry in enumerate(entries, 1):
        text = str(entry.get(field, ""))
        if text in seen:
            entry[field] = f"{text} ({number})"
        seen.add(str(entry.get(field, "")))
