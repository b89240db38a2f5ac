"""The answer to a question as the CLI takes it: the body of a `can_use_tool` response. Pure.

An answer that does not fit its question is refused with InvalidArgument, and nothing is sent.
"""

import json
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..model.question import Answer, Question, QuestionKind, Scope
from ..model.text import one_line
from .presentation import refuse_cut

_DENIALS = {
    QuestionKind.PERMISSION: "The user denied this.",
    QuestionKind.PLAN_REVIEW: "The user did not approve the plan.",
    QuestionKind.USER_QUESTION: "The user chose not to answer; go on with your best judgement.",
}
_LONGEST_QUESTION = 200


def reply(question: Question, answer: Answer) -> dict[str, Any]:
    """The response for the CLI; InvalidArgument if the answer does not fit the question."""
    if not answer.allow:
        return _denial(question, answer)
    body: dict[str, Any] = {"behavior": "allow", "updatedInput": _updated_input(question, answer)}
    if answer.scope is Scope.SESSION:
        body["updatedPermissions"] = _session_permissions(question)
    mode = chosen_mode(question, answer)
    if mode is not None:
        change = {"type": "setMode", "mode": mode, "destination": "session"}
        body["updatedPermissions"] = [*body.get("updatedPermissions", ()), change]
    return body


def chosen_mode(question: Question, answer: Answer) -> str | None:
    """The permission mode that an allowance leads to; None leaves it as it is, or to Claude Code."""
    if answer.mode is not None and question.kind is not QuestionKind.PLAN_REVIEW:
        raise InvalidArgument(
            "permission_mode: only the approval of a plan comes with a mode.", field="permission_mode"
        )
    if answer.mode is not None and answer.mode not in question.modes:
        choices = f"it can be {', '.join(question.modes)}" if question.modes else "none can be chosen here"
        raise InvalidArgument(f"permission_mode: {answer.mode!r} cannot follow; {choices}.", field="permission_mode")
    return answer.mode or (question.mode_after if question.kind is QuestionKind.PLAN_REVIEW else None)


def _denial(question: Question, answer: Answer) -> dict[str, Any]:
    if answer.updated_input is not None or answer.answers is not None or answer.mode is not None:
        raise InvalidArgument("A denial takes a reason, not an updated input, answers or a mode.")
    body = {"behavior": "deny", "message": answer.message or _DENIALS[question.kind]}
    return {**body, "interrupt": True} if answer.interrupt else body


def _session_permissions(question: Question) -> list[dict[str, Any]]:
    # The CLI would write some of its suggestions into the project's settings; what was allowed for a session
    # must not outlive it.
    suggestions = [rule for rule in question.suggestions if isinstance(rule, Mapping)]
    if not suggestions:
        raise InvalidArgument(
            "Claude Code offers no rule that would allow this for the whole session; allow it once instead."
        )
    return [{**rule, "destination": "session"} for rule in suggestions]


def _updated_input(question: Question, answer: Answer) -> dict[str, Any]:
    if answer.updated_input is not None:
        if not answer.updated_input and question.kind is QuestionKind.PERMISSION and question.tool_input:
            # Claude Code takes an empty object for "unchanged" and would run what was asked.
            raise InvalidArgument("updated_input: must not be empty; deny the call instead.", field="updated_input")
        refuse_cut(answer.updated_input, question.tool_input)
    edited = dict(question.tool_input if answer.updated_input is None else answer.updated_input)
    if question.kind is not QuestionKind.PERMISSION:
        # A plan or a set of questions is edited in part: what is left out stays as it was.
        edited = {**question.tool_input, **edited}
    answers: object = answer.answers
    if answers is None and question.kind is QuestionKind.USER_QUESTION:
        answers = (answer.updated_input or {}).get("answers")
    by_text = answers_by_text(question, answers) if answers is not None else {}
    if not any(by_text.values()) and _needs_answers(question):
        asked = "; ".join(one_line(choice.question, _LONGEST_QUESTION) for choice in question.choices)
        raise _misfit(f"answers: required to allow this question ({asked}); deny it to leave it unanswered.")
    return edited if answers is None else {**edited, "answers": by_text}


def _needs_answers(question: Question) -> bool:
    """Whether to allow it says nothing by itself. Not so for a form of which no field has to be filled in."""
    return any(choice.field is None or choice.field.get("required") for choice in question.choices)


def answers_by_text(question: Question, answers: object) -> dict[str, str]:
    """Answers keyed by question text, several labels joined, from a mapping or a list in order.

    A mapping goes by the text of a question, its header or its number from 1. A text alone answers a question
    that is the only one.
    """
    return {text: _joined(value) for text, value in labels_by_text(question, answers).items()}


def labels_by_text(question: Question, answers: object) -> dict[str, str | Sequence[str]]:
    """Answers keyed by question text like `answers_by_text`, but with several labels still in a list."""
    if question.kind is not QuestionKind.USER_QUESTION:
        raise _misfit(f"Answers fit a user question; this is a {question.kind}.")
    if isinstance(answers, Mapping):
        return _from_mapping(question, answers)
    if isinstance(answers, str) and len(question.choices) == 1:
        answers = [answers]
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        raise _misfit("Answers are a mapping from question to answer, or a list in the order of the questions.")
    if len(answers) > len(question.choices):
        raise _misfit(f"{len(answers)} answers for {len(question.choices)} question(s).")
    return {choice.question: _labels(value) for choice, value in zip(question.choices, answers, strict=False)}


def _from_mapping(question: Question, answers: Mapping[Any, object]) -> dict[str, str | Sequence[str]]:
    by_text: dict[str, str | Sequence[str]] = {}
    for key, value in answers.items():
        text = _question_text(question, str(key))
        if text in by_text:
            raise _misfit(f"{text!r} is answered twice.")
        by_text[text] = _labels(value)
    return by_text


def _question_text(question: Question, key: str) -> str:
    """The text of the part of a question that is meant by its text, its header or its number."""
    texts = [choice.question for choice in question.choices]
    headers = {choice.header: choice.question for choice in reversed(question.choices) if choice.header}
    numbers = {str(number): text for number, text in enumerate(texts, 1)}
    if key in texts:
        return key
    if key in headers or key in numbers:
        return headers.get(key) or numbers[key]
    raise _misfit(f"There is no question {key!r}; there is {', '.join(map(repr, texts))}.")


def _labels(value: object) -> str | Sequence[str]:
    """A label or free text, or several labels."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence) or not all(isinstance(label, str) for label in value):
        raise _misfit(f"An answer is a text or a list of labels, not {value!r}.")
    return value


def _joined(value: str | Sequence[str]) -> str:
    """An answer as the CLI takes it: several labels separated by commas."""
    return value if isinstance(value, str) else ", ".join(value)


def _misfit(why: str) -> InvalidArgument:
    return InvalidArgument(why, field="answers")


def put_back(updated: Any, shown: Any, original: Any, mark: str) -> Any:
    """The input that a caller edited on the basis of a redacted one, with the secrets back in it.

    Every part that is still as it was `shown` becomes the `original` again; the items of a list that got longer or
    shorter are found by what they are. InvalidArgument if the caller changed or added a text and left the `mark` of a
    secret in it: what belongs there is not known, and the tool would be run with the mark itself.
    """
    # Compared as a whole first: a part that was not touched becomes the original with its secrets.
    if updated == shown:
        return original
    if isinstance(updated, Mapping) and isinstance(shown, Mapping) and isinstance(original, Mapping):
        return {
            key: put_back(value, shown[key], original[key], mark)
            if key in shown and key in original
            else _without_mark(value, mark, hidden=shown != original)
            for key, value in updated.items()
        }
    if isinstance(updated, list) and isinstance(shown, list) and isinstance(original, list | tuple):
        if len(updated) == len(shown) == len(original):
            return [put_back(*items, mark) for items in zip(updated, shown, original, strict=True)]
        return _items_put_back(updated, shown, original, mark)
    return _without_mark(updated, mark, hidden=shown != original)


def _items_put_back(updated: list[Any], shown: list[Any], original: Sequence[Any], mark: str) -> list[Any]:
    """Of a list with more or fewer items, where the places say nothing any more."""
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for at, item in enumerate(shown[: len(original)]):
        places[json.dumps(item, sort_keys=True)].append(at)
    hidden = shown != list(original)
    found = []
    for item in updated:
        same = places.get(json.dumps(item, sort_keys=True))
        found.append(original[same.popleft()] if same else _without_mark(item, mark, hidden=hidden))
    return found


def _without_mark(value: Any, mark: str, *, hidden: bool) -> Any:
    """The value, unless the mark of a secret is in it where one was hidden: InvalidArgument then."""
    # The mark has nothing in it that JSON would escape.
    if hidden and mark in json.dumps(value, ensure_ascii=False):
        raise InvalidArgument(
            f"updatedInput changes a text in which {mark} stands for a secret that was not shown. "
            "Leave that text as it is, or write it whole.",
            field="updatedInput",
        )
    return value
