"""A question of a session as a form, and the filled-in form as its answer. Pure.

The person decides based on the form, so it contains everything. Long content is split into several forms, and only the
last one can approve.
"""

from collections.abc import Mapping
from typing import Any

from ..model.question import Answer, Question
from ..model.text import Page, page_of, visible
from .form_model import FieldKind, FormField, form_schema
from .kinds import DENY, REASON, decision_field, full_text, kind_class
from .presentation import FORM_PAGE, is_whole

CONFIRM = "confirm"
_NEXT = "Show the next part"


def form_of(question: Question, *, arrays: bool = True, offset: int = 0) -> tuple[str, dict[str, Any]]:
    """The message and the schema of the form. Without `arrays`, several choices are typed as text. If the content is
    too long for one form, this is the form that begins at `offset`."""
    answer_schema = form_schema(*kind_class(question.kind).fields(question, arrays=arrays))
    if is_whole(question):
        return full_text(question), answer_schema
    page = page_of(full_text(question), offset, FORM_PAGE)
    if page.next_offset is None:
        return _page_message(page), answer_schema
    return _page_message(page), form_schema(decision_field(_NEXT, DENY), REASON)


def next_offset(question: Question, offset: int) -> int | None:
    """The offset of the next form after the one at `offset`; None if that is the last."""
    return None if is_whole(question) else page_of(full_text(question), offset, FORM_PAGE).next_offset


def wants_next_page(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person wants to see more before answering."""
    return action == "accept" and (content or {}).get("decision") == _NEXT


def _page_message(page: Page) -> str:
    where = f"characters {page.offset + 1:,} to {page.offset + len(page.text):,} of {page.total:,}"
    if page.next_offset is None:
        return f"The last part: {where}.\n\n{page.text}"
    rest = f'"{_NEXT}" shows more. You can allow it only after you have seen all of it.'
    return f"THIS IS ONLY A PART: {where}. {rest}\n\n{page.text}"


def answer_of(
    question: Question, action: str, content: Mapping[str, Any] | None, *, all_shown: bool = True
) -> Answer | None:
    """The answer in a form; None if the person only dismissed it, which leaves the question open. Before `all_shown` it
    can only be a denial."""
    filled = content or {}
    if action == "decline" or (action == "accept" and filled.get("decision") == DENY):
        return Answer(allow=False, message=REASON.entered_text(filled))
    if action != "accept" or not all_shown:
        return None
    return kind_class(question.kind).answer_in(question, filled)


def confirmation(question: str, title: str) -> tuple[str, dict[str, Any]]:
    """A yes/no form; `title` summarizes what a yes would allow."""
    field = FormField(CONFIRM, title, kind=FieldKind.BOOLEAN, required=True)
    return visible(question), form_schema(field)


def confirmed(action: str, content: Mapping[str, Any] | None) -> bool:
    """Whether the person said yes."""
    return action == "accept" and bool((content or {}).get(CONFIRM))
