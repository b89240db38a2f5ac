"""The results of the `claude_code` tools: their models, and how they are made from sessions and outcomes."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from ...config import Settings
from ...errors import ClaudeCodeError, SessionBusy
from ...model.outcome import CODE_TOOL_STATUS, OutcomeCode, State
from ...model.outcome import Outcome as TurnOutcome
from ...model.text import iso
from ...questions.presentation import Redaction
from ...sessions.launcher import notices_of
from ...sessions.session import SessionView
from .base import ResultParts, ToolOutput, dump, render_page, render_truncated
from .context import how_to_answer, how_to_wait
from .status import ErrorInfo, PendingInput, pending_inputs, render_inputs, report
from .waiting import timeout_error

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
    "truncated",
}
"""The fields of a session tool's report that `claude_code_session` adds to a single session."""


_PendingInputs = Annotated[list[PendingInput], WithJsonSchema({"items": {"type": "object"}, "type": "array"})]
"""The schema of an entry is that of `claude_get_status`; it is told once, not with every tool."""


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
    model_usage: dict[str, Any] | None = None
    permission_denials: list[dict[str, Any]] | None = None
    status: str | None = Field(None, description="Only while not finished: running or waiting_for_input")
    pending_inputs: _PendingInputs | None = None
    truncated: list[dict[str, Any]] | None = None
    notice: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        notice = [f"[{self.notice}]"] if self.notice else []
        inputs, truncated = render_inputs(self.pending_inputs), render_truncated(self.truncated)
        return "\n".join([self.result or "", *inputs, *truncated, *notice])

    @property
    def failed(self) -> bool:
        return bool(self.is_error)


class ReplyReport(ToolOutput):
    """What the schema of `claude_code_reply` tells of its output, which is a whole `TurnReport`: that is told once."""

    session_id: str | None = None
    result: str | None = None
    is_error: bool | None = None
    structured_output: Any = None
    status: str | None = None
    pending_inputs: _PendingInputs | None = None
    error: ErrorInfo | None = None


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


class SessionInfos(ToolOutput):
    sessions: list[dict[str, Any]] | None = None
    message: str | None = None
    part: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return super().text() if self.part is None else render_page(self.part)


class Configuration(ToolOutput):
    allow_bypass: bool | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.message or ""


# -- turns ----------------------------------------------------------------------------------------------------


def finished_report(session: SessionView, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    """The report of a turn that has ended; raises the error of one that ran out of time or could not start."""
    if outcome.code is OutcomeCode.TIMEOUT:
        raise timeout_error(session, outcome, _outcome_report(session, outcome, parts))
    if outcome.code is OutcomeCode.START_FAILED:
        raise _start_failure(outcome, session)
    return _outcome_report(session, outcome, parts)


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
    return TurnReport(
        session_id=session.id,
        result=parts.text("result", f"{warning}{outcome.result}", _MAX_PART)
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
        notice=" ".join(filter(None, (session.not_recorded, *notices_of(session)))) or None,
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


# -- sessions -------------------------------------------------------------------------------------------------


def session_infos(sessions: Iterable[SessionView], sensitive: bool, message: str | None = None) -> SessionInfos:
    """Rows of a list of sessions; `sensitive` adds directories, prompts and agents."""
    return SessionInfos(sessions=[dump(_session_info(session, sensitive)) for session in sessions], message=message)


def session_details(session: SessionView, sensitive: bool, redactor: Redaction) -> SessionInfos:
    """One session with what its last turn has come to: its result and output, and what it waits for."""
    details = report(session, redactor).model_dump(mode="json", by_alias=True, exclude_none=True, include=_DETAILS)
    return SessionInfos(sessions=[{**dump(_session_info(session, sensitive)), **details}])


def _session_info(session: SessionView, sensitive: bool) -> SessionInfo:
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
        **(hidden if sensitive else {}),
    )
