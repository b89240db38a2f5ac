"""The `claude_code` tools: a call runs a turn and returns its result."""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

import mcp_types as types
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ...core.config import Settings
from ...core.errors import InvalidArgument, PermissionDenied
from ...core.model.states import CODE_TOOL_STATUS
from ...core.model.usage_limits import OnLimit
from ...core.redaction import Redactor
from ...core.sessions.callers.session_access import SessionSharing
from ...core.sessions.messages import BusyMode
from ...core.sessions.pending_turn import PendingTurn
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import session_row
from ..rounds import RoundState
from .answer_arguments import AnswerTexts, ModeAfterPlan, answer_from
from .arguments import ABOUT_IMAGES, Arguments, Images, Milliseconds, Name, Offset, SessionId, Text
from .call import Call
from .code_options import SessionArguments, resume_options, session_options
from .output import ErrorInfo, Shares, ToolOutput
from .paging import PartPage, ResultParts, TruncatedPart, read_part, render_page
from .session_report import LimitInfo, PendingInput, WorktreeInfo, limit_info, report
from .tool import Reply, Tool
from .turn_report import TurnReport, finished_report, unfinished_report
from .waiting import open_questions, wait_for_rest, wait_for_turn

log = logging.getLogger(__name__)

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


class ClaudeCode(SessionArguments):
    from_settings: ClassVar[Mapping[str, str]] = {"cwd": "default_cwd"}

    prompt: Text
    images: Images | None = Field(None, description=ABOUT_IMAGES)
    worktree: bool | None = None
    stay_on_machine: SkipJsonSchema[bool | None] = None
    message_key: Name | None = None
    timeout: Milliseconds | None = Field(None, description="Milliseconds")


class ReplyArguments(Arguments):
    session_id: SessionId
    prompt: Text
    images: Images | None = None
    message_key: Name | None = None
    fork_session: bool | None = None
    timeout: Milliseconds | None = None
    on_limit: OnLimit | None = None


class DiskReply(ReplyArguments, SessionArguments):
    resume_session_at: str | None = None


class SessionAction(Arguments):
    action: Literal["list", "get", "respond", "cancel"]
    session_id: SessionId | None = None
    include_sensitive: bool | None = None
    part: Name | None = Field(None, description="With get: read this part of `truncated`, starting at offset")
    offset: Offset | None = None
    wait_seconds: float | None = Field(None, ge=0, le=55, description="get, respond: wait for the turn or a question")
    input_id: str | None = Field(None, description="respond: id of the entry in pendingInputs")
    decision: Literal["allow", "deny"] | None = None
    reason: str | None = None
    scope: Literal["once", "session"] | None = None
    answers: AnswerTexts | None = None
    updated_input: dict[str, Any] | None = None
    permission_mode: ModeAfterPlan | None = Field(None, description="With an approved plan")


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


class Configure(Arguments):
    action: Literal["enable_bypass", "disable_bypass", "get_config"]


class Configuration(ToolOutput):
    allow_bypass: bool | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.message or ""


async def claude_code(call: Call, arguments: ClaudeCode) -> Reply:
    turn = call.resumed_turn()
    if turn is None:
        options = session_options(
            arguments, worktree=bool(arguments.worktree), stay_on_machine=bool(arguments.stay_on_machine)
        )
        call.check_mode(options.permission_mode)
        turn = await call.service.create(
            arguments.prompt,
            options,
            caller=call.caller,
            timeout=_seconds(arguments.timeout),
            images=arguments.images or (),
            key=arguments.message_key,
        )
    return await _turn_result(call, turn)


async def claude_code_reply(call: Call, arguments: ReplyArguments) -> Reply:
    turn = call.resumed_turn()
    ignored: tuple[str, ...] = ()
    if turn is None:
        turn, ignored = await _send_reply(call, arguments)
    reply = await _turn_result(call, turn, None if arguments.fork_session else arguments.session_id)
    if ignored and isinstance(reply, TurnReport):
        notice = f"The session is in memory and keeps its options; ignored: {', '.join(ignored)}."
        return reply.model_copy(update={"notice": " ".join(filter(None, (notice, reply.notice)))})
    return reply


async def _send_reply(call: Call, arguments: ReplyArguments) -> tuple[PendingTurn, tuple[str, ...]]:
    """Send the message, and return its turn and the options that have no effect, as the caller wrote them: a session in
    memory keeps its own; one that is resumed from disk and a fork get those of the call."""
    timeout = _seconds(arguments.timeout)
    resume: dict[str, Any] = {}
    ignored: tuple[str, ...] = ()
    if not call.service.settings.allow_disk_resume:
        call.service.session(arguments.session_id, principal=call.principal)  # or SESSION_NOT_FOUND
    elif isinstance(arguments, DiskReply):
        call.check_mode(arguments.permission_mode)
        resume["at_message"] = arguments.resume_session_at
        # Before it is sent: a session that was only on disk is in memory afterward.
        sessions = call.service.sessions(principal=call.principal)
        if not arguments.fork_session and any(session.id == arguments.session_id for session in sessions):
            fields = {name: field for name, field in SessionArguments.model_fields.items() if name != "on_limit"}
            ignored = tuple(
                field.alias or name for name, field in fields.items() if getattr(arguments, name) is not None
            )
        else:
            resume["options"] = resume_options(arguments)
    if arguments.fork_session:
        source = await call.service.find(arguments.session_id, caller=call.caller)
        source.refuse_if_busy()
        turn = await call.service.fork(
            arguments.session_id,
            arguments.prompt,
            caller=call.caller,
            timeout=timeout,
            images=arguments.images or (),
            **resume,
        )
        return turn, ignored
    turn = await call.service.send(
        arguments.session_id,
        arguments.prompt,
        caller=call.caller,
        timeout=timeout,
        busy_mode=BusyMode.REFUSE,
        images=arguments.images or (),
        key=arguments.message_key,
        on_limit=arguments.on_limit,
        **resume,
    )
    return turn, ignored


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _turn_result(call: Call, turn: PendingTurn, asked_as: str | None = None) -> Reply:
    """Wait for the outcome of the call's own message; `asked_as` is the id under which the caller knows the session,
    which may have changed."""
    session, message = turn.session, turn.message
    asked_as = call.resumed_session or asked_as or session.id
    questions = await wait_for_turn(call, session, message, call.service.settings.call_limit_ms / 1000)
    if questions is not None:
        return questions
    parts = ResultParts(call.service.redaction)
    if message.outcome.done():
        report = finished_report(session, message.outcome.result(), parts)
    else:
        report = unfinished_report(session, parts, call.service.settings)
    return report.model_copy(update={"previous_session_id": asked_as}) if asked_as != session.id else report


async def claude_code_session(call: Call, arguments: SessionAction) -> Reply:
    sensitive = bool(arguments.include_sensitive)
    if sensitive and not call.service.settings.allow_sensitive_session_details:
        raise PermissionDenied(
            "includeSensitive is not allowed here; the operator must set "
            "CLAUDE_CODE_MCP_ALLOW_SENSITIVE_SESSION_DETAILS=1."
        )
    if arguments.action == "list":
        sessions = call.service.sessions(principal=call.principal)
        return session_infos([(session, call.sharing(session)) for session in sessions], sensitive)
    if arguments.session_id is None:
        raise InvalidArgument(f"sessionId: required for {arguments.action}", field="sessionId")
    if arguments.action == "cancel":
        session = await call.service.cancel(arguments.session_id, caller=call.caller)
        return session_infos([(session, call.sharing(session))], sensitive, f"Session {session.id} was cancelled.")
    session = await call.service.find(arguments.session_id, caller=call.caller)
    if arguments.action == "get" and arguments.part is not None:
        return SessionInfos(part=read_part(session, arguments.part, arguments.offset or 0, call.service.redaction))
    if arguments.action == "respond" and call.resumed_session is None:
        if arguments.input_id is None or arguments.decision is None:
            missing = "inputId" if arguments.input_id is None else "decision"
            raise InvalidArgument(f"{missing}: required for respond", field=missing)
        answer = answer_from(arguments.decision, arguments)
        await call.respond(session.id, arguments.input_id, answer, "claude_code_session")
    call.follow(session.id)
    if arguments.wait_seconds:
        await call.detach(session.id)
        await wait_for_rest(call, session, arguments.wait_seconds)
    questions = open_questions(call, session, RoundState()) if arguments.wait_seconds else None
    return questions or session_details(session, sensitive, call.service.redaction, call.sharing(session))


def session_infos(
    sessions: Iterable[tuple[Session, SessionSharing]], sensitive: bool, message: str | None = None
) -> SessionInfos:
    """The rows of a session list, each with its owner; `sensitive` adds directories, prompts and agents."""
    rows = [_session_info(session, sensitive, sharing) for session, sharing in sessions]
    return SessionInfos(sessions=rows, message=message)


def session_details(session: Session, sensitive: bool, redactor: Redactor, sharing: SessionSharing) -> SessionInfos:
    """One session with the outcome of its last turn: result, output and open questions."""
    details = report(session, redactor)
    info = _session_info(session, sensitive, sharing)
    return SessionInfos(sessions=[info.model_copy(update={name: getattr(details, name) for name in _DETAILS})])


def _session_info(session: Session, sensitive: bool, sharing: SessionSharing) -> SessionInfo:
    options = session.options
    prompt = options.system_prompt
    hidden = {
        "cwd": session.shown_directory,
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


async def claude_code_configure(call: Call, arguments: Configure) -> Reply:
    if arguments.action == "enable_bypass":
        return await _enable_bypass(call)
    if arguments.action == "disable_bypass":
        _switch_bypass(call, False)
    bypass = call.service.policy_for(call.caller).bypass_on
    return Configuration(allow_bypass=bypass, message=f"bypassPermissions is switched {'on' if bypass else 'off'}.")


def _switch_bypass(call: Call, on: bool) -> None:
    call.service.policy_for(call.caller).set_bypass(on, by=call.principal)
    log.warning("bypassPermissions was switched %s by %s", "on" if on else "off", call.principal)


_BYPASS_QUESTION = (
    "A caller asks to turn off permission checks. Claude Code sessions could then run any command and change any file "
    "without asking. Allow this?"
)


async def _enable_bypass(call: Call) -> Reply:
    if not call.service.policy_for(call.caller).bypass_possible:
        raise PermissionDenied("The operator's policy never allows bypassPermissions.")
    answer = await call.confirmed(_BYPASS_QUESTION, "Turn off permission checks")
    if isinstance(answer, types.InputRequiredResult):
        return answer
    policy = call.service.policy_for(call.caller)
    if answer is None and policy.needs_person and not call.has_person_at_terminal:
        raise PermissionDenied(
            "Only a person may switch it on, and this client cannot show a confirmation dialog.", field="action"
        )
    if answer is False:  # if the client cannot ask, the policy decides, which has allowed it
        raise PermissionDenied("The user did not confirm; bypassPermissions stays off.")
    _switch_bypass(call, True)
    return Configuration(
        allow_bypass=True, message="bypassPermissions is switched on: sessions may run every tool without asking."
    )


_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_STEERS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def code_tools(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the toolset `code`; replies accept more arguments if sessions may be resumed from disk."""
    tools: tuple[Tool[Any], ...] = (
        Tool(
            "claude_code",
            "Run Claude Code",
            "Run a task in a new Claude Code session and return its result. By default it asks no questions "
            "(permissionMode dontAsk): list the tools it may use in allowedTools. If it takes too long for one call, "
            "returns status running and the sessionId to continue with.",
            ClaudeCode,
            TurnReport,
            claude_code,
            _WORKS,
            app=True,
        ),
        Tool(
            "claude_code_reply",
            "Reply to Claude Code",
            "Continue a session with another prompt; returns like claude_code. forkSession continues in a copy with a "
            "new id and leaves the original unchanged.",
            DiskReply if settings.allow_disk_resume else ReplyArguments,
            TurnReport,
            claude_code_reply,
            _WORKS,
        ),
        Tool(
            "claude_code_session",
            "Get a Claude Code session",
            "List the sessions of this server; get one with its result, output and pendingInputs; respond to a pending "
            "input (decision allow or deny; a user_question takes answers); or cancel one permanently.",
            SessionAction,
            SessionInfos,
            claude_code_session,
            _STEERS,
        ),
        Tool(
            "claude_code_configure",
            "Configure a Claude Code session",
            "Switch the permission mode bypassPermissions on or off, or report whether it is on.",
            Configure,
            Configuration,
            claude_code_configure,
            _STEERS,
        ),
    )
    return {tool.name: tool for tool in tools}
