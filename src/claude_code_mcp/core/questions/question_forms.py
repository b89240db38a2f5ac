"""A question of a session as a form, and the filled-in form as its answer. Pure.

The person decides on what the form says, so it says everything. What is too long for one form comes in several, and
only the last of them can be answered with yes.
"""

from collections.abc import Mapping
from typing import Any

from ..model.question import Answer, Choice, Question, QuestionKind, Scope
from ..model.text import Page, page_of, visible
from .form_model import FieldKind, FormField, form_schema, options_of
from .presentation import FORM_PAGE, full_text, is_whole

CONFIRM = "confirm"
_ONCE, _SESSION, _DENY = "Allow once", "Allow for this session", "Deny"
_APPROVE, _FEEDBACK = "Approve the plan", "Send feedback"
_APPROVE_EDITS, _EDITS = "Approve the plan and accept edits", "acceptEdits"
_NEXT = "Show the next part"
_REASON = FormField("reason", "Reason", "Told to Claude if you deny")
_FEEDBACK_TEXT = FormField("feedback", "Feedback", "What should change, if you send feedback")


def form_of(question: Question, *, arrays: bool = True, offset: int = 0) -> tuple[str, dict[str, Any]]:
    """The message and the schema of the form. Without `arrays`, several choices are typed as text.

    Of what is too long for one form, this is the one that begins at `offset`.
    """
    if is_whole(question):
        return full_text(question), _answer_schema(question, arrays)
    page = page_of(full_text(question), offset, FORM_PAGE)
    schema = (
        _answer_schema(question, arrays) if page.next_offset is None else form_schema(_decision(_NEXT, _DENY), _REASON)
    )
    return _page_message(page), schema


def next_offset(question: Question, offset: int) -> int | None:
    """Where the form behind the one at `offset` begins; None if that is the last."""
    return None if is_whole(question) else page_of(full_text(question), offset, FORM_PAGE).next_offset


def wants_next_page(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person wants to see more before answering."""
    return action == "accept" and (content or {}).get("decision") == _NEXT


def _page_message(page: Page) -> str:
    where = f"characters {page.offset + 1:,} to {page.offset + len(page.text):,} of {page.total:,}"
    if page.next_offset is None:
        return f"The last part: {where}.\n\n{page.text}"
    rest = f'"{_NEXT}" shows what follows; it can be allowed only after all of it was shown.'
    return f"THIS IS NOT ALL OF IT: {where}. {rest}\n\n{page.text}"


def _answer_schema(question: Question, arrays: bool) -> dict[str, Any]:
    match question.kind:
        case QuestionKind.PERMISSION:
            decision = _decision(_ONCE, _SESSION, _DENY) if question.suggestions else _decision(_ONCE, _DENY)
            return form_schema(decision, _REASON)
        case QuestionKind.PLAN_REVIEW:
            edits = (_APPROVE_EDITS,) if _EDITS in question.modes else ()
            decision = _decision(_APPROVE, *edits, _FEEDBACK)
            return form_schema(decision, _FEEDBACK_TEXT)
        case QuestionKind.USER_QUESTION:
            fields = (_choice_fields(number, choice, arrays) for number, choice in enumerate(question.choices, 1))
            return form_schema(*(field for pair in fields for field in pair))


def answer_of(
    question: Question, action: str, content: Mapping[str, Any] | None, *, all_shown: bool = True
) -> Answer | None:
    """The answer in a form; None if the person only put it away, which leaves the question open. Before `all_shown`
    it can only be denied."""
    filled = content or {}
    if action == "decline" or (action == "accept" and filled.get("decision") == _DENY):
        return Answer(allow=False, message=_REASON.entered_text(filled))
    if action != "accept" or not all_shown:
        return None
    match question.kind:
        case QuestionKind.PERMISSION:
            decision = filled.get("decision")
            if decision not in (_ONCE, _SESSION):
                return Answer(allow=False, message=_REASON.entered_text(filled))
            return Answer(allow=True, scope=Scope.SESSION if decision == _SESSION else Scope.ONCE)
        case QuestionKind.PLAN_REVIEW:
            decision = filled.get("decision")
            mode = _EDITS if decision == _APPROVE_EDITS else None
            approved = decision in (_APPROVE, _APPROVE_EDITS)
            return Answer(approved, message=_FEEDBACK_TEXT.entered_text(filled), mode=mode)
        case QuestionKind.USER_QUESTION:
            return _question_answer(question, filled)


def confirmation(question: str, title: str) -> tuple[str, dict[str, Any]]:
    """The form that asks for a plain yes; `title` says in short what it would allow."""
    field = FormField(CONFIRM, title, kind=FieldKind.BOOLEAN, required=True)
    return visible(question), form_schema(field)


def confirmed(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person said yes."""
    return action == "accept" and bool((content or {}).get(CONFIRM))


def _decision(*labels: str) -> FormField:
    return FormField("decision", "Decision", options=options_of(*labels), required=True)


def _choice_fields(number: int, choice: Choice, arrays: bool = True) -> tuple[FormField, FormField]:
    """The two fields for one part of a user question: the choice among what Claude offers, and a text instead of it."""
    title, asked = visible(choice.header or choice.question), visible(choice.question)
    kind, options = FieldKind.STRING, options_of(*choice.labels)
    if choice.several and options and arrays:
        kind = FieldKind.ARRAY
    elif choice.several and options:
        asked, options = f"{asked} (one or more of: {', '.join(choice.labels)})", {}
    answer = FormField(f"answer{number}", title, asked, kind, options)
    return answer, FormField(f"other{number}", "Something else", "Your own answer instead")


def _question_answer(question: Question, filled: Mapping[str, Any]) -> Answer:
    answers: dict[str, str | list[str]] = {}
    for number, choice in enumerate(question.choices, 1):
        answer, other = _choice_fields(number, choice)
        entered = other.entered(filled) or answer.entered(filled)
        if entered is not None:
            answers[choice.question] = entered
    return Answer(allow=True, answers=answers)
