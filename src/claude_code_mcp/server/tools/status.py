"""The reports of the tools: status, output within a budget and open questions of a session, and what a turn came to.

The session tools return a `SessionReport`, or the short form of one; the `claude_code` tools a `TurnReport`, or rows of
sessions. Both have the same parts.
"""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ...core.config import Settings
from ...core.errors import Cancelled, ClaudeCodeError, InvalidArgument, SessionBusy, TurnTimeout
from ...core.model.events import Event, Gap, Output, Stalled, TurnStarted
from ...core.model.options import Worktree
from ...core.model.outcome import CODE_TOOL_STATUS, LOG_IN_HINT, SESSION_TOOL_STATUS, OutcomeCode, State
from ...core.model.outcome import Outcome as TurnOutcome
from ...core.model.question import Question
from ...core.model.text import as_json, cut, iso, sharing_line
from ...core.model.usage_limits import iso_or_none
from ...core.questions.presentation import Redaction
from ...core.sessions.launcher import notices_of
from ...core.sessions.messages import UserMessage
from ...core.sessions.session import SessionView
from ...core.sessions.session_access import SessionSharing
from .guidance import how_to_answer, how_to_wait
from .output import ErrorInfo, Shares, ToolOutput, declared, dump
from .paging import PartPage, ResultParts, TruncatedPart, render_page, render_truncated

Status = Literal["running", "waiting_for_input", "completed", "error", "limit_reached", "interrupted", "cancelled"]

OUTPUT_BUDGET = 24_000
_GAP_LINE = 60
_FROM_THE_START = "0"
_RESTART_NOTICE = (
    "The cursor is from before the session was last loaded: the output starts over with all that is kept; lines may "
    "come twice, and lines in between may be missing."
)
_DEFAULT_LINES = 50
_MAX_RESULT = 24_000
_MAX_ERROR = 4_000
_MAX_STRUCTURE = 256 << 10
_MAX_TOOLS = 20
_MAX_RULES = 20
_MAX_DROPPED = 500
_REFUSED_LOGIN = frozenset({401, 403})
"""The answers of the API that another attempt does not change."""


class ToolUseEvent(ToolOutput):
    tool_name: str
    status: str


class PendingInput(ToolOutput):
    input_id: str
    type: Literal["permission", "plan_review", "user_question"]
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


def limit_info(session: SessionView, outcome: TurnOutcome | None) -> LimitInfo | None:
    """The limit that ended the turn with this outcome; None if none did."""
    if outcome is None or outcome.code is not OutcomeCode.LIMIT_REACHED:
        return None
    return LimitInfo(
        type=outcome.limit_type,
        resets_at=iso_or_none(outcome.resets_at),
        continues_at=iso_or_none(session.continues_at),
    )


def limit_line(limit: LimitInfo) -> str:
    """For readers of the text: when the limit resets, and what follows."""
    resets = f"the limit resets at {limit.resets_at}" if limit.resets_at else "the time of the reset is not known"
    follows = (
        f"the session continues automatically at {limit.continues_at}" if limit.continues_at else "nothing follows"
    )
    return f"[{resets}; {follows}]"


class SessionReport(ToolOutput):
    """What every session tool returns. Only what applies is there: without a wait, the session and its status."""

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
    queued: str | None = None
    memory_bytes: int | None = None
    worktree: WorktreeInfo | None = None
    owner: str | None = None
    """Whose it is, if somebody else has shared it."""
    shared_with: Shares | None = None
    structured_output: Any = None
    notice: str | None = None
    truncated: list[TruncatedPart] | None = None
    part: PartPage | None = None
    limit: LimitInfo | None = None
    plan_usage: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return render(self)


class Acknowledgement(ToolOutput):
    """The short form of a report: enough to continue."""

    session_id: str | None = None
    status: Status | None = None
    next_cursor: str | None = None
    """Behind the history of a session that has come into memory with the call."""


class Interruption(ToolOutput):
    """What an interruption came to; `dropped_messages` are the beginnings of those that will never run."""

    session_id: str | None = None
    status: Status | None = None
    error: ErrorInfo | None = None
    dropped_messages: list[str] | None = None


def interruption(session: SessionView, dropped: Iterable[UserMessage], redactor: Redaction) -> Interruption:
    # Redacted first: half of a secret could not be recognised.
    beginnings = [cut(redactor.text(message.text), _MAX_DROPPED) for message in dropped]
    return Interruption(session_id=session.id, status=status_of(session), dropped_messages=beginnings or None)


def status_of(session: SessionView) -> Status:
    return SESSION_TOOL_STATUS[session.state]  # type: ignore[return-value]  # the values of the table are these


def report(
    session: SessionView,
    redactor: Redaction,
    *,
    lines: int | None = None,
    cursor: str | None = None,
    notice: str | None = None,
    asked_as: str | None = None,
    message: UserMessage | None = None,
    sharing: SessionSharing | None = None,
) -> SessionReport:
    """The full report: output after `cursor` (at most `lines` of it), or the last `lines` lines. Parts that are too
    long for it are cut and named in `truncated`.

    A cursor from before the session was last loaded gets all output that is kept, and a notice: nothing is skipped
    silently. With a `message`, status and result are those of that message as soon as it has an outcome. `asked_as` is
    the id under which the caller knows the session; `sharing` is what the caller is told of that.
    """
    parts = ResultParts(redactor)
    start, known = _start(session, cursor)
    output, next_cursor, more = _output(session, lines, start, parts)
    notice = _notice(session, notice, None if known else _RESTART_NOTICE)
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
        cost_usd=round(session.usage.cost_usd, 6),
        tokens={"input": usage.all_input_tokens, "output": usage.output_tokens},
        turn_count=session.model_turns,
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


def worktree_report(session: SessionView) -> dict[str, str] | None:
    """Where the worktree of a session is, if it has one."""
    worktree = session.options.worktree
    if not isinstance(worktree, Worktree):
        return None
    facts = {"path": worktree.path, "branch": worktree.branch, "base": worktree.base[:12], "from": worktree.repository}
    return facts if os.path.isdir(worktree.path) else {**facts, "state": "removed"}


def _notice(session: SessionView, *more: str | None) -> str | None:
    return " ".join(filter(None, (*more, session.not_recorded, *notices_of(session)))) or None


def silent_seconds(session: SessionView) -> int:
    """How long the process has been silent: since the stall was noticed, and before that."""
    noticed = session.events.latest(Stalled, 1)
    return int(sum(time.time() - stall.at + stall.seconds for stall in noticed if isinstance(stall, Stalled)))


def retrying_line(session: SessionView) -> str | None:
    """What the CLI waits for, after the API has refused; None if it does not."""
    retry = session.activity.retrying
    if retry is None:
        return None
    of = f" of {retry.of}" if retry.of else ""
    problem = f"API error {retry.status}" if retry.status else "The API cannot be reached"
    hint = f". The key or login was refused {LOG_IN_HINT}" if retry.status in _REFUSED_LOGIN else ""
    return f"{problem}: attempt {retry.attempt}{of}, next in {retry.delay_ms / 1000:.1f} s{hint}"


def pending_inputs(questions: Sequence[Question], parts: ResultParts, start: int = 0) -> list[PendingInput]:
    """Open questions as callers see them, with their whole input where there is room for it."""
    return [
        PendingInput(
            input_id=question.id,
            type=str(question.kind),
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


def position_of(session: SessionView, cursor: str) -> int | None:
    """The event number of a cursor; None if it is not one of this log."""
    start, known = _start(session, cursor)
    return start if known else None


def _start(session: SessionView, cursor: str | None) -> tuple[int | None, bool]:
    """The event number behind which output is wanted (None without a cursor), and whether the cursor is of this log."""
    if cursor is None or cursor == _FROM_THE_START:
        return (None if cursor is None else 0), True
    try:
        position = session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier call.", field="cursor") from None
    return position or 0, position is not None


def _output(
    session: SessionView, lines: int | None, start: int | None, parts: ResultParts
) -> tuple[list[str], int, bool]:
    last = session.events.last_seq
    if start is None:
        latest = session.events.latest(Output, _DEFAULT_LINES if lines is None else lines)
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


def render(report: SessionReport) -> str:
    """The report as text. Open questions are there with their input: some callers read nothing else."""
    if report.part is not None:
        return render_page(report.part)
    head = f"Session {report.session_id}: {report.status}"
    if report.cost_usd:
        head += f" (${report.cost_usd:.4f})"
    parts = [head, *(report.recent_output or [])]
    if report.has_more:
        parts.append(f"[more output: call claude_get_status with cursor {report.next_cursor}]")
    parts += render_inputs(report.pending_inputs)
    parts += render_truncated(report.truncated)
    if report.stalled_seconds:
        parts.append(f"[nothing heard for {report.stalled_seconds} s]")
    if report.retrying:
        parts.append(f"[retrying: {report.retrying}]")
    if report.queued:
        parts.append(f"[not started yet: {report.queued}]")
    if report.worktree:
        parts.append(f"[in the worktree {report.worktree['path']}, on branch {report.worktree['branch']}]")
    owner = f"{report.owner} has shared it" if report.owner else None
    shared = f"shared with {sharing_line(report.shared_with)}" if report.shared_with else None
    parts += [f"[{remark}]" for remark in (owner, shared, report.notice) if remark]
    if report.error:
        parts.append(f"Ended with {report.error.code}: {report.error.message}")
    if report.limit:
        parts.append(limit_line(report.limit))
    return "\n".join(parts)


def render_inputs(pending_inputs: list[PendingInput] | None) -> list[str]:
    """The text lines for open questions, each with its whole input."""
    return [
        f"WAITING [{entry.input_id}] {entry.type}: {entry.description}\ninput: {as_json(entry.tool_input)}"
        for entry in pending_inputs or []
    ]


# -- turns that were ended before they were done -----------------------------------------------------------------------


def ended_error(session: SessionView, outcome: TurnOutcome, report: ToolOutput) -> ClaudeCodeError | None:
    """The error of a call whose turn ran out of time or was cancelled; None if it was neither. `report` is what the
    call would have returned otherwise."""
    payload = {**dump(report), "result": outcome.result or output_so_far(session)}
    if outcome.code is OutcomeCode.TIMEOUT:
        message = f"{outcome.detail} Session {session.id} can be continued."
        return TurnTimeout(message, session_id=session.id, report=payload)
    if outcome.code is OutcomeCode.CANCELLED:
        message = f"Session {session.id} was cancelled; it takes no more messages."
        return Cancelled(message, session_id=session.id, report=payload)
    return None


def ended_info(session: SessionView, outcome: TurnOutcome) -> ErrorInfo | None:
    """The same for a result that has an `error` field."""
    error = ended_error(session, outcome, ToolOutput())
    return ErrorInfo(code=error.code, message=error.message) if error is not None else None


def output_so_far(session: SessionView) -> str:
    """The last lines of output of the session's newest turn, as many as fit."""
    began = max((event.seq for event in session.events.latest(TurnStarted, 1)), default=0)
    lines: list[str] = []
    left = OUTPUT_BUDGET
    for event in reversed([event for event in session.events.after(began) if isinstance(event, Output)]):
        left -= len(event.line) + 1
        if left < 0 and lines:
            break
        lines.append(event.line[-OUTPUT_BUDGET:])
    return "\n".join(reversed(lines))


# -- the reports of the claude_code tools ------------------------------------------------------------------------------


_MAX_PART = 256 << 10
"""Characters of a part of a report; what is longer is read in pages."""
_DETAILS = {
    "notice",
    "worktree",
    "result",
    "recent_output",
    "pending_inputs",
    "structured_output",
    "error",
    "retrying",
    "stalled_seconds",
    "limit",
    "plan_usage",
    "truncated",
}
"""The fields of a session tool's report that `claude_code_session` adds to a single session."""


_ModelUsage = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "inputTokens": {"type": "integer"},
                    "outputTokens": {"type": "integer"},
                    "cacheReadInputTokens": {"type": "integer"},
                    "cacheCreationInputTokens": {"type": "integer"},
                    "costUSD": {"type": "number"},
                },
            },
        }
    ),
]


class TurnReport(ToolOutput):
    """What a turn came to; totals are the session's, the rest this call's."""

    session_id: str | None = None
    previous_session_id: str | None = Field(None, description="The id before /clear; it leads to the new one")
    result: str | None = None
    is_error: bool | None = None
    duration_ms: int | None = None
    duration_api_ms: int | None = None
    num_turns: int | None = None
    total_cost_usd: float | None = None
    session_total_turns: int | None = None
    session_total_cost_usd: float | None = None
    structured_output: Any = None
    stop_reason: str | None = None
    error_subtype: str | None = None
    usage: dict[str, Any] | None = None
    model_usage: _ModelUsage | None = None
    permission_denials: list[dict[str, Any]] | None = None
    status: str | None = Field(None, description="Only while not finished: running or waiting_for_input")
    pending_inputs: list[PendingInput] | None = None
    truncated: list[TruncatedPart] | None = None
    notice: str | None = None
    limit: LimitInfo | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        notice = [limit_line(self.limit)] if self.limit else []
        notice += [f"[{self.notice}]"] if self.notice else []
        inputs, truncated = render_inputs(self.pending_inputs), render_truncated(self.truncated)
        return "\n".join([self.result or "", *inputs, *truncated, *notice])

    @property
    def failed(self) -> bool:
        return bool(self.is_error)


class SessionInfo(ToolOutput):
    session_id: str
    status: str
    created_at: str
    last_active_at: str
    total_turns: int
    total_cost_usd: float
    model: str | None = None
    permission_mode: str | None = None
    cwd: str | None = None
    system_prompt: Any = None
    agents: Any = None
    additional_directories: list[str] | None = None
    owner: str | None = None
    shared_with: Shares | None = None
    # With `get`, what its last turn has come to: the fields of a session tool's report that `_DETAILS` names.
    notice: str | None = None
    worktree: WorktreeInfo | None = None
    result: str | None = None
    recent_output: list[str] | None = None
    pending_inputs: list[PendingInput] | None = None
    structured_output: Any = None
    error: ErrorInfo | None = None
    retrying: str | None = None
    stalled_seconds: int | None = None
    limit: LimitInfo | None = None
    plan_usage: dict[str, Any] | None = None
    truncated: list[TruncatedPart] | None = None


class SessionInfos(ToolOutput):
    sessions: list[SessionInfo] | None = None
    message: str | None = None
    part: PartPage | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return super().text() if self.part is None else render_page(self.part)


class Configuration(ToolOutput):
    allow_bypass: bool | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.message or ""


def finished_report(session: SessionView, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    """The report of a turn that has ended; raises the error of one that ran out of time, was cancelled or could not
    start."""
    if outcome.code is OutcomeCode.START_FAILED:
        raise _start_failure(outcome, session)
    report = _outcome_report(session, outcome, parts)
    error = ended_error(session, outcome, report)
    if error is not None:
        raise error
    return report


def unfinished_report(session: SessionView, parts: ResultParts, settings: Settings) -> TurnReport:
    """The report of a turn that goes on in the background or waits for an answer, with the tool to call next."""
    waiting = session.state is State.WAITING
    how = how_to_answer(settings) if waiting else how_to_wait(settings)
    doing = "waits for an answer" if waiting else "is still working"
    return TurnReport(
        session_id=session.id,
        status="waiting_for_input" if waiting else "running",
        result=f"Session {session.id} {doing}. {how}",
        pending_inputs=pending_inputs(session.questions, parts) or None,
        truncated=parts.truncated,
    )


def _outcome_report(session: SessionView, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    warning = f"{outcome.detail}\n\n" if outcome.code is OutcomeCode.NOT_SAVED else ""
    # Without a login, the detail repeats the CLI's sentence and adds what to do on a server.
    message = outcome.detail if outcome.detail.startswith(outcome.result) else outcome.result
    return TurnReport(
        session_id=session.id,
        result=parts.text("result", f"{warning}{message}", _MAX_PART)
        if outcome.result
        else parts.text("error", outcome.detail, _MAX_PART),
        is_error=not outcome.ok,
        duration_ms=outcome.duration_ms,
        duration_api_ms=outcome.duration_api_ms,
        num_turns=outcome.num_turns,
        total_cost_usd=outcome.usage.cost_usd,
        session_total_turns=session.model_turns,
        session_total_cost_usd=session.usage.cost_usd,
        structured_output=parts.data("structuredOutput", outcome.structured_output, _MAX_PART),
        stop_reason=outcome.stop_reason,
        error_subtype=None if outcome.ok else _error_subtype(outcome),
        usage=dict(outcome.raw_usage) or None,
        model_usage=_model_usage(outcome),
        permission_denials=parts.shortened(outcome.permission_denials, _MAX_PART) or None,
        truncated=parts.truncated,
        notice=_notice(session),
        limit=limit_info(session, outcome),
    )


def _error_subtype(outcome: TurnOutcome) -> str:
    """The CLI's own subtype if that names an error; of an API failure it says `success`."""
    subtype = outcome.subtype
    return subtype if subtype and subtype.startswith("error") else f"error_{outcome.code}"


def _start_failure(outcome: TurnOutcome, session: SessionView) -> ClaudeCodeError:
    if outcome.error_code == SessionBusy.code:
        return SessionBusy(outcome.detail, session_id=session.id)
    refused = session.start_error
    if refused is not None and refused.code != ClaudeCodeError.code:
        return refused  # the options were fine once, and are not any more
    return ClaudeCodeError(f"Session {session.id} could not start: {outcome.detail}", session_id=session.id)


def _model_usage(outcome: TurnOutcome) -> dict[str, Any] | None:
    by_model = {
        name: {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cacheReadInputTokens": usage.cache_read_tokens,
            "cacheCreationInputTokens": usage.cache_creation_tokens,
            "costUSD": usage.cost_usd,
        }
        for name, usage in outcome.usage.models.items()
    }
    return by_model or None


def session_infos(
    sessions: Iterable[tuple[SessionView, SessionSharing]], sensitive: bool, message: str | None = None
) -> SessionInfos:
    """Rows of a list of sessions, each with whose it is; `sensitive` adds directories, prompts and agents."""
    rows = [_session_info(session, sensitive, sharing) for session, sharing in sessions]
    return SessionInfos(sessions=rows, message=message)


def session_details(
    session: SessionView, sensitive: bool, redactor: Redaction, sharing: SessionSharing
) -> SessionInfos:
    """One session with what its last turn has come to: its result and output, and what it waits for."""
    details = report(session, redactor)
    info = _session_info(session, sensitive, sharing)
    return SessionInfos(sessions=[info.model_copy(update={name: getattr(details, name) for name in _DETAILS})])


def _session_info(session: SessionView, sensitive: bool, sharing: SessionSharing) -> SessionInfo:
    options = session.options
    prompt = options.system_prompt
    hidden = {
        "cwd": session.cwd,
        "system_prompt": prompt if prompt is None or isinstance(prompt, str) else prompt.model_dump(exclude_none=True),
        "agents": options.agents,
        "additional_directories": list(options.additional_directories) or None,
    }
    return SessionInfo(
        session_id=session.id,
        status=CODE_TOOL_STATUS[session.state],
        created_at=iso(session.created_at),
        last_active_at=iso(session.used_at),
        total_turns=session.model_turns,
        total_cost_usd=session.usage.cost_usd,
        model=options.model,
        permission_mode=options.permission_mode,
        owner=sharing.owner,
        shared_with=sharing.rows,
        **(hidden if sensitive else {}),
    )
