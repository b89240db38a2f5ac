"""Open questions as callers see them in reports."""

from collections.abc import Sequence
from typing import Any

from ...core.model.question import Question
from ...core.model.text import as_json, iso
from ...core.questions.kinds import WireType, kind_class
from .output import ToolOutput
from .paging import ResultParts

_MAX_RULES = 20


class PendingInput(ToolOutput):
    input_id: str
    type: WireType
    tool_name: str
    tool_input: dict[str, Any]
    description: str
    reason: str | None = None
    blocked_path: str | None = None
    file_diff: str | None = None
    file_note: str | None = None
    modes: list[str] | None = None
    can_allow_for_session: bool | None = None
    session_rules: list[str] | None = None
    expires_at: str | None = None


def pending_inputs(questions: Sequence[Question], parts: ResultParts, start: int = 0) -> list[PendingInput]:
    """Open questions as callers see them, with their complete input where it fits."""
    return [
        PendingInput(
            input_id=question.id,
            type=kind_class(question.kind).wire_type,
            tool_name=question.tool_name,
            tool_input=tool_input,
            description=question.description,
            reason=question.reason,
            blocked_path=question.blocked_path,
            file_diff=(question.change.diff or None) if question.change else None,
            file_note=(question.change.note or None) if question.change else None,
            modes=[*question.modes] or None,
            can_allow_for_session=bool(question.suggestions) or None,
            session_rules=_rules(question),
            expires_at=None if question.deadline is None else iso(question.deadline),
        )
        for question, tool_input in parts.questions(questions, start)
    ]


def _rules(question: Question) -> list[str] | None:
    rules = [*question.session_rules]
    more = [f"and {len(rules) - _MAX_RULES} more"] if len(rules) > _MAX_RULES else []
    return [*rules[:_MAX_RULES], *more] or None


def render_inputs(pending_inputs: list[PendingInput] | None) -> list[str]:
    """The text lines for open questions, each with its whole input."""
    return [
        f"WAITING [{entry.input_id}] {entry.type}: {entry.description}\ninput: {as_json(entry.tool_input)}"
        for entry in pending_inputs or []
    ]
