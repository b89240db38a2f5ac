"""A question as an elicitation form, and the filled-in form as an answer. Pure.

A person decides on what the form shows, so it shows everything. What is too long for one form is shown in several
pages, and only the last page can be answered with an approval.
"""

from collections.abc import Mapping
from typing import Any

from ...model.question import Answer, Choice, Question, QuestionKind, Scope
from ...model.text import Page, page_of, visible
from ...questions.presentation import FORM_PAGE, is_whole, told

CONFIRM = "confirm"
_ONCE, _SESSION, _DENY = "Allow once", "Allow for this session", "Deny"
_APPROVE, _FEEDBACK = "Approve the plan", "Send feedback"
_APPROVE_EDITS, _EDITS = "Approve the plan and accept edits", "acceptEdits"
_NEXT = "Show the next part"


def form_of(question: Question, *, arrays: bool = True, offset: int = 0) -> tuple[str, dict[str, Any]]:
    """The message and the schema of the form; of a question with several pages, the one that begins at `offset`.

    Without `arrays`, which old protocol versions do not know, a choice of several is a text field.
    """
    if is_whole(question):
        return told(question), _answer_schema(question, arrays)
    page = page_of(told(question), offset, FORM_PAGE)
    schema = _answer_schema(question, arrays) if page.next_offset is None else _next_schema()
    return _page_message(page), schema


def next_offset(question: Question, offset: int) -> int | None:
    """Where the page behind the one at `offset` begins; None if that is the last."""
    return None if is_whole(question) else page_of(told(question), offset, FORM_PAGE).next_offset


def wants_next_page(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the filled-in form asks for the next page instead of answering."""
    return action == "accept" and (content or {}).get("decision") == _NEXT


def _page_message(page: Page) -> str:
    where = f"characters {page.offset + 1:,} to {page.offset + len(page.text):,} of {page.total:,}"
    if page.next_offset is None:
        return f"The last part: {where}.\n\n{page.text}"
    rest = f'"{_NEXT}" shows what follows; it can be allowed only after all of it was shown.'
    return f"THIS IS NOT ALL OF IT: {where}. {rest}\n\n{page.text}"


def _next_schema() -> dict[str, Any]:
    reason = _text("Reason", "Told to Claude if you deny")
    return _schema({"decision": _enum("Decision", (_NEXT, _DENY)), "reason": reason}, ["decision"])


def _answer_schema(question: Question, arrays: bool) -> dict[str, Any]:
    match question.kind:
        case QuestionKind.PERMISSION:
            return _permission_schema(question)
        case QuestionKind.PLAN_REVIEW:
            return _schema(
                {
                    "decision": _enum("Decision", _plan_choices(question)),
                    "feedback": _text("Feedback", "What should change, if you send feedback"),
                },
                ["decision"],
            )
        case QuestionKind.USER_QUESTION:
            return _question_schema(question, arrays)


def answer_of(
    question: Question, action: str, content: Mapping[str, Any] | None, *, all_shown: bool = True
) -> Answer | None:
    """The answer in a filled-in form; None if the person dismissed it, which leaves the question open. Unless
    `all_shown`, the only possible answer is a denial."""
    fields = content or {}
    if action == "decline" or (action == "accept" and fields.get("decision") == _DENY):
        return Answer(allow=False, message=str(fields.get("reason") or "") or None)
    if action != "accept" or not all_shown:
        return None
    match question.kind:
        case QuestionKind.PERMISSION:
            return _permission_answer(fields)
        case QuestionKind.PLAN_REVIEW:
            feedback = str(fields.get("feedback") or "") or None
            decision = fields.get("decision")
            mode = _EDITS if decision == _APPROVE_EDITS else None
            return Answer(decision in (_APPROVE, _APPROVE_EDITS), message=feedback, mode=mode)
        case QuestionKind.USER_QUESTION:
            return _question_answer(question, fields)


def confirmation() -> tuple[str, dict[str, Any]]:
    """The form that asks whether permission checks may be switched off."""
    message = (
        "A caller wants to switch permission checks off: Claude Code sessions could then run every command and change "
        "every file without asking. Allow that?"
    )
    return message, _schema({"confirm": {"type": "boolean", "title": "Switch permission checks off"}}, ["confirm"])


def confirmed(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person agreed in the form of `confirmation`."""
    return action == "accept" and bool((content or {}).get("confirm"))


def _schema(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _enum(title: str, values: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "title": title, "enum": list(values)}


def _text(title: str, description: str) -> dict[str, Any]:
    return {"type": "string", "title": title, "description": description}


def _permission_schema(question: Question) -> dict[str, Any]:
    choices = (_ONCE, _SESSION, _DENY) if question.suggestions else (_ONCE, _DENY)
    reason = _text("Reason", "Told to Claude if you deny")
    return _schema({"decision": _enum("Decision", choices), "reason": reason}, ["decision"])


def _permission_answer(fields: Mapping[str, Any]) -> Answer:
    decision = fields.get("decision")
    if decision not in (_ONCE, _SESSION):
        return Answer(allow=False, message=str(fields.get("reason") or "") or None)
    return Answer(allow=True, scope=Scope.SESSION if decision == _SESSION else Scope.ONCE)


def _plan_choices(question: Question) -> tuple[str, ...]:
    return (_APPROVE, _APPROVE_EDITS, _FEEDBACK) if _EDITS in question.modes else (_APPROVE, _FEEDBACK)


def _question_schema(question: Question, arrays: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for number, choice in enumerate(question.choices, 1):
        properties[f"answer{number}"] = _choice_schema(choice, arrays)
        properties[f"other{number}"] = _text("Something else", "Your own answer instead")
    return _schema(properties, [])


def _choice_schema(choice: Choice, arrays: bool) -> dict[str, Any]:
    title, text = visible(choice.header or choice.question), visible(choice.question)
    about = {"description": text}
    if not choice.labels:
        return _text(title, text)
    if choice.several and arrays:
        return {"type": "array", "title": title, **about, "items": {"type": "string", "enum": list(choice.labels)}}
    if choice.several:
        return _text(title, f"{text} (one or more of: {', '.join(choice.labels)})")
    return {**_enum(title, choice.labels), **about}


def _question_answer(question: Question, fields: Mapping[str, Any]) -> Answer:
    answers: dict[str, str | list[str]] = {}
    for number, choice in enumerate(question.choices, 1):
        value = fields.get(f"other{number}") or fields.get(f"answer{number}")
        if value:
            answers[choice.question] = [str(label) for label in value] if isinstance(value, list) else str(value)
    return Answer(allow=True, answers=answers)
