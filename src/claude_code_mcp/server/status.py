"""The state of a session as the session tools report it, within an output budget. Pure."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from ..model.events import Event, Gap, Output, Stalled
from ..model.question import Question
from ..model.states import SESSION_TOOL_STATUS, State
from ..sessions.delivery import Delivery
from ..sessions.session import Session
from .tool import Outcome

Status = Literal["running", "waiting_for_input", "completed", "error", "interrupted"]

OUTPUT_BUDGET = 24_000
_LINES = 50
_LONGEST_RESULT = 24_000
_LONGEST_INPUT_TEXT = 4_000
_TOOLS_SHOWN = 20
_LONGEST_DROPPED = 500


class ToolUseEvent(Outcome):
    tool_name: str
    status: str


class PendingInput(Outcome):
    input_id: str
    type: Literal["permission", "plan_review", "user_question"]
    tool_name: str
    tool_input: dict[str, Any]
    description: str
    can_allow_for_session: bool | None = None
    expires_at: float | None = None


class Problem(Outcome):
    code: str
    message: str


class SessionReport(Outcome):
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
    next_cursor: int | None = Field(None, description="Pass as cursor to get only what is new")
    has_more: bool | None = None
    stalled_seconds: int | None = None
    retrying: str | None = None
    structured_output: Any = None
    notice: str | None = None
    error: Problem | None = None

    def text(self) -> str:
        return render(self)


class Acknowledgement(Outcome):
    """The short form: enough to go on. A call that waited returns the fields of a full report too."""

    session_id: str | None = None
    status: Status | None = None
    error: Problem | None = None


class Interruption(Acknowledgement):
    """What an interruption came to; `dropped_messages` are the beginnings of those that will never run."""

    dropped_messages: list[str] | None = None


def interruption(session: Session, dropped: Iterable[Delivery]) -> Interruption:
    beginnings = [_cut(one.text, _LONGEST_DROPPED) for one in dropped]
    return Interruption(session_id=session.id, status=status_of(session), dropped_messages=beginnings or None)


def _previous(session: Session, asked_as: str | None) -> str | None:
    return asked_as if asked_as is not None and asked_as != session.id else None


def status_of(session: Session) -> Status:
    return _status(session.state)


def _status(state: State) -> Status:
    return SESSION_TOOL_STATUS[state]  # type: ignore[return-value]  # the table's values are these words


def report(
    session: Session,
    *,
    lines: int | None = None,
    cursor: int | None = None,
    notice: str | None = None,
    asked_as: str | None = None,
    delivery: Delivery | None = None,
) -> SessionReport:
    """The whole report: output after `cursor` (no more than `lines` of it), or the last `lines` lines.

    For a call that sent a message, status and result are of that message, as soon as it has an outcome.
    """
    output, next_cursor, more = _output(session, lines, cursor)
    own = delivery.outcome.result() if delivery is not None and delivery.outcome.done() else None
    outcome = own or (None if session.busy else session.outcome)
    usage = session.usage.total
    return SessionReport(
        session_id=session.id,
        previous_session_id=_previous(session, asked_as),
        status=_status(own.state) if own is not None else status_of(session),
        result=_cut(outcome.result, _LONGEST_RESULT) if outcome and outcome.result else None,
        recent_output=output,
        pending_inputs=[pending_input(question) for question in session.questions],
        tool_use_events=_tools(session),
        cost_usd=round(session.usage.cost_usd, 6),
        tokens={
            "input": usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens,
            "output": usage.output_tokens,
        },
        turn_count=session.model_turns,
        next_cursor=next_cursor,
        has_more=more or None,
        stalled_seconds=_silent_seconds(session) if session.stalled else None,
        retrying=_retrying(session),
        structured_output=outcome.structured_output if outcome else None,
        error=Problem(code=str(outcome.code), message=_cut(outcome.detail, 4000))
        if outcome and not outcome.ok
        else None,
        notice=notice,
    )


def _silent_seconds(session: Session) -> int:
    """How long nothing was heard: since the stall was noticed, and what it had lasted by then."""
    noticed = session.log.latest(Stalled, 1)
    return int(sum(time.time() - stall.at + stall.seconds for stall in noticed if isinstance(stall, Stalled)))


def _tools(session: Session) -> list[ToolUseEvent]:
    recent = list(session.narrator.tools.values())[-_TOOLS_SHOWN:]
    return [ToolUseEvent(tool_name=tool.name, status=tool.status) for tool in recent]


def _retrying(session: Session) -> str | None:
    retry = session.retrying
    if retry is None:
        return None
    of = f" of {retry.of}" if retry.of else ""
    return f"API error {retry.status or ''}: attempt {retry.attempt}{of}, next in {retry.delay_ms / 1000:.1f} s"


def pending_input(question: Question) -> PendingInput:
    """An open question as callers see it."""
    return PendingInput(
        input_id=question.id,
        type=str(question.kind),
        tool_name=question.tool_name,
        tool_input=shortened(question.tool_input),
        description=question.description,
        can_allow_for_session=bool(question.suggestions) or None,
        expires_at=question.deadline,
    )


def shortened(given: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's input with its long texts cut, so that one huge edit does not flood the caller."""
    return {key: _short(value) for key, value in given.items()}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return _cut(value, _LONGEST_INPUT_TEXT)
    if isinstance(value, Mapping):
        return shortened(value)
    return [_short(item) for item in value[:200]] if isinstance(value, list) else value


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} characters cut]"


def _output(session: Session, lines: int | None, cursor: int | None) -> tuple[list[str], int, bool]:
    last = session.log.last_seq
    if cursor is None:
        latest = session.log.latest(Output, _LINES if lines is None else lines)
        shown, _, _ = _within_budget(reversed(latest))
        return shown[::-1], last, False
    # A cursor from the time before a restart of the server points behind the end: then everything is new.
    start = cursor if cursor <= last else 0
    shown, reached, more = _within_budget(session.log.after(start), lines)
    return shown, (reached or start) if more else last, more


def _within_budget(events: Iterable[Event], lines: int | None = None) -> tuple[list[str], int, bool]:
    """Lines until the budget is used up, at least one unless `lines` forbids it; the number of the last event taken;
    whether more are left."""
    shown: list[str] = []
    left, reached = OUTPUT_BUDGET, 0
    for event in events:
        line = _line(event)
        if line is not None:
            line = _cut(line, OUTPUT_BUDGET)
            if len(shown) == lines or (shown and len(line) > left):
                return shown, reached, True
            shown.append(line)
            left -= len(line)
        reached = event.seq
    return shown, reached, False


def _line(event: Event) -> str | None:
    if isinstance(event, Output):
        return event.line
    if isinstance(event, Gap):
        return f"[{event.seq - event.first + 1} earlier events are no longer kept]"
    return None


def render(told: SessionReport) -> str:
    """The report as a few lines of text."""
    head = f"Session {told.session_id}: {told.status}"
    if told.cost_usd:
        head += f" (${told.cost_usd:.4f})"
    parts = [head, *(told.recent_output or [])]
    if told.has_more:
        parts.append(f"[more output: call claude_get_status with cursor {told.next_cursor}]")
    for pending in told.pending_inputs or []:
        parts.append(f"WAITING [{pending.input_id}] {pending.type}: {pending.description}")
    if told.stalled_seconds:
        parts.append(f"[nothing heard for {told.stalled_seconds} s]")
    if told.retrying:
        parts.append(f"[retrying: {told.retrying}]")
    if told.notice:
        parts.append(f"[{told.notice}]")
    if told.error:
        parts.append(f"Ended with {told.error.code}: {told.error.message}")
    return "\n".join(parts)
