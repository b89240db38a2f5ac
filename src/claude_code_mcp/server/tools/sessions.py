"""The six session tools: start, message, watch, answer, interrupt, list."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import mcp_types as types
from pydantic import Field

from ...model.options import SessionOptions
from ...model.states import SESSION_TOOL_STATUS, State
from ...model.text import iso
from ...sessions.messages import UserMessage
from ...sessions.session import Session
from ...store.catalogue import Entry
from .answering import GivenAnswers, ModeAfterPlan, answer_in
from .argument_types import Count, Name, Offset, Path, Rules, SessionId
from .base import Arguments, Reply, Text, Tool, ToolOutput
from .context import Call
from .paging import PENDING, ResultParts, read_part
from .status import (
    Acknowledgement,
    ErrorInfo,
    Interruption,
    SessionReport,
    Status,
    interruption,
    pending_inputs,
    report,
    status_of,
)
from .waiting import open_questions, outcome_or_question, rest_or_question

Wait = Annotated[float, Field(ge=0, le=55, description="Wait for the turn's end or a question")]
_TOO_LATE = "An answer from the dialog came too late: the question had been settled elsewhere."
MODES = ("default", "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions")


class CreateSession(Arguments):
    written_as: ClassVar[Mapping[str, str]] = {"cwd": "workingDirectory", "append_system_prompt": "systemPrompt"}

    prompt: Text
    working_directory: Path | None = None
    model: Name | None = None
    permission_mode: Name | None = Field(None, json_schema_extra={"enum": list(MODES)})
    allowed_tools: Rules | None = Field(None, description="Allowed without asking, e.g. Bash(git diff *)")
    disallowed_tools: Rules | None = None
    max_turns: Count | None = None
    max_budget_usd: float | None = Field(None, gt=0)
    system_prompt: str | None = Field(None, description="Appended to Claude Code's own")
    dangerously_skip_permissions: bool | None = None
    hub_servers: Rules | None = None
    wait_seconds: Wait | None = None


class SendMessage(Arguments):
    session_id: SessionId
    message: Text
    wait_seconds: Wait | None = None


class GetStatus(Arguments):
    session_id: SessionId
    output_lines: int | None = Field(None, ge=0, le=1000, description="Default 50; with cursor: at most")
    cursor: Name | None = Field(None, description="nextCursor of the last call; 0: from the start")
    part: Name | None = Field(None, description="Read this part of truncated, from offset on")
    offset: Offset | None = None
    wait_seconds: Wait | None = None


class Respond(Arguments):
    session_id: SessionId
    input_id: Name
    decision: Literal["allow", "deny"]
    reason: str | None = None
    scope: Literal["once", "session"] | None = None
    answers: GivenAnswers | None = Field(
        None, description="For user_question: labels or free text, by question or in order"
    )
    updated_input: dict[str, Any] | None = Field(None, description="Changed tool input, with allow")
    permission_mode: ModeAfterPlan | None = None
    wait_seconds: Wait | None = None


class Interrupt(Arguments):
    session_id: SessionId


class ListSessions(Arguments):
    project_directory: Path | None = None
    limit: int | None = Field(None, gt=0, le=500, description="Default 50")
    text: Name | None = Field(None, description="Only sessions that contain this in title, prompt or path")


class ListedSession(ToolOutput):
    session_id: str
    project_directory: str | None = None
    display_text: str
    timestamp: str
    branch: str | None = None
    is_active: bool
    active_status: Status | None = None
    last_status: str | None = None
    """How it was left, in the words of `active_status`, where it is not in memory."""


class SessionList(ToolOutput):
    sessions: list[ListedSession] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        lines = [
            "  ".join(
                (
                    one.session_id,
                    one.timestamp[:16],
                    one.active_status or one.last_status or "-",
                    one.project_directory or "",
                    one.display_text,
                )
            )
            for one in self.sessions or []
        ]
        return "\n".join(lines) or "No sessions."


async def create_session(call: Call, given: CreateSession) -> Reply:
    if call.resumed_session is None:
        turn = await call.service.create(given.prompt, _options(call, given), owner=call.principal)
        session, delivery = turn.session, turn.message
    else:
        session = call.service.session(call.resumed_session, owner=call.principal)
        delivery = call.resumed_delivery(session)
    return await _went_on(call, session, given.wait_seconds, delivery=delivery)


def _options(call: Call, given: CreateSession) -> SessionOptions:
    return SessionOptions(
        cwd=given.working_directory or call.service.settings.default_cwd,
        model=given.model,
        permission_mode=given.permission_mode,
        allowed_tools=tuple(given.allowed_tools or ()),
        disallowed_tools=tuple(given.disallowed_tools or ()),
        max_turns=given.max_turns,
        max_budget_usd=given.max_budget_usd,
        append_system_prompt=given.system_prompt,
        dangerously_skip_permissions=bool(given.dangerously_skip_permissions),
        hub_servers=None if given.hub_servers is None else tuple(given.hub_servers),
    )


async def send_message(call: Call, given: SendMessage) -> Reply:
    if call.resumed_session is None:
        # The place behind which news begin is taken before the message: while it is sent, the turn already runs.
        here = [one for one in call.service.sessions(owner=call.principal) if one.id == given.session_id]
        since = here[0].events.cursor(here[0].events.last_seq) if here else None
        turn = await call.service.send(given.session_id, given.message, owner=call.principal)
        session, delivery = turn.session, turn.message
    else:
        session, since = call.service.session(call.resumed_session, owner=call.principal), None
        delivery = call.resumed_delivery(session)
    return await _went_on(call, session, given.wait_seconds, since, asked_as=given.session_id, delivery=delivery)


async def get_status(call: Call, given: GetStatus) -> Reply:
    session = await call.service.find(given.session_id, owner=call.principal)
    if given.part is not None:
        return _page(call, session, given.part, given.offset or 0)
    late = _take_answers(call, session)
    asked = await _waited(call, session, given.wait_seconds, late=late)
    if asked is not None:
        return asked
    notice, redactor = _TOO_LATE if late else None, call.service.redaction
    return report(
        session, redactor, lines=given.output_lines, cursor=given.cursor, notice=notice, asked_as=given.session_id
    )


def _page(call: Call, session: Session, part: str, offset: int) -> SessionReport:
    """One part of a report that was cut."""
    redactor, about = call.service.redaction, {"session_id": session.id, "status": status_of(session)}
    if part != PENDING:
        return SessionReport(**about, part=read_part(session, part, offset, redactor))
    parts = ResultParts(redactor)
    inputs = pending_inputs(session.questions, parts, offset)
    return SessionReport(**about, pending_inputs=inputs, truncated=parts.truncated)


async def respond(call: Call, given: Respond) -> Reply:
    session = call.service.session(given.session_id, owner=call.principal)
    since = session.events.cursor(session.events.last_seq)
    if call.resumed_session is None:
        answer = answer_in(
            given.decision, given.reason, given.scope, given.answers, given.updated_input, given.permission_mode
        )
        call.service.respond(given.session_id, given.input_id, answer, owner=call.principal, by="claude_respond")
        await call.service.saved(session.id)  # what was allowed for the session outlives this process
    return await _went_on(call, session, given.wait_seconds, since, asked_as=given.session_id)


async def interrupt(call: Call, given: Interrupt) -> Reply:
    interrupted = await call.service.interrupt(given.session_id, owner=call.principal)
    return interruption(interrupted.session, interrupted.dropped)


async def list_sessions(call: Call, given: ListSessions) -> Reply:
    entries = await call.service.catalogue(
        owner=call.principal, project=given.project_directory, limit=given.limit or 50, text=given.text
    )
    running = {session.id: session for session in call.service.sessions(owner=call.principal)}
    left = await call.service.last_states((entry.session_id for entry in entries), owner=call.principal)
    listed = (_listed(one, running.get(one.session_id), left.get(one.session_id)) for one in entries)
    return SessionList(sessions=list(listed))


def _listed(entry: Entry, running: Session | None, left: State | None) -> ListedSession:
    return ListedSession(
        session_id=entry.session_id,
        project_directory=entry.project,
        display_text=entry.title or entry.first_prompt or "",
        timestamp=iso(entry.last_used),
        branch=entry.branch,
        is_active=running is not None and running.live,
        active_status=SESSION_TOOL_STATUS[running.state] if running else None,
        last_status=SESSION_TOOL_STATUS[left] if left and not running else None,
    )


async def _went_on(
    call: Call,
    session: Session,
    seconds: float | None,
    since: str | None = None,
    *,
    asked_as: str | None = None,
    delivery: UserMessage | None = None,
) -> Reply:
    """What a call returns that set something going: at once, or a report of what came of it after a wait: all behind
    the cursor `since`, or all since the session came into memory.

    A call that sent a message waits for that message's outcome and reports that, whatever else the session does.
    """
    if call.resumed_session:
        since = str(call.state.get("since"))
    since = since or session.events.cursor(session.events.restored_seq)
    late = _take_answers(call, session)
    if not seconds:
        return Acknowledgement(session_id=session.id, status=status_of(session))
    asked = await _waited(call, session, seconds, delivery, since=since, late=late)
    notice, redactor = _TOO_LATE if late else None, call.service.redaction
    return asked or report(session, redactor, cursor=since, notice=notice, asked_as=asked_as, delivery=delivery)


def _take_answers(call: Call, session: Session) -> bool:
    """Shows the session's questions to this client and takes what it answered; tells if an answer came too late."""
    call.dialogs.follow(session.id)
    in_time = call.dialogs.take_all(session.id, call.responses, call.offsets)
    return not in_time or bool(call.state.get("late"))


async def _waited(
    call: Call, session: Session, seconds: float | None, delivery: UserMessage | None = None, **state: Any
) -> types.InputRequiredResult | None:
    """Waits; gives back the open questions where the client takes them as the result of a call."""
    if not seconds:
        return None
    if delivery is None:
        await rest_or_question(call, session, seconds)
        return open_questions(call, session, **state)
    await outcome_or_question(call, session, delivery, seconds)
    return None if delivery.outcome.done() else open_questions(call, session, message=delivery.id, **state)


_READS = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_STEERS = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

TOOLS: Mapping[str, Tool[Any]] = {
    tool.name: tool
    for tool in (
        Tool(
            "claude_create_session",
            "Start a Claude Code session on a task. Returns sessionId at once and works in the background. Then call "
            "claude_get_status with waitSeconds until status is no longer running: on waiting_for_input answer each "
            "pendingInputs entry with claude_respond; on completed read result, and continue with "
            "claude_send_message. With waitSeconds, returns like claude_get_status.",
            CreateSession,
            Acknowledgement,
            create_session,
            _WORKS,
        ),
        Tool(
            "claude_send_message",
            "Send a message to a session: into the running turn, or as a new turn. Any session on this machine is "
            "resumed by its id, finished and interactive ones too. With waitSeconds, returns like claude_get_status.",
            SendMessage,
            Acknowledgement,
            send_message,
            _WORKS,
        ),
        Tool(
            "claude_get_status",
            "Status, new output, open questions, cost and result of a session. waitSeconds makes it wait for the "
            "turn's end or a question instead of polling.",
            GetStatus,
            SessionReport,
            get_status,
            _READS,
        ),
        Tool(
            "claude_respond",
            "Answer a pending input. permission: allow (scope session: stop asking for the like) or deny with reason. "
            "plan_review: allow (permissionMode: go on in it), or deny with feedback as reason. "
            "user_question: allow with answers.",
            Respond,
            Acknowledgement,
            respond,
            _WORKS,
        ),
        Tool(
            "claude_interrupt",
            "Stop the running turn, like Escape in the terminal. The session stays usable.",
            Interrupt,
            Interruption,
            interrupt,
            _STEERS,
        ),
        Tool(
            "claude_list_sessions",
            "Claude Code sessions on this machine, newest first, interactive ones too.",
            ListSessions,
            SessionList,
            list_sessions,
            _READS,
        ),
    )
}
