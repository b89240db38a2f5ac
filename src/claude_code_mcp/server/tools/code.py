"""The `claude_code` tools: a call runs a turn and returns its result."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import mcp_types as types
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ...core.config import Settings
from ...core.errors import InvalidArgument, PermissionDenied
from ...core.model.usage_limits import OnLimit
from ...core.sessions.messages import WhenBusy
from ...core.sessions.pending_turn import PendingTurn
from ..rounds import RoundState
from .answer_arguments import AnswerTexts, ModeAfterPlan, answer_from
from .arguments import ABOUT_IMAGES, Arguments, Images, Milliseconds, Name, Offset, SessionId, Text
from .call import Call
from .code_options import SessionArguments, resume_options, session_options
from .output import ErrorInfo, ToolOutput
from .paging import ResultParts, read_part
from .session_info import SessionInfos, session_details, session_infos
from .tool import Reply, Tool
from .turn_report import TurnReport, finished_report, unfinished_report
from .waiting import open_questions, wait_for_rest, wait_for_turn

log = logging.getLogger(__name__)


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
    resumed = call.resumed_turn()
    # Before it is sent: a session that was only on disk is in memory afterwards.
    ignored = () if resumed is not None else _ignored_options(call, arguments)
    turn = resumed or await _reply(call, arguments)
    reply = await _turn_result(call, turn, None if arguments.fork_session else arguments.session_id)
    if ignored and isinstance(reply, TurnReport):
        notice = f"The session is in memory and keeps its options; ignored: {', '.join(ignored)}."
        return reply.model_copy(update={"notice": " ".join(filter(None, (notice, reply.notice)))})
    return reply


async def _reply(call: Call, arguments: ReplyArguments) -> PendingTurn:
    timeout = _seconds(arguments.timeout)
    resume = _resume_parameters(call, arguments)
    if arguments.fork_session:
        source = await call.service.find(arguments.session_id, caller=call.caller)
        source.refuse_if_busy()
        return await call.service.fork(
            arguments.session_id,
            arguments.prompt,
            caller=call.caller,
            timeout=timeout,
            images=arguments.images or (),
            **resume,
        )
    return await call.service.send(
        arguments.session_id,
        arguments.prompt,
        caller=call.caller,
        timeout=timeout,
        when_busy=WhenBusy.REFUSE,
        images=arguments.images or (),
        key=arguments.message_key,
        on_limit=arguments.on_limit,
        **resume,
    )


def _resume_parameters(call: Call, arguments: ReplyArguments) -> dict[str, Any]:
    """The options for resuming a session that is only on disk. One in memory keeps its own."""
    if not call.service.settings.allow_disk_resume:
        call.service.session(arguments.session_id, principal=call.principal)  # or SESSION_NOT_FOUND
        return {}
    if not isinstance(arguments, DiskReply):
        return {}
    call.check_mode(arguments.permission_mode)
    keeps_own = _in_memory(call, arguments) and not arguments.fork_session
    options = {} if keeps_own else {"options": resume_options(arguments)}
    return {**options, "at_message": arguments.resume_session_at}


def _in_memory(call: Call, arguments: ReplyArguments) -> bool:
    return any(session.id == arguments.session_id for session in call.service.sessions(principal=call.principal))


def _ignored_options(call: Call, arguments: ReplyArguments) -> tuple[str, ...]:
    """The options in a reply to a session in memory, as the caller wrote them. A fork gets them."""
    if not isinstance(arguments, DiskReply) or arguments.fork_session or not _in_memory(call, arguments):
        return ()
    fields = {name: field for name, field in SessionArguments.model_fields.items() if name != "on_limit"}
    return tuple(field.alias or name for name, field in fields.items() if getattr(arguments, name) is not None)


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
