"""`claude_list_sessions`: the sessions of a caller, on disk and in memory."""

from collections.abc import Iterable
from typing import Any

import mcp_types as types
from pydantic import Field

from ...core.model.caller import Caller
from ...core.model.outcome import SESSION_TOOL_STATUS, State
from ...core.model.text import iso, sharing_line
from ...core.model.usage_limits import iso_or_none
from ...core.service import Service
from ...core.sessions.session import Session
from ...core.sessions.session_access import SessionSharing
from ...core.transcripts.session_catalogue import Entry
from .arguments import Arguments, Name, Offset, Path
from .call import Call
from .cost_report import not_read
from .output import ErrorInfo, Shares, ToolOutput
from .session_report import (
    Status,
    limit_info,
)
from .tool import Reply, Tool


class ListSessions(Arguments):
    project_directory: Path | None = None
    limit: int | None = Field(None, gt=0, le=500, description="Default 50")
    offset: Offset | None = None
    text: Name | None = Field(None, description="Only sessions that contain this in title, prompts or path")
    whole: bool | None = Field(None, description="Look for text in whole conversations (slow)")
    archived: bool | None = None
    active: bool | None = Field(None, description="Only those in memory")


class ListedSession(ToolOutput):
    session_id: str
    project_directory: str | None = None
    display_text: str
    timestamp: str
    branch: str | None = None
    is_active: bool
    active_status: Status | None = None
    last_status: str | None = None
    """The status in which it was left, where it is not in memory."""
    created: str | None = None
    messages: int | None = None
    model: str | None = None
    cost_usd: float | None = None
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
        lines = [
            "  ".join(
                (
                    row.session_id,
                    row.timestamp[:16],
                    row.active_status or row.last_status or "-",
                    row.project_directory or "",
                    row.display_text,
                )
            )
            + (f"  [continues at {row.continues_at}]" if row.continues_at else "")
            + (f"  [of {row.owner}]" if row.owner else "")
            + (f"  [shared with {sharing_line(row.shared_with)}]" if row.shared_with else "")
            + (f"\n    {row.mention}" if row.mention else "")
            for row in self.sessions or []
        ]
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
    """A page of the caller's sessions; `wanted` are the filters of `SessionListing.entries`."""
    # One more than is shown, to know whether there is another page.
    entries = await service.listing.entries(caller=caller, limit=limit + 1, offset=offset, **wanted)
    shown = entries[:limit]
    in_memory = {session.id: session for session in service.sessions(principal=caller.principal)}
    last_states = await service.listing.last_states((entry.session_id for entry in shown), caller=caller)
    waiting = await service.listing.continuing(caller=caller)
    listed = [
        _listed_session(
            entry,
            in_memory.get(entry.session_id),
            last_states.get(entry.session_id),
            service.access.sharing(entry.session_id, caller.principal),
            waiting.get(entry.session_id),
        )
        for entry in shown
    ]
    return SessionList(
        sessions=listed,
        next_offset=offset + limit if len(entries) > limit else None,
        error=_not_recorded(in_memory.values()) or await not_read(service, caller),
    )


def _not_recorded(sessions: Iterable[Session]) -> ErrorInfo | None:
    """The error that keeps sessions from being recorded, such as a full disk; None if all of them are."""
    failures = {session.id: text for session in sessions if (text := session.not_recorded) is not None}
    if not failures:
        return None
    return ErrorInfo(code="NOT_SAVED", message=f"Of {', '.join(failures)}: {next(iter(failures.values()))}")


def _listed_session(
    entry: Entry,
    session: Session | None,
    last_state: State | None,
    sharing: SessionSharing,
    continues_at: float | None,
) -> ListedSession:
    limit = limit_info(session, None if session.busy else session.outcome) if session else None
    # What is recorded on disk or, of a session in memory, what is known of it there if that is more.
    costs = (entry.cost_usd, session.usage.cost_usd if session else None)
    return ListedSession(
        session_id=entry.session_id,
        project_directory=entry.project,
        display_text=entry.title or entry.first_prompt or "",
        timestamp=iso(entry.last_used),
        branch=entry.branch,
        is_active=session is not None and session.live,
        active_status=SESSION_TOOL_STATUS[session.state] if session else None,
        last_status=SESSION_TOOL_STATUS[last_state] if last_state and not session else None,
        created=iso(entry.created) if entry.created is not None else None,
        messages=entry.messages,
        model=entry.model,
        cost_usd=max((round(cost, 6) for cost in costs if cost is not None), default=None),
        tag=entry.tag,
        pinned=entry.pinned or None,
        mention=entry.mention,
        asks=[question.description for question in session.questions] or None if session else None,
        resets_at=limit.resets_at if limit is not None else None,
        continues_at=limit.continues_at if limit is not None else iso_or_none(continues_at),
        owner=sharing.owner,
        shared_with=sharing.rows,
    )


LIST_SESSIONS: Tool[Any] = Tool(
    "claude_list_sessions",
    "List sessions",
    "Claude Code sessions on this machine, pinned ones first, then the newest, interactive ones too.",
    ListSessions,
    SessionList,
    list_sessions,
    types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
