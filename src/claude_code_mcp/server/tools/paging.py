"""Results that are too long for one report: truncation, and reading the rest in pages.

Every part has a name: `result`, `error`, `structuredOutput`, the id of an open question (its input, as JSON),
`output:<number>` (one line of output) or `pendingInputs` (the list of open questions). A report lists the parts that it
truncated under `truncated`. The pages of a part together are the complete part. Secrets are removed before the text is
split into pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from ...core.errors import InvalidArgument
from ...core.model.events import Output
from ...core.model.question import Question
from ...core.model.text import as_json, cut_data, mark, page_of
from ...core.questions.presentation import input_size, shown_input, without_secrets
from ...core.redaction import Redactor
from ...core.sessions.session import Session
from .output import declared

TruncatedPart = Annotated[dict[str, Any], declared({"part": "string", "nextOffset": "integer", "total": "integer"})]
"""A truncated part, and the offset of its first unread character."""
PartPage = Annotated[
    dict[str, Any],
    declared({"name": "string", "text": "string", "offset": "integer", "total": "integer"}, {"nextOffset": "integer"}),
]
"""A page of such a part."""
PAGE = 64_000
"""Characters of a page."""
PENDING = "pendingInputs"
_INPUT_BUDGET = 512 << 10
_MAX_QUESTIONS = 50
_OUTPUT = "output:"


class ResultParts:
    """Truncates the parts of one report and records what was truncated. Every part is redacted first."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._cut: list[dict[str, Any]] = []

    @property
    def truncated(self) -> list[dict[str, Any]] | None:
        """Every truncated part, with the offset of its first unread character."""
        return self._cut or None

    def _note(self, part: str, next_offset: int, total: int) -> None:
        self._cut.append({"part": part, "nextOffset": next_offset, "total": total})

    def text(self, part: str, text: str, limit: int) -> str:
        """The text if it is short enough, otherwise its start and a mark."""
        page = page_of(self._redactor.text(text), 0, limit)
        if page.next_offset is None:
            return page.text
        self._note(part, page.next_offset, page.total)
        return page.text + mark(page.total - page.next_offset, page.total, part)

    def line(self, event: Output, limit: int) -> str:
        """The text of a line of output, cut to the limit."""
        return self.text(f"{_OUTPUT}{event.seq}", event.line, limit)

    def data(self, part: str, value: Any, limit: int) -> Any:
        """A JSON value if it is short enough, otherwise only a note."""
        text = "" if value is None else as_json(self._redactor.data(value))
        if len(text) <= limit:
            return value
        self._note(part, 0, len(text))
        return None

    def shortened(self, values: Sequence[Mapping[str, Any]], limit: int) -> list[Any]:
        """JSON values for information only, with marks where they were truncated; the rest cannot be read."""
        clean: list[Any] = self._redactor.data(list(values))
        return list(cut_data(clean, limit, limit // 8)) if len(as_json(clean)) > limit else clean

    def questions(self, questions: Sequence[Question], start: int = 0) -> list[tuple[Question, dict[str, Any]]]:
        """Open questions without secrets, each with its input: complete while the budget lasts, then truncated."""
        left, shown = _INPUT_BUDGET, []
        for question in questions[start : start + _MAX_QUESTIONS]:
            clean = without_secrets(question, self._redactor)
            tool_input, whole = shown_input(clean, room=left)
            size = len(clean.change.diff) if clean.change is not None else 0
            if size > left - input_size(clean) or not whole:
                # The complete input can be read in pages; the file change only helps to understand it.
                clean = replace(clean, change=None)
            else:
                left -= size
            if whole:
                left -= input_size(clean)
            else:
                left = max(0, left - PAGE)
                self._note(question.id, 0, len(as_json(clean.tool_input)))
            shown.append((clean, tool_input))
        if start + len(shown) < len(questions):
            self._note(PENDING, start + len(shown), len(questions))
        return shown


def read_part(session: Session, part: str, offset: int, redactor: Redactor) -> dict[str, Any]:
    """A page of a part; InvalidArgument if there is no such part, or no longer."""
    page = page_of(_part_text(session, part, redactor), offset, PAGE)
    more = {} if page.next_offset is None else {"nextOffset": page.next_offset}
    return {"name": part, "text": page.text, "offset": page.offset, **more, "total": page.total}


def _part_text(session: Session, part: str, redactor: Redactor) -> str:
    question = next((question for question in session.questions if question.id == part), None)
    if question is not None:
        return as_json(redactor.data(question.tool_input))
    if part.startswith(_OUTPUT):
        number = part.removeprefix(_OUTPUT)
        if number.isascii() and number.isdigit() and len(number) < 16:
            found = next(iter(session.events.after(int(number) - 1)), None)
            if isinstance(found, Output) and found.seq == int(number):
                return redactor.text(found.line)
    outcome = None if session.busy else session.outcome
    if outcome is not None:
        if part == "result":
            return redactor.text(outcome.result)
        if part == "error":
            return redactor.text(outcome.detail)
        if part == "structuredOutput":
            return as_json(redactor.data(outcome.structured_output))
    raise InvalidArgument(
        f"part: session {session.id} has no part {part[:100]!r} now. See `truncated` in a report for its parts.",
        field="part",
    )


def render_page(page: dict[str, Any]) -> str:
    """The text of a page, with a line about its range."""
    until = page["offset"] + len(page["text"])
    rest = f"; the next begins at offset {page['nextOffset']}" if "nextOffset" in page else "; end"
    return f"{page['text']}\n[{page['name']}: characters {page['offset']} to {until} of {page['total']}{rest}]"


def render_truncated(truncated: list[dict[str, Any]] | None) -> list[str]:
    """The text lines that list truncated parts and how to read the rest."""
    return [
        f'[truncated: part "{cut["part"]}" has {cut["total"]}, read on with part and offset {cut["nextOffset"]}]'
        for cut in truncated or []
    ]
