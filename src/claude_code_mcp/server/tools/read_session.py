"""`claude_read_session`: a conversation, turn by turn, in pages."""

from typing import Any

import mcp_types as types
from pydantic import Field

from ...core.transcripts.transcript_export import Detail
from .arguments import Arguments, Name, SessionId
from .call import Call
from .output import ErrorInfo, ToolOutput
from .tool import Reply, Tool

_PAGE = 24_000
"""Maximum characters of a page."""


class ReadSession(Arguments):
    session_id: SessionId
    cursor: Name | None = Field(None, description="First turn (default 1; -1: the last), or nextCursor")
    full: bool | None = Field(None, description="Complete inputs, results and diffs")
    thinking: bool | None = None
    agent: Name | None = Field(None, description="Read this subagent, one of agents")


class SessionText(ToolOutput):
    session_id: str | None = None
    title: str | None = None
    transcript: str | None = None
    turns: int | None = None
    next_cursor: str | None = None
    agents: list[str] | None = None
    """Subagents whose transcripts can be read."""
    left_behind: int | None = None
    """Messages on abandoned branches."""
    error: ErrorInfo | None = None

    def text(self) -> str:
        more = f"\n[more: cursor {self.next_cursor}]" if self.next_cursor else ""
        return f"{self.title or ''}\n\n{self.transcript or ''}{more}".strip()


async def read_session(call: Call, arguments: ReadSession) -> Reply:
    page = await call.service.stored.read(
        arguments.session_id,
        caller=call.caller,
        cursor=arguments.cursor or "1",
        size=_PAGE,
        detail=Detail(full=bool(arguments.full), thinking=bool(arguments.thinking)),
        agent=arguments.agent,
    )
    return SessionText(
        session_id=page.session_id,
        title=page.title,
        transcript=page.text,
        turns=page.turns,
        next_cursor=page.next_cursor,
        agents=[*page.agents] or None,
        left_behind=page.left_behind or None,
    )


READ_SESSION: Tool[Any] = Tool(
    "claude_read_session",
    "Read a session's conversation",
    "Read a session's conversation turn by turn, in pages. Also reads sessions that run in a terminal.",
    ReadSession,
    SessionText,
    read_session,
    types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
)
