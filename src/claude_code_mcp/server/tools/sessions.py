"""The session tools: start, message, watch, answer, interrupt; with list (`list_sessions.py`) and read
(`read_session.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import mcp_types as types
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ...core.model.options import PERMISSION_MODES, SessionOptions
from ...core.model.usage_limits import OnLimit
from ...core.sessions.messages import UserMessage
from ...core.sessions.session import Session
from ..rounds import RoundState
from .answer_arguments import AnswerTexts, ModeAfterPlan, answer_from
from .arguments import ABOUT_IMAGES, ABOUT_KEY, Arguments, Count, Images, Name, Offset, Path, Rules, SessionId, Text
from .call import Call
from .list_sessions import LIST_SESSIONS
from .paging import PENDING, ResultParts, read_part
from .read_session import READ_SESSION
from .session_report import (
    Acknowledgment,
    Interruption,
    SessionReport,
    interruption,
    pending_inputs,
    position_of,
    report,
    status_of,
)
from .tool import Reply, Tool
from .waiting import open_questions, wait_for_change, wait_for_rest

BareWait = Annotated[float, Field(ge=0, le=55)]
"""For tools whose description already explains waiting."""
Wait = Annotated[BareWait, Field(description="Wait for the end or a question")]
_LATE_NOTICE = "An answer from the dialog came too late: "
_TAKEN_AWAY_NOTICE = "A dialog was withdrawn: "


class CreateSession(Arguments):
    written_as: ClassVar[Mapping[str, str]] = {"cwd": "workingDirectory", "append_system_prompt": "systemPrompt"}
    from_settings: ClassVar[Mapping[str, str]] = {"cwd": "default_cwd"}

    prompt: Text
    working_directory: Path | None = None
    model: Name | None = None
    permission_mode: Name | None = Field(None, json_schema_extra={"enum": list(PERMISSION_MODES)})
    allowed_tools: Rules | None = Field(None, description="Allowed without asking, e.g. Bash(npm test)")
    disallowed_tools: Rules | None = None
    max_turns: Count | None = None
    max_budget_usd: float | None = Field(None, gt=0)
    system_prompt: str | None = Field(None, description="Appended to Claude Code's system prompt")
    dangerously_skip_permissions: bool | None = None
    hub_servers: Rules | None = None
    images: Images | None = Field(None, description=ABOUT_IMAGES)
    worktree: bool | None = Field(None, description="In a new worktree and branch")
    checkpoints: bool | None = None
    on_limit: OnLimit | None = Field(None, description="wait: continue when a usage limit resets")
    stay_on_machine: SkipJsonSchema[bool | None] = None
    """Listed by the gateway of a fleet. Without a fleet, every session stays."""
    message_key: Name | None = Field(None, description=ABOUT_KEY)
    wait_seconds: BareWait | None = None


class SendMessage(Arguments):
    session_id: SessionId
    message: Text
    images: Images | None = None
    message_key: Name | None = None
    on_limit: OnLimit | None = None
    wait_seconds: BareWait | None = None


class GetStatus(Arguments):
    session_id: SessionId
    output_lines: int | None = Field(None, ge=0, le=1000, description="Default 50; with cursor: at most")
    cursor: Name | None = Field(None, description="nextCursor of the last call; 0: the start")
    part: Name | None = Field(None, description="Read this part of truncated, from offset")
    offset: Offset | None = None
    wait_seconds: BareWait | None = None
    any_change: bool | None = Field(None, description="With cursor: wait for new output or any change")


class Respond(Arguments):
    session_id: SessionId
    input_id: Name
    decision: Literal["allow", "deny"]
    reason: str | None = None
    scope: Literal["once", "session"] | None = None
    answers: AnswerTexts | None = Field(
        None, description="For user_question: labels or free text, by question or in order"
    )
    updated_input: dict[str, Any] | None = Field(None, description="Changed tool input, with allow")
    permission_mode: ModeAfterPlan | None = None
    wait_seconds: Wait | None = None


class Interrupt(Arguments):
    session_id: SessionId


async def create_session(call: Call, arguments: CreateSession) -> Reply:
    turn = call.resumed_turn() or await call.service.create(
        arguments.prompt,
        session_options(arguments),
        caller=call.caller,
        images=arguments.images or (),
        key=arguments.message_key,
    )
    return await _result(call, turn.session, arguments.wait_seconds, message=turn.message)


def session_options(arguments: CreateSession) -> SessionOptions:
    """The options of a new session from the caller's arguments."""
    return SessionOptions(
        cwd=arguments.working_directory,
        model=arguments.model,
        permission_mode=arguments.permission_mode,
        allowed_tools=tuple(arguments.allowed_tools or ()),
        disallowed_tools=tuple(arguments.disallowed_tools or ()),
        max_turns=arguments.max_turns,
        max_budget_usd=arguments.max_budget_usd,
        append_system_prompt=arguments.system_prompt,
        dangerously_skip_permissions=bool(arguments.dangerously_skip_permissions),
        hub_servers=None if arguments.hub_servers is None else tuple(arguments.hub_servers),
        worktree=bool(arguments.worktree),
        file_checkpointing=bool(arguments.checkpoints),
        on_limit=arguments.on_limit,
        stay_on_machine=bool(arguments.stay_on_machine),
    )


async def send_message(call: Call, arguments: SendMessage) -> Reply:
    # The cursor for new output is taken before the message is sent, because the turn starts right away.
    sessions = call.service.sessions(principal=call.principal)
    current = call.service.current_id(arguments.session_id)  # another one, if the conversation was cleared
    known = next((session for session in sessions if session.id == current), None)
    since = known.events.cursor(known.events.last_seq) if known is not None else None
    turn = call.resumed_turn() or await call.service.send(
        arguments.session_id,
        arguments.message,
        caller=call.caller,
        images=arguments.images or (),
        key=arguments.message_key,
        on_limit=arguments.on_limit,
    )
    return await _result(
        call, turn.session, arguments.wait_seconds, since, asked_as=arguments.session_id, message=turn.message
    )


async def get_status(call: Call, arguments: GetStatus) -> Reply:
    session = await call.service.find(arguments.session_id, caller=call.caller)
    if arguments.part is not None:
        return _part_report(call, session, arguments.part, arguments.offset or 0)
    if session.runs_elsewhere and arguments.wait_seconds:
        stores, peers = session.deps.stores, call.service.peers
        await peers.wait_for_rest(session.id, stores.recorder.records, stores.leases, arguments.wait_seconds)
        # Looked up again: the other server's changes are only on disk.
        session = await call.service.find(arguments.session_id, caller=call.caller)
    late = _accept_answers(call, session)
    if session.runs_elsewhere:
        pass  # events of the other server are not in this log
    elif arguments.any_change and arguments.cursor is not None:
        await wait_for_change(session, position_of(session, arguments.cursor), arguments.wait_seconds or 0)
    else:
        questions = await _wait(call, session, arguments.wait_seconds, None, RoundState(late=late))
        if questions is not None:
            return questions
    notice, redactor = _notice(call, session, late), call.service.redaction
    if session.runs_elsewhere:
        notice = await call.service.peers.report(session.id)
    return report(
        session,
        redactor,
        lines=arguments.output_lines,
        cursor=arguments.cursor,
        notice=notice,
        asked_as=arguments.session_id,
        sharing=call.sharing(session),
    )


def _part_report(call: Call, session: Session, part: str, offset: int) -> SessionReport:
    """One page of a part that was too long for a report."""
    redactor, identity = call.service.redaction, {"session_id": session.id, "status": status_of(session)}
    if part != PENDING:
        return SessionReport(**identity, part=read_part(session, part, offset, redactor))
    parts = ResultParts(redactor)
    inputs = pending_inputs(call.sharing(session).asked(session.questions), parts, offset)
    return SessionReport(**identity, pending_inputs=inputs, truncated=parts.truncated)


async def respond(call: Call, arguments: Respond) -> Reply:
    if call.resumed_session is None:
        answer = answer_from(arguments.decision, arguments)
        session, since = await call.respond(arguments.session_id, arguments.input_id, answer, "claude_respond")
    else:
        session = call.service.session(arguments.session_id, principal=call.principal)
        since = session.events.cursor(session.events.last_seq)
    return await _result(call, session, arguments.wait_seconds, since, asked_as=arguments.session_id)


async def interrupt(call: Call, arguments: Interrupt) -> Reply:
    interrupted = await call.service.interrupt(arguments.session_id, caller=call.caller)
    return interruption(interrupted.session, interrupted.dropped, call.service.redaction)


async def _result(
    call: Call,
    session: Session,
    seconds: float | None,
    since: str | None = None,
    *,
    asked_as: str | None = None,
    message: UserMessage | None = None,
) -> Reply:
    """The result of a call that started work in a session: an acknowledgment at once or, after a wait, a report with
    all output after the cursor `since`, or since the session was loaded.

    A call that sent a `message` waits for and reports the outcome of that message, whatever else the session does.
    """
    if call.resumed_session:
        since = call.state.since
    behind = session.events.cursor(session.events.restored_seq)
    late = _accept_answers(call, session)
    if not seconds:
        acknowledged = {"session_id": session.id, "status": status_of(session)}
        if since is None and session.events.restored_seq:
            return Acknowledgment(**acknowledged, next_cursor=behind)
        return Acknowledgment(**acknowledged)
    since = since or behind
    questions = await _wait(call, session, seconds, message, RoundState(since=since, late=late))
    notice, redactor = _notice(call, session, late), call.service.redaction
    return questions or report(
        session,
        redactor,
        cursor=since,
        notice=notice,
        asked_as=asked_as,
        message=message,
        sharing=call.sharing(session),
    )


def _accept_answers(call: Call, session: Session) -> str:
    """Show the session's questions to this client and accept the answers that the call brought; return who answered
    first if one came too late, in this round or an earlier one."""
    return call.follow(session.id) or call.state.late


def _notice(call: Call, session: Session, late: str) -> str | None:
    """A notice about questions that were shown here and answered elsewhere."""
    taken_away = call.dialogs.taken_away(session.id)
    if late:
        return _LATE_NOTICE + late
    return _TAKEN_AWAY_NOTICE + taken_away if taken_away else None


async def _wait(
    call: Call, session: Session, seconds: float | None, message: UserMessage | None, state: RoundState
) -> types.InputRequiredResult | None:
    """Wait, if requested; return the open questions if the client expects them as the result of a call. Unlike
    `wait_for_turn`, sends no progress, and a cancelled wait leaves the turn running in the background."""
    if not seconds:
        return None
    await call.detach(session.id, message.id if message is not None else None)
    await wait_for_rest(call, session, seconds, message)
    if message is None:
        return open_questions(call, session, state)
    return None if message.outcome.done() else open_questions(call, session, replace(state, message=message.id))


_READS = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_STEERS = types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
TOOLS: Mapping[str, Tool[Any]] = {
    tool.name: tool
    for tool in (
        Tool(
            "claude_create_session",
            "Start a Claude Code session",
            "Start a Claude Code session on a task. Returns sessionId at once and works in the background. Then call "
            "claude_get_status with waitSeconds until status is not running: on waiting_for_input answer each "
            "pendingInputs entry with claude_respond; on completed read result, and continue with "
            "claude_send_message. With waitSeconds, returns like claude_get_status.",
            CreateSession,
            SessionReport,
            create_session,
            _WORKS,
            app=True,
        ),
        Tool(
            "claude_send_message",
            "Send a message to a session",
            "Send a message to a session: into the running turn, or as a new turn. Resumes any session on this "
            "machine by its id, including finished and interactive ones. With waitSeconds, returns like "
            "claude_get_status.",
            SendMessage,
            SessionReport,
            send_message,
            _WORKS,
        ),
        Tool(
            "claude_get_status",
            "Get a session's status",
            "Status, new output, open questions, cost and result of a session. waitSeconds waits for the "
            "turn's end or a question instead of polling.",
            GetStatus,
            SessionReport,
            get_status,
            _READS,
            app=True,
        ),
        Tool(
            "claude_respond",
            "Answer a session's question",
            "Answer a pending input. permission: allow (scope session: similar calls too) or deny with reason. "
            "plan_review: allow (permissionMode: the mode to continue in), or deny with feedback as reason. "
            "user_question: allow with answers.",
            Respond,
            SessionReport,
            respond,
            _WORKS,
        ),
        Tool(
            "claude_interrupt",
            "Interrupt a session",
            "Stop the running turn, like Escape in the terminal. The session stays usable.",
            Interrupt,
            Interruption,
            interrupt,
            _STEERS,
        ),
        LIST_SESSIONS,
        READ_SESSION,
    )
}
