"""Parts of a report that are too long for one answer: what was cut of them, and how the whole is read, page by page.

Every part has a name: `result`, `error`, `structuredOutput`, the id of an open question (its input, as JSON),
`output:<number>` (one line of output) or `pendingInputs` (the list of open questions). A report names those it cut
under `truncated`; the pages of a part, one after the other, are the whole. Secrets are taken out before that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import InvalidArgument
from ...model.events import Output
from ...model.question import Question
from ...model.text import as_json, cut_data, mark, page_of
from ...questions.presentation import Redacts, input_size, shown_input, without_secrets
from ...sessions.session import Session

PAGE = 64_000
"""Characters of a page."""
PENDING = "pendingInputs"
_INPUTS_AT_ONCE = 512 << 10
_QUESTIONS_AT_ONCE = 50
_OUTPUT = "output:"


class ResultParts:
    """Puts a report together and notes what it cut."""

    def __init__(self, redactor: Redacts) -> None:
        self._redactor = redactor
        self._cut: list[dict[str, Any]] = []

    @property
    def truncated(self) -> list[dict[str, Any]] | None:
        """Every part that is not here whole, and where its first unread character is."""
        return self._cut or None

    def _note(self, part: str, next_offset: int, total: int) -> None:
        self._cut.append({"part": part, "nextOffset": next_offset, "total": total})

    def text(self, part: str, text: str, longest: int) -> str:
        """The text if it is not too long, else its beginning and a mark."""
        page = page_of(self._redactor.text(text), 0, longest)
        if page.next_offset is None:
            return page.text
        self._note(part, page.next_offset, page.total)
        return page.text + mark(page.total - page.next_offset, page.total, part)

    def line(self, event: Output, longest: int) -> str:
        """A line of output."""
        return self.text(f"{_OUTPUT}{event.seq}", event.line, longest)

    def data(self, part: str, value: Any, longest: int) -> Any:
        """A JSON value if it is not too long, else nothing but a note."""
        text = "" if value is None else as_json(self._redactor.data(value))
        if len(text) <= longest:
            return value
        self._note(part, 0, len(text))
        return None

    def shortened(self, values: Sequence[Mapping[str, Any]], longest: int) -> list[Any]:
        """JSON values about what is past and that nobody decides on: with marks in them where they are too long."""
        clean: list[Any] = self._redactor.data(list(values))
        return list(cut_data(clean, longest, longest // 8)) if len(as_json(clean)) > longest else clean

    def questions(self, questions: Sequence[Question], start: int = 0) -> list[tuple[Question, dict[str, Any]]]:
        """Open questions as they may be shown, each with its input: whole while there is room, then cut and noted."""
        room, shown = _INPUTS_AT_ONCE, []
        for question in questions[start : start + _QUESTIONS_AT_ONCE]:
            clean = without_secrets(question, self._redactor)
            given, whole = shown_input(clean, room=room)
            if whole:
                room -= input_size(clean)
            else:
                room = max(0, room - 64_000)
                self._note(question.id, 0, len(as_json(clean.tool_input)))
            shown.append((clean, given))
        if start + len(shown) < len(questions):
            self._note(PENDING, start + len(shown), len(questions))
        return shown


def read_part(session: Session, part: str, offset: int, redactor: Redacts) -> dict[str, Any]:
    """A page of a part; InvalidArgument if there is no such part, or no longer."""
    page = page_of(_whole(session, part, redactor), offset, PAGE)
    more = {} if page.next_offset is None else {"nextOffset": page.next_offset}
    return {"name": part, "text": page.text, "offset": page.offset, **more, "total": page.total}


def _whole(session: Session, part: str, redactor: Redacts) -> str:
    question = next((one for one in session.questions if one.id == part), None)
    if question is not None:
        return as_json(redactor.data(question.tool_input))
    if part.startswith(_OUTPUT):
        return redactor.text(_line(session, part))
    outcome = None if session.busy else session.outcome
    if outcome is not None:
        if part == "result":
            return redactor.text(outcome.result)
        if part == "error":
            return redactor.text(outcome.detail)
        if part == "structuredOutput":
            return as_json(redactor.data(outcome.structured_output))
    raise _unknown(session, part)


def _line(session: Session, part: str) -> str:
    number = part.removeprefix(_OUTPUT)
    if not (number.isascii() and number.isdigit() and len(number) < 16):
        raise _unknown(session, part)
    found = next(iter(session.events.after(int(number) - 1)), None)
    if not isinstance(found, Output) or found.seq != int(number):
        raise _unknown(session, part)
    return found.line


def _unknown(session: Session, part: str) -> InvalidArgument:
    return InvalidArgument(
        f"part: session {session.id} has no {part[:100]!r} now. What was cut of a report is named in its truncated.",
        field="part",
    )


def told_page(page: dict[str, Any]) -> str:
    """A page as text."""
    until = page["offset"] + len(page["text"])
    rest = f"; the next begins at offset {page['nextOffset']}" if "nextOffset" in page else "; this is the end"
    return f"{page['text']}\n[{page['name']}: characters {page['offset']} to {until} of {page['total']}{rest}]"


def told_cut(truncated: list[dict[str, Any]] | None) -> list[str]:
    """Lines on what was cut."""
    return [
        f'[not all: part "{one["part"]}" has {one["total"]}, read on with part and offset {one["nextOffset"]}]'
        for one in truncated or []
    ]
