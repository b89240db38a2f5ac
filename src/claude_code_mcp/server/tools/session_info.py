"""The sessions of this server as `claude_code_session` lists and shows them."""

from collections.abc import Iterable
from typing import Any

from ...core.model.states import CODE_TOOL_STATUS
from ...core.questions.presentation import Redaction
from ...core.sessions.callers.session_access import SessionSharing
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import session_row
from .output import ErrorInfo, Shares, ToolOutput
from .paging import PartPage, TruncatedPart, render_page
from .pending_inputs import PendingInput
from .session_report import LimitInfo, WorktreeInfo, limit_info, report

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
    "plan_usage",
    "truncated",
}
"""The fields of a session tool's report that `claude_code_session` adds to a single session."""


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
    limit: LimitInfo | None = None
    # With `get`, the outcome of its last turn: the report fields named in `_DETAILS`.
    notice: str | None = None
    worktree: WorktreeInfo | None = None
    result: str | None = None
    recent_output: list[str] | None = None
    pending_inputs: list[PendingInput] | None = None
    structured_output: Any = None
    error: ErrorInfo | None = None
    retrying: str | None = None
    stalled_seconds: int | None = None
    plan_usage: dict[str, Any] | None = None
    truncated: list[TruncatedPart] | None = None


class SessionInfos(ToolOutput):
    sessions: list[SessionInfo] | None = None
    message: str | None = None
    part: PartPage | None = None
    error: ErrorInfo | None = None

    def text(self) -> str | None:
        return None if self.part is None else render_page(self.part)


def session_infos(
    sessions: Iterable[tuple[Session, SessionSharing]], sensitive: bool, message: str | None = None
) -> SessionInfos:
    """The rows of a session list, each with its owner; `sensitive` adds directories, prompts and agents."""
    rows = [_session_info(session, sensitive, sharing) for session, sharing in sessions]
    return SessionInfos(sessions=rows, message=message)


def session_details(session: Session, sensitive: bool, redactor: Redaction, sharing: SessionSharing) -> SessionInfos:
    """One session with the outcome of its last turn: result, output and open questions."""
    details = report(session, redactor)
    info = _session_info(session, sensitive, sharing)
    return SessionInfos(sessions=[info.model_copy(update={name: getattr(details, name) for name in _DETAILS})])


def _session_info(session: Session, sensitive: bool, sharing: SessionSharing) -> SessionInfo:
    options = session.options
    prompt = options.system_prompt
    hidden = {
        "cwd": session.cwd,
        "system_prompt": prompt if prompt is None or isinstance(prompt, str) else prompt.model_dump(exclude_none=True),
        "agents": options.agents,
        "additional_directories": list(options.additional_directories) or None,
    }
    row = session_row(None, session, sharing=sharing)
    return SessionInfo(
        session_id=row.session_id,
        status=CODE_TOOL_STATUS[session.state],
        created_at=row.created,
        last_active_at=row.timestamp,
        total_turns=session.model_turns,
        total_cost_usd=row.cost_usd,
        model=options.model,
        permission_mode=options.permission_mode,
        owner=row.owner,
        shared_with=row.shared_with,
        limit=limit_info(session, None if session.busy else session.outcome),
        **(hidden if sensitive else {}),
    )
