"""What an answer means to the CLI: the body of a `can_use_tool` response. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..model.question import Answer, GivenAnswers, Question, QuestionKind, Scope

_DENIALS = {
    QuestionKind.PERMISSION: "The user denied this.",
    QuestionKind.PLAN_REVIEW: "The user did not approve the plan.",
    QuestionKind.USER_QUESTION: "The user chose not to answer; go on with your best judgement.",
}


def reply(question: Question, answer: Answer) -> dict[str, Any]:
    """The response for the CLI; InvalidArgument if the answer does not fit the question."""
    if not answer.allow:
        return _denial(question, answer)
    body: dict[str, Any] = {"behavior": "allow", "updatedInput": _input(question, answer)}
    if answer.scope is Scope.SESSION:
        body["updatedPermissions"] = list(_for_session(question))
    return body


def _denial(question: Question, answer: Answer) -> dict[str, Any]:
    if answer.updated_input is not None or answer.answers is not None:
        raise InvalidArgument("A denial takes a reason, not an updated input or answers.")
    body = {"behavior": "deny", "message": answer.message or _DENIALS[question.kind]}
    return {**body, "interrupt": True} if answer.interrupt else body


def _for_session(question: Question) -> Sequence[Mapping[str, Any]]:
    if not question.suggestions:
        raise InvalidArgument(
            "Claude Code offers no rule that would allow this for the whole session; allow it once instead."
        )
    # The CLI would write some of its suggestions into the project's settings; what was allowed for a session
    # must not outlive it.
    return [{**suggestion, "destination": "session"} for suggestion in question.suggestions]


def _input(question: Question, answer: Answer) -> dict[str, Any]:
    given = dict(question.tool_input if answer.updated_input is None else answer.updated_input)
    if answer.answers is not None:
        given["answers"] = answers_by_text(question, answer.answers)
    elif question.kind is QuestionKind.USER_QUESTION and isinstance(given.get("answers"), list | dict):
        given["answers"] = answers_by_text(question, given["answers"])
    return {**question.tool_input, **given} if question.kind is QuestionKind.USER_QUESTION else given


def answers_by_text(question: Question, answers: GivenAnswers) -> dict[str, str]:
    """Answers keyed by question text, several labels joined, from a mapping or a list in order."""
    if question.kind is not QuestionKind.USER_QUESTION:
        raise InvalidArgument(f"Answers fit a user question; this is a {question.kind}.", field="answers")
    if isinstance(answers, Mapping):
        return {_text_of(question, key): _joined(value) for key, value in answers.items()}
    if len(answers) > len(question.choices):
        raise InvalidArgument(f"{len(answers)} answers for {len(question.choices)} question(s).", field="answers")
    pairs = zip(question.choices, answers, strict=False)
    return {choice.question: _joined(value) for choice, value in pairs}


def _text_of(question: Question, key: str) -> str:
    """The text of the question that a key means: its text, its header or its number from 1."""
    for number, choice in enumerate(question.choices, 1):
        if key in (choice.question, choice.header, str(number)):
            return choice.question
    known = ", ".join(repr(choice.question) for choice in question.choices)
    raise InvalidArgument(f"There is no question {key!r}; there is {known}.", field="answers")


def _joined(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)
