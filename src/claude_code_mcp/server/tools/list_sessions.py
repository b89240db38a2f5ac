"""`claude_list_sessions`: the sessions of a caller, on disk and in memory."""

from typing import Any

import mcp_types as types
from pydantic import Field

from ...core.model.caller import Caller
from ...core.service import Service
from ...core.sessions.stored.session_row import SessionRow
from .arguments import Arguments, Name, Offset, Path
from .call import Call
from .cost_report import not_read
from .output import ErrorInfo, Shares, ToolOutput, dump
from .session_report import Status
from .tool import Reply, Tool


class ListSessions(Arguments):
    project_directory: Path | None = None
    limit: int | None = Field(None, gt=0, le=500, description="Default 50")
    offset: Offset | None = None
    text: Name | None = Field(None, description="Only sessions that contain this in title, prompts or path")
    whole: bool | None = Field(None, description="Search for text in complete conversations (slow)")
    archived: bool | None = None
    active: bool | None = Field(None, description="Only sessions in memory, or waiting for a usage limit")


class ListedSession(ToolOutput):
    """The columns of `SessionRow` that callers are shown."""

    session_id: str
    project_directory: str | None = None
    display_text: str
    timestamp: str
    branch: str | None = None
    is_active: bool
    active_status: Status | None = None
    in_terminal: bool | None = None
    """Whether a person drives it in a terminal: it takes answers, but no messages."""
    last_status: str | None = None
    """Its last status, if it is not in memory."""
    created: str | None = None
    messages: int | None = None
    model: str | None = None
    cost_usd: float | None = None
    estimated_cost_usd: float | None = None
    """A lower bound at list prices, if more was used than is recorded."""
    tag: str | None = None
    pinned: bool | None = None
    mention: str | None = None
    """Where the text was found."""
    asks: list[str] | None = None
    """Its open questions, a line each."""
    resets_at: str | None = None
    """When the usage limit resets that ended its last turn."""
    continues_at: str | None = None
    """When it continues automatically after that."""
    owner: str | None = None
    """The owner, if another person has shared the session."""
    shared_with: Shares | None = None


class SessionList(ToolOutput):
    sessions: list[ListedSession] | None = None
    next_offset: int | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        lines = [SessionRow.from_json(dump(row)).line() for row in self.sessions or ()]
        if self.next_offset is not None:
            lines.append(f"[more: offset {self.next_offset}]")
        return "\n".join(lines) or "No sessions."


async def list_sessions(call: Call, arguments: ListSessions) -> Reply:
    return await session_list(
        call.service,
        call.caller,
        limit=arguments.limit or 50,
        offset=arguments.offset or 0,
        project=arguments.project_directory,
        text=arguments.text,
        whole=bool(arguments.whole),
        archived=bool(arguments.archived),
        active=bool(arguments.active),
    )


async def session_list(
    service: Service, caller: Caller, *, limit: int = 50, offset: int = 0, **wanted: Any
) -> SessionList:
    """A page of the caller's sessions; `wanted` are the filters of `StoredSessions.entries`."""
    rows, next_offset = await service.stored.page(caller=caller, limit=limit, offset=offset, **wanted)
    in_memory = service.sessions(principal=caller.principal)
    # What keeps sessions from being recorded, such as a full disk.
    failures = {session.id: text for session in in_memory if (text := session.not_recorded) is not None}
    if failures:
        error: ErrorInfo | None = ErrorInfo(
            code="NOT_SAVED", message=f"Of {', '.join(failures)}: {next(iter(failures.values()))}"
        )
    else:
        error = await not_read(service, caller)
    return SessionList(sessions=[listed_session(row) for row in rows], next_offset=next_offset, error=error)


def listed_session(row: SessionRow) -> ListedSession:
    columns = {name: getattr(row, name) for name in ListedSession.model_fields}
    return ListedSession(**{**columns, "pinned": row.pinned or None, "in_terminal": row.in_terminal or None})


LIST_SESSIONS: Tool[Any] = Tool(
    "claude_list_sessions",
    "List sessions",
    "List Claude Code sessions on this machine, including interactive ones: pinned ones first, then the newest.",
    ListSessions,
    SessionList,
    list_sessions,
    types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
