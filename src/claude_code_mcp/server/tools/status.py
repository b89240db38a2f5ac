"""The state of a session as the session tools report it, within an output budget. Pure."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field

from ...errors import InvalidArgument
from ...model.events import Event, Gap, Output, Stalled
from ...model.question import Question
from ...model.states import SESSION_TOOL_STATUS, State
from ...model.text import as_json, cut, iso
from ...questions.presentation import Redacts
from ...sessions.messages import UserMessage
from ...sessions.session import Session
from .base import ToolOutput
from .paging import ResultParts, told_cut, told_page

Status = Literal["running", "waiting_for_input", "completed", "error", "interrupted"]

OUTPUT_BUDGET = 24_000
FROM_THE_START = "0"
_STARTS_OVER = (
    "The cursor is from before the session was last loaded: the output starts over with all that is kept; lines may "
    "come twice, and lines in between may be missing."
)
_LINES = 50
_LONGEST_RESULT = 24_000
_LONGEST_ERROR = 4_000
_LONGEST_STRUCTURE = 256 << 10
_TOOLS_SHOWN = 20
_LONGEST_DROPPED = 500


class ToolUseEvent(ToolOutput):
    tool_name: str
    status: str


class PendingInput(ToolOutput):
    input_id: str
    type: Literal["permission", "plan_review", "user_question"]
    tool_name: str
    tool_input: dict[str, Any]
    description: str
    can_allow_for_session: bool | None = None
    expires_at: str | None = None


class ErrorInfo(ToolOutput):
    code: str
    message: str


class SessionReport(ToolOutput):
    """What every session tool returns. Only what applies is there."""

    session_id: str | None = None
    previous_session_id: str | None = None
    status: Status | None = None
    result: str | None = None
    recent_output: list[str] | None = None
    pending_inputs: list[PendingInput] | None = None
    tool_use_events: list[ToolUseEvent] | None = None
    cost_usd: float | None = None
    tokens: dict[str, int] | None = None
    turn_count: int | None = None
    next_cursor: str | None = Field(None, description="Pass as cursor to get only what is new")
    has_more: bool | None = None
    stalled_seconds: int | None = None
    retrying: str | None = None
    structured_output: Any = None
    notice: str | None = None
    truncated: list[dict[str, Any]] | None = None
    part: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return render(self)


class Acknowledgement(ToolOutput):
    """The short form: enough to go on. A call that waited returns the fields of a full report too."""

    session_id: str | None = None
    status: Status | None = None
    error: ErrorInfo | None = None


class Interruption(Acknowledgement):
    """What an interruption came to; `dropped_messages` are the beginnings of those that will never run."""

    dropped_messages: list[str] | None = None


def interruption(session: Session, dropped: Iterable[UserMessage]) -> Interruption:
    beginnings = [cut(one.text, _LONGEST_DROPPED) for one in dropped]
    return Interruption(session_id=session.id, status=status_of(session), dropped_messages=beginnings or None)


def _previous(session: Session, asked_as: str | None) -> str | None:
    return asked_as if asked_as is not None and asked_as != session.id else None


def status_of(session: Session) -> Status:
    return _status(session.state)


def _status(state: State) -> Status:
    return SESSION_TOOL_STATUS[state]  # type: ignore[return-value]  # the table's values are these words


def report(
    session: Session,
    redactor: Redacts,
    *,
    lines: int | None = None,
    cursor: str | None = None,
    notice: str | None = None,
    asked_as: str | None = None,
    delivery: UserMessage | None = None,
) -> SessionReport:
    """The whole report: output after `cursor` (no more than `lines` of it), or the last `lines` lines. What is too long
    for it is named in `truncated`.

    A cursor of an earlier life of the session gets all that is kept, and a notice: nothing is ever skipped silently.
    For a call that sent a message, status and result are of that message, as soon as it has an outcome.
    """
    parts = ResultParts(redactor)
    start, known = _start(session, cursor)
    output, next_cursor, more = _output(session, lines, start, parts)
    notice = notice if known else " ".join(filter(None, (notice, _STARTS_OVER)))
    own = delivery.outcome.result() if delivery is not None and delivery.outcome.done() else None
    outcome = own or (None if session.busy else session.outcome)
    usage = session.usage.total
    return SessionReport(
        session_id=session.id,
        previous_session_id=_previous(session, asked_as),
        status=_status(own.state) if own is not None else status_of(session),
        result=parts.text("result", outcome.result, _LONGEST_RESULT) if outcome and outcome.result else None,
        recent_output=output,
        pending_inputs=pending_inputs(session.questions, parts),
        tool_use_events=_tools(session),
        cost_usd=round(session.usage.cost_usd, 6),
        tokens={
            "input": usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens,
            "output": usage.output_tokens,
        },
        turn_count=session.model_turns,
        next_cursor=session.events.cursor(next_cursor),
        has_more=more or None,
        stalled_seconds=_silent_seconds(session) if session.stalled else None,
        retrying=_retrying(session),
        structured_output=parts.data("structuredOutput", outcome.structured_output, _LONGEST_STRUCTURE)
        if outcome
        else None,
        error=ErrorInfo(code=str(outcome.code), message=parts.text("error", outcome.detail, _LONGEST_ERROR))
        if outcome and not outcome.ok
        else None,
        notice=notice,
        truncated=parts.truncated,
    )


def _silent_seconds(session: Session) -> int:
    """How long nothing was heard: since the stall was noticed, and what it had lasted by then."""
    noticed = session.events.latest(Stalled, 1)
    return int(sum(time.time() - stall.at + stall.seconds for stall in noticed if isinstance(stall, Stalled)))


def _tools(session: Session) -> list[ToolUseEvent]:
    recent = list(session.readable_lines.tools.values())[-_TOOLS_SHOWN:]
    return [ToolUseEvent(tool_name=tool.name, status=tool.status) for tool in recent]


def _retrying(session: Session) -> str | None:
    retry = session.retrying
    if retry is None:
        return None
    of = f" of {retry.of}" if retry.of else ""
    return f"API error {retry.status or ''}: attempt {retry.attempt}{of}, next in {retry.delay_ms / 1000:.1f} s"


def pending_inputs(questions: Sequence[Question], parts: ResultParts, start: int = 0) -> list[PendingInput]:
    """Open questions as callers see them, with their whole input where there is room for it."""
    return [
        PendingInput(
            input_id=question.id,
            type=str(question.kind),
            tool_name=question.tool_name,
            tool_input=given,
            description=question.description,
            can_allow_for_session=bool(question.suggestions) or None,
            expires_at=None if question.deadline is None else iso(question.deadline),
        )
        for question, given in parts.questions(questions, start)
    ]


def _start(session: Session, cursor: str | None) -> tuple[int | None, bool]:
    """The number behind which output is wanted, and whether the cursor is of this log."""
    if cursor is None or cursor == FROM_THE_START:
        return (None if cursor is None else 0), True
    try:
        position = session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier call.", field="cursor") from None
    return position or 0, position is not None


def _output(session: Session, lines: int | None, start: int | None, parts: ResultParts) -> tuple[list[str], int, bool]:
    last = session.events.last_seq
    if start is None:
        latest = session.events.latest(Output, _LINES if lines is None else lines)
        shown, _, _ = _within_budget(reversed(latest), parts)
        return shown[::-1], last, False
    shown, reached, more = _within_budget(session.events.after(start), parts, lines)
    return shown, (reached or start) if more else last, more


def _within_budget(
    events: Iterable[Event], parts: ResultParts, lines: int | None = None
) -> tuple[list[str], int, bool]:
    """Lines until the budget is used up, at least one unless `lines` forbids it; the number of the last event taken;
    whether more are left."""
    shown: list[str] = []
    left, reached = OUTPUT_BUDGET, 0
    for event in events:
        size = _size(event)
        if size is not None:
            if len(shown) == lines or (shown and size > left):
                return shown, reached, True
            shown.append(_line(event, parts))
            left -= len(shown[-1])
        reached = event.seq
    return shown, reached, False


def _size(event: Event) -> int | None:
    """How long its line is; None if it has none."""
    return len(event.line) if isinstance(event, Output) else 60 if isinstance(event, Gap) else None


def _line(event: Event, parts: ResultParts) -> str:
    if isinstance(event, Gap):
        return f"[{event.seq - event.first + 1} earlier events are no longer kept]"
    assert isinstance(event, Output)
    return parts.line(event, OUTPUT_BUDGET)


def render(told: SessionReport) -> str:
    """The report as text. Open questions are there with their input: some callers read nothing else."""
    if told.part is not None:
        return told_page(told.part)
    head = f"Session {told.session_id}: {told.status}"
    if told.cost_usd:
        head += f" (${told.cost_usd:.4f})"
    parts = [head, *(told.recent_output or [])]
    if told.has_more:
        parts.append(f"[more output: call claude_get_status with cursor {told.next_cursor}]")
    parts += told_inputs(told.pending_inputs)
    parts += told_cut(told.truncated)
    if told.stalled_seconds:
        parts.append(f"[nothing heard for {told.stalled_seconds} s]")
    if told.retrying:
        parts.append(f"[retrying: {told.retrying}]")
    if told.notice:
        parts.append(f"[{told.notice}]")
    if told.error:
        parts.append(f"Ended with {told.error.code}: {told.error.message}")
    return "\n".join(parts)


def told_inputs(pending_inputs: list[PendingInput] | None) -> list[str]:
    """Lines on open questions and what is to be decided."""
    return [
        f"WAITING [{one.input_id}] {one.type}: {one.description}\ninput: {as_json(one.tool_input)}"
        for one in pending_inputs or []
    ]
