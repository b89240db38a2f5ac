"""The outcome of a turn, as the `claude_code` tools report it."""

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from ...core.config import Settings
from ...core.errors import Cancelled, ClaudeCodeError, SessionBusy, TurnTimeout
from ...core.model.events import Output, TurnStarted
from ...core.model.outcome import Outcome as TurnOutcome
from ...core.model.outcome import OutcomeCode
from ...core.model.states import State
from ...core.sessions.session import Session
from .guidance import how_to_answer, how_to_wait
from .output import ErrorInfo, ToolOutput, dump
from .paging import ResultParts, TruncatedPart, render_truncated
from .session_report import (
    OUTPUT_BUDGET,
    LimitInfo,
    PendingInput,
    limit_info,
    limit_line,
    notices,
    pending_inputs,
    render_inputs,
)

_MAX_PART = 256 << 10
"""Maximum characters of a part of a report; longer parts are read in pages."""
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
    """The outcome of a turn. Totals are those of the session, all other fields those of this call."""

    session_id: str | None = None
    previous_session_id: str | None = Field(None, description="The id before /clear; it still works")
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


def finished_report(session: Session, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    """The report of a turn that has ended. Raises the error of a turn that ran out of time, was cancelled or could not
    start."""
    if outcome.code is OutcomeCode.START_FAILED:
        if outcome.error_code == SessionBusy.code:
            raise SessionBusy(outcome.detail, session_id=session.id)
        refused = session.start_error
        if refused is not None and refused.code != ClaudeCodeError.code:
            raise refused  # the options were accepted earlier, but no longer are
        raise ClaudeCodeError(f"Session {session.id} could not start: {outcome.detail}", session_id=session.id)
    if outcome.result:
        warning = f"{outcome.detail}\n\n" if outcome.code is OutcomeCode.NOT_SAVED else ""
        result = parts.text("result", f"{warning}{outcome.final_text}", _MAX_PART)
    else:
        result = parts.text("error", outcome.detail, _MAX_PART)
    # The CLI's own subtype if it names an error; for an API failure it is `success`.
    subtype = outcome.subtype if outcome.subtype and outcome.subtype.startswith("error") else f"error_{outcome.code}"
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
    report = TurnReport(
        session_id=session.id,
        result=result,
        is_error=not outcome.ok,
        duration_ms=outcome.duration_ms,
        duration_api_ms=outcome.duration_api_ms,
        num_turns=outcome.num_turns,
        total_cost_usd=outcome.usage.cost_usd,
        session_total_turns=session.model_turns,
        session_total_cost_usd=session.usage.cost_usd,
        structured_output=parts.data("structuredOutput", outcome.structured_output, _MAX_PART),
        stop_reason=outcome.stop_reason,
        error_subtype=None if outcome.ok else subtype,
        usage=dict(outcome.raw_usage) or None,
        model_usage=by_model or None,
        permission_denials=parts.shortened(outcome.permission_denials, _MAX_PART) or None,
        truncated=parts.truncated,
        notice=notices(session),
        limit=limit_info(session, outcome),
    )
    error = ended_error(session, outcome, report)
    if error is not None:
        raise error
    return report


def unfinished_report(session: Session, parts: ResultParts, settings: Settings) -> TurnReport:
    """The report of a turn that continues in the background or waits for an answer, with the tool to call next."""
    waiting = session.state is State.WAITING
    how = how_to_answer(settings) if waiting else how_to_wait(settings)
    doing = "is waiting for an answer" if waiting else "is still working"
    return TurnReport(
        session_id=session.id,
        status="waiting_for_input" if waiting else "running",
        result=f"Session {session.id} {doing}. {how}",
        pending_inputs=pending_inputs(session.questions, parts) or None,
        truncated=parts.truncated,
    )


def ended_error(session: Session, outcome: TurnOutcome, report: ToolOutput) -> ClaudeCodeError | None:
    """The error of a call whose turn ran out of time or was cancelled; None if it was neither. `report` is what the
    call would have returned otherwise."""
    payload = {**dump(report), "result": outcome.result or output_so_far(session)}
    if outcome.code is OutcomeCode.TIMEOUT:
        message = f"{outcome.detail} Session {session.id} can be continued."
        return TurnTimeout(message, session_id=session.id, report=payload)
    if outcome.code is OutcomeCode.CANCELLED:
        message = f"Session {session.id} was cancelled; it accepts no more messages."
        return Cancelled(message, session_id=session.id, report=payload)
    return None


def ended_info(session: Session, outcome: TurnOutcome) -> ErrorInfo | None:
    """Like `ended_error`, for a result with an `error` field."""
    error = ended_error(session, outcome, ToolOutput())
    return ErrorInfo(code=error.code, message=error.message) if error is not None else None


def output_so_far(session: Session) -> str:
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
