"""The report of a session: its status, output within a budget, open questions and result.

The session tools return a `SessionReport`, or a short form of one.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ...core.errors import InvalidArgument
from ...core.model.events import Event, Gap, Output
from ...core.model.outcome import Outcome as TurnOutcome
from ...core.model.outcome import OutcomeCode
from ...core.model.question import Question
from ...core.model.states import SESSION_TOOL_STATUS
from ...core.model.text import as_json, cut, iso, sharing_line
from ...core.model.usage_limits import iso_or_none
from ...core.model.worktree import Worktree
from ...core.questions.kinds import WireType, kind_class
from ...core.redaction import Redactor
from ...core.sessions.callers.session_access import SessionSharing
from ...core.sessions.messages import UserMessage
from ...core.sessions.option_notices import notices_of
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import retrying_line, silent_seconds
from .output import ErrorInfo, Shares, ToolOutput, declared
from .paging import PartPage, ResultParts, TruncatedPart, render_page, render_truncated

Status = Literal["running", "waiting_for_input", "completed", "error", "limit_reached", "interrupted", "cancelled"]
OUTPUT_BUDGET = 24_000
_GAP_LINE = 60
_FROM_THE_START = "0"
_RESTART_NOTICE = (
    "The cursor is from before the session was last loaded: the output restarts from the oldest kept line; lines may "
    "repeat or be missing."
)
_DEFAULT_LINES = 50
_MAX_RESULT = 24_000
_MAX_ERROR = 4_000
_MAX_STRUCTURE = 256 << 10
_MAX_TOOLS = 20
_MAX_DROPPED = 500
_MAX_UNFINISHED = 4_000
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


class ToolUseEvent(ToolOutput):
    tool_name: str
    status: str


WorktreeInfo = Annotated[
    dict[str, Any],
    declared({"path": "string", "branch": "string", "base": "string", "from": "string"}, {"state": "string"}),
]


class LimitInfo(ToolOutput):
    """The usage limit that ended the last turn."""

    type: str | None = None
    """Such as `five_hour` or `seven_day`; unknown with an API key."""
    resets_at: str | None = None
    continues_at: str | None = None
    """When the session continues automatically, if it does."""


def limit_info(session: Session, outcome: TurnOutcome | None) -> LimitInfo | None:
    """The limit that ended the turn with this outcome; None if none did."""
    if outcome is None or outcome.code is not OutcomeCode.LIMIT_REACHED:
        return None
    return LimitInfo(
        type=outcome.limit_type,
        resets_at=iso_or_none(outcome.resets_at),
        continues_at=iso_or_none(session.continues_at),
    )


def limit_line(limit: LimitInfo) -> str:
    """A sentence about when the limit resets, and whether the session continues then."""
    resets = f"the limit resets at {limit.resets_at}" if limit.resets_at else "the reset time is unknown"
    follows = (
        f"the session continues automatically at {limit.continues_at}"
        if limit.continues_at
        else "the session does not continue automatically"
    )
    return f"[{resets}; {follows}]"


class SessionReport(ToolOutput):
    """The result of every session tool. Contains only what applies: without a wait, the session and its status."""

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
    next_cursor: str | None = Field(None, description="Pass as cursor to get only new output")
    has_more: bool | None = None
    stalled_seconds: int | None = None
    retrying: str | None = None
    queued: str | None = None
    memory_bytes: int | None = None
    worktree: WorktreeInfo | None = None
    owner: str | None = None
    """The owner, if another person has shared the session."""
    shared_with: Shares | None = None
    structured_output: Any = None
    notice: str | None = None
    truncated: list[TruncatedPart] | None = None
    part: PartPage | None = None
    limit: LimitInfo | None = None
    plan_usage: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        """Open questions are included with their complete input: some callers read nothing else."""
        if self.part is not None:
            return render_page(self.part)
        head = f"Session {self.session_id}: {self.status}"
        if self.cost_usd:
            head += f" (${self.cost_usd:.4f})"
        parts = [head, *(self.recent_output or [])]
        if self.has_more:
            parts.append(f"[more output: call claude_get_status with cursor {self.next_cursor}]")
        parts += render_inputs(self.pending_inputs)
        parts += render_truncated(self.truncated)
        if self.stalled_seconds:
            parts.append(f"[no output for {self.stalled_seconds} s]")
        if self.retrying:
            parts.append(f"[retrying: {self.retrying}]")
        if self.queued:
            parts.append(f"[not started yet: {self.queued}]")
        if self.worktree:
            parts.append(f"[in the worktree {self.worktree['path']}, on branch {self.worktree['branch']}]")
        owner = f"{self.owner} shared it with you" if self.owner else None
        shared = f"shared with {sharing_line(self.shared_with)}" if self.shared_with else None
        parts += [f"[{remark}]" for remark in (owner, shared, self.notice) if remark]
        if self.error:
            parts.append(f"Ended with {self.error.code}: {self.error.message}")
        if self.limit:
            parts.append(limit_line(self.limit))
        return "\n".join(parts)


class Acknowledgment(ToolOutput):
    """The short form of a report: enough to continue."""

    session_id: str | None = None
    status: Status | None = None
    next_cursor: str | None = None
    """The cursor after the history of a session that the call loaded."""


class Interruption(ToolOutput):
    """The result of an interruption; `dropped_messages` are the starts of those that will never run."""

    session_id: str | None = None
    status: Status | None = None
    error: ErrorInfo | None = None
    dropped_messages: list[str] | None = None


def interruption(session: Session, dropped: Iterable[UserMessage], redactor: Redactor) -> Interruption:
    # Redacted first: half of a secret could not be recognized.
    beginnings = [cut(redactor.text(message.text), _MAX_DROPPED) for message in dropped]
    return Interruption(session_id=session.id, status=status_of(session), dropped_messages=beginnings or None)


def status_of(session: Session) -> Status:
    return SESSION_TOOL_STATUS[session.state]  # type: ignore[return-value]  # the values of the table are these


def report(
    session: Session,
    redactor: Redactor,
    *,
    lines: int | None = None,
    cursor: str | None = None,
    notice: str | None = None,
    asked_as: str | None = None,
    message: UserMessage | None = None,
    sharing: SessionSharing | None = None,
) -> SessionReport:
    """The full report: output after `cursor` (at most `lines` of it), or the last `lines` lines with the one that is
    being written. Parts that are too long for it are cut and named in `truncated`.

    A cursor from before the session was last loaded gets all kept output and a notice: nothing is skipped silently.
    With a `message`, status and result are those of that message once it has an outcome. `asked_as` is the id under
    which the caller knows the session; `sharing` has its owner and grantees.
    """
    parts = ResultParts(redactor)
    start, known = _start(session, cursor)
    output, next_cursor, more = _output(session, lines, start, parts, redactor)
    notice = notices(session, notice, None if known else _RESTART_NOTICE)
    own = message.outcome.result() if message is not None and message.outcome.done() else None
    outcome = own or (None if session.busy else session.outcome)
    usage, tools = session.usage.total, list(session.readable_lines.tools.values())
    return SessionReport(
        session_id=session.id,
        previous_session_id=asked_as if asked_as != session.id else None,
        status=SESSION_TOOL_STATUS[own.state] if own is not None else status_of(session),
        result=parts.text("result", outcome.result, _MAX_RESULT) if outcome and outcome.result else None,
        recent_output=output,
        pending_inputs=pending_inputs(sharing.asked(session.questions) if sharing else session.questions, parts),
        tool_use_events=[ToolUseEvent(tool_name=tool.name, status=tool.status) for tool in tools[-_MAX_TOOLS:]],
        # The costs of a session in a terminal are known only after the terminal has left it.
        cost_usd=round(session.usage.cost_usd, 6) if session.outside is None else None,
        tokens={"input": usage.all_input_tokens, "output": usage.output_tokens} if session.outside is None else None,
        turn_count=session.model_turns if session.outside is None else None,
        next_cursor=session.events.cursor(next_cursor),
        has_more=more or None,
        stalled_seconds=silent_seconds(session) if session.stalled else None,
        retrying=retrying_line(session),
        queued=session.queued,
        memory_bytes=session.memory_bytes,
        worktree=worktree_report(session),
        owner=sharing.owner if sharing is not None else None,
        shared_with=sharing.rows if sharing is not None else None,
        structured_output=parts.data("structuredOutput", outcome.structured_output, _MAX_STRUCTURE)
        if outcome
        else None,
        error=ErrorInfo(code=str(outcome.code), message=parts.text("error", outcome.detail, _MAX_ERROR))
        if outcome and not outcome.ok
        else None,
        notice=notice,
        limit=limit_info(session, outcome),
        plan_usage=session.activity.plan.as_json() if session.activity.plan is not None else None,
        truncated=parts.truncated,
    )


def worktree_report(session: Session) -> dict[str, str] | None:
    """The location of a session's worktree; None if it has none."""
    worktree = session.options.worktree
    if not isinstance(worktree, Worktree):
        return None
    facts = {"path": worktree.path, "branch": worktree.branch, "base": worktree.base[:12], "from": worktree.repository}
    return facts if os.path.isdir(worktree.path) else {**facts, "state": "removed"}


def notices(session: Session, *more: str | None) -> str | None:
    """Notices about a session for the caller, as one string."""
    return " ".join(filter(None, (*more, session.not_recorded, *notices_of(session)))) or None


def position_of(session: Session, cursor: str) -> int | None:
    """The event number of a cursor; None if it is not one of this log."""
    start, known = _start(session, cursor)
    return start if known else None


def _start(session: Session, cursor: str | None) -> tuple[int | None, bool]:
    """The event number after which output is requested (None without a cursor), and whether the cursor belongs to this
    log."""
    if cursor is None or cursor == _FROM_THE_START:
        return (None if cursor is None else 0), True
    try:
        position = session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier call.", field="cursor") from None
    return position or 0, position is not None


def unfinished_line(session: Session, redactor: Redactor, limit: int) -> str:
    """The line that is being written, at most its first `limit` characters. Its end is held back while it may be the
    beginning of a secret."""
    line = session.readable_lines.unfinished(limit)
    return line[: len(line) - redactor.held_back(line)]


def _output(
    session: Session, lines: int | None, start: int | None, parts: ResultParts, redactor: Redactor
) -> tuple[list[str], int, bool]:
    last = session.events.last_seq
    if start is None:
        count = _DEFAULT_LINES if lines is None else lines
        shown, _, _ = _within_budget(reversed(session.events.latest(Output, count)), parts)
        written = unfinished_line(session, redactor, _MAX_UNFINISHED)
        shown = [*shown[::-1], *([written] if written else [])]
        return shown[max(0, len(shown) - count) :], last, False
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
        if isinstance(event, Output | Gap):
            size = len(event.line) if isinstance(event, Output) else _GAP_LINE
            if len(shown) == lines or (shown and size > left):
                return shown, reached, True
            if isinstance(event, Output):
                shown.append(parts.line(event, OUTPUT_BUDGET))
            else:
                shown.append(f"[{event.seq - event.first + 1} earlier events are no longer kept]")
            left -= len(shown[-1])
        reached = event.seq
    return shown, reached, False
