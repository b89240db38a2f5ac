"""The `claude_code` family: a call runs a turn and returns its result; its many options."""

import logging
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import mcp_types as types
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from ...core.config import Settings
from ...core.errors import InvalidArgument, PermissionDenied
from ...core.model.options import Preset, SessionOptions, Thinking, ToolPreset
from ...core.model.usage_limits import OnLimit
from ...core.sessions.message_acceptance import PendingTurn
from ...core.sessions.messages import WhenBusy
from .answer_arguments import AnswerTexts, ModeAfterPlan, answer_from
from .arguments import ABOUT_IMAGES, Arguments, Count, Images, Milliseconds, Name, Offset, Text
from .call import Call
from .output import ErrorInfo, ToolOutput
from .paging import ResultParts, read_part
from .session_info import SessionInfos, session_details, session_infos
from .tool import Reply, Tool
from .turn_report import TurnReport, finished_report, unfinished_report
from .waiting import open_questions, wait_for_rest, wait_for_turn

log = logging.getLogger(__name__)


class SystemPromptPreset(Arguments):
    type: Literal["preset"]
    preset: Literal["claude_code"]
    append: str | None = None


class ToolsPreset(Arguments):
    type: Literal["preset"]
    preset: Literal["claude_code"]


class ThinkingMode(Arguments):
    type: Literal["adaptive", "enabled", "disabled"]
    budget_tokens: Count | None = None


class OutputFormat(Arguments):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class SessionArguments(Arguments):
    """Everything that shapes a session; only what is set is passed on."""

    written_as: ClassVar[Mapping[str, str]] = {
        "at_message": "resumeSessionAt",
        "executable": "pathToClaudeCodeExecutable",
        "file_checkpointing": "enableFileCheckpointing",
        "output_schema": "outputFormat.schema",
        "persist": "persistSession",
        "turn_timeout": "timeout",
    }

    cwd: str | None = None
    allowed_tools: list[str] | None = Field(None, description="Run without asking; with dontAsk, all that may run")
    disallowed_tools: list[str] | None = None
    tools: list[str] | ToolsPreset | None = None
    persist_session: bool | None = Field(None, description="Keep a transcript (default true)")
    permission_mode: str | None = Field(None, description="Default dontAsk")
    max_turns: Count | None = None
    model: str | None = None
    system_prompt: str | SystemPromptPreset | None = None
    agents: dict[str, Any] | None = None
    max_budget_usd: float | None = Field(None, gt=0)
    effort: str | None = None
    betas: list[str] | None = None
    additional_directories: list[str] | None = None
    output_format: OutputFormat | None = None
    thinking: ThinkingMode | None = None
    path_to_claude_code_executable: str | None = None
    agent: str | None = None
    mcp_servers: dict[str, dict[str, Any]] | None = None
    hub_servers: list[str] | None = None
    sandbox: dict[str, Any] | None = None
    fallback_model: str | None = None
    enable_file_checkpointing: bool | None = None
    include_partial_messages: bool | None = None
    strict_mcp_config: bool | None = None
    setting_sources: list[str] | None = None
    debug: bool | None = None
    debug_file: str | None = None
    env: dict[str, str] | None = None
    on_limit: OnLimit | None = None


_DEFAULT_MODE = "dontAsk"


def session_options(arguments: SessionArguments) -> SessionOptions:
    """The options of the session that these arguments ask for."""
    prompt, thinking = arguments.system_prompt, arguments.thinking
    return SessionOptions(
        cwd=arguments.cwd,
        allowed_tools=tuple(arguments.allowed_tools or ()),
        disallowed_tools=tuple(arguments.disallowed_tools or ()),
        tools=ToolPreset() if isinstance(arguments.tools, ToolsPreset) else _tuple(arguments.tools),
        persist=arguments.persist_session is not False,
        permission_mode=arguments.permission_mode or _DEFAULT_MODE,
        max_turns=arguments.max_turns,
        model=arguments.model,
        system_prompt=Preset(append=prompt.append) if isinstance(prompt, SystemPromptPreset) else prompt,
        agents=arguments.agents,
        max_budget_usd=arguments.max_budget_usd,
        effort=arguments.effort,
        betas=tuple(arguments.betas or ()),
        additional_directories=tuple(arguments.additional_directories or ()),
        output_schema=arguments.output_format.schema_ if arguments.output_format else None,
        thinking=thinking and Thinking(type=thinking.type, budget_tokens=thinking.budget_tokens),
        executable=arguments.path_to_claude_code_executable,
        agent=arguments.agent,
        mcp_servers=arguments.mcp_servers,
        hub_servers=_tuple(arguments.hub_servers),
        sandbox=arguments.sandbox,
        fallback_model=arguments.fallback_model,
        file_checkpointing=bool(arguments.enable_file_checkpointing),
        include_partial_messages=arguments.include_partial_messages is not False,
        strict_mcp_config=bool(arguments.strict_mcp_config),
        setting_sources=_tuple(arguments.setting_sources),
        debug=bool(arguments.debug),
        debug_file=arguments.debug_file,
        env=arguments.env or {},
        on_limit=arguments.on_limit,
    )


_OPTION_NAMES = {
    "persist_session": "persist",
    "output_format": "output_schema",
    "path_to_claude_code_executable": "executable",
    "enable_file_checkpointing": "file_checkpointing",
}


def resume_options(arguments: SessionArguments) -> SessionOptions:
    """The same for a session that is resumed from disk: only what the call itself sets counts as set, and overrides
    what is recorded of the session. The other values apply only where nothing is recorded."""
    full = session_options(arguments)
    options_set = {
        _OPTION_NAMES.get(name, name) for name in arguments.model_fields_set if getattr(arguments, name) is not None
    }
    return SessionOptions.model_construct(_fields_set=options_set & full.model_fields_set, **dict(full))


def _tuple(values: list[str] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(values)


# -- code -------------------------------------------------------------------------------------------------------------


class ClaudeCode(SessionArguments):
    from_settings: ClassVar[Mapping[str, str]] = {"cwd": "default_cwd"}

    prompt: Text
    images: Images | None = Field(None, description=ABOUT_IMAGES)
    worktree: bool | None = None
    stay_on_machine: SkipJsonSchema[bool | None] = None
    message_key: Name | None = None
    timeout: Milliseconds | None = Field(None, description="Milliseconds")


class ReplyArguments(Arguments):
    session_id: str
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
    session_id: str | None = None
    include_sensitive: bool | None = None
    part: Name | None = Field(None, description="With get: read this part of truncated, from offset on")
    offset: Offset | None = None
    wait_seconds: float | None = Field(None, ge=0, le=55, description="get, respond: wait for the turn or a question")
    input_id: str | None = Field(None, description="respond: of the entry in pendingInputs")
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


# -- one call, one turn ---------------------------------------------------------------------------------------


async def claude_code(call: Call, arguments: ClaudeCode) -> Reply:
    turn = call.resumed_turn() or await _create(call, arguments)
    return await _turn_result(call, turn)


async def _create(call: Call, arguments: ClaudeCode) -> PendingTurn:
    options = session_options(arguments)
    call.check_mode(options.permission_mode)
    stays = bool(arguments.stay_on_machine)
    options = options.model_copy(update={"worktree": bool(arguments.worktree), "stay_on_machine": stays})
    return await call.service.create(
        arguments.prompt,
        options,
        caller=call.caller,
        timeout=_seconds(arguments.timeout),
        images=arguments.images or (),
        key=arguments.message_key,
    )


async def claude_code_reply(call: Call, arguments: ReplyArguments) -> Reply:
    resumed = call.resumed_turn()
    # Before it is sent: a session that was only on disk is in memory afterwards.
    ignored = () if resumed is not None else _ignored_options(call, arguments)
    turn = resumed or await _reply(call, arguments)
    reply = await _turn_result(call, turn, None if arguments.fork_session else arguments.session_id)
    if ignored and isinstance(reply, TurnReport):
        notice = f"The session is in memory and keeps the options that it has; ignored: {', '.join(ignored)}."
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
    """What a session that is only on disk is resumed with. One in memory keeps what it has."""
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
    """The options in a reply to a session in memory, as the caller wrote them. A fork is given them."""
    if not isinstance(arguments, DiskReply) or arguments.fork_session or not _in_memory(call, arguments):
        return ()
    fields = {name: field for name, field in SessionArguments.model_fields.items() if name != "on_limit"}
    return tuple(field.alias or name for name, field in fields.items() if getattr(arguments, name) is not None)


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _turn_result(call: Call, turn: PendingTurn, asked_as: str | None = None) -> Reply:
    """Waits for the outcome of the call's own message; `asked_as` is the id under which the caller knows the session,
    where that may be another one by now."""
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


# -- looking after sessions -----------------------------------------------------------------------------------


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
        await call.respond(session, arguments.input_id, answer, "claude_code_session")
    call.follow(session.id)
    if arguments.wait_seconds:
        await call.detach(session.id)
        await wait_for_rest(call, session, arguments.wait_seconds)
    questions = open_questions(call, session) if arguments.wait_seconds else None
    return questions or session_details(session, sensitive, call.service.redaction, call.sharing(session))


# -- the bypass switch ----------------------------------------------------------------------------------------


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
    "A caller wants to switch permission checks off: Claude Code sessions could then run every command and change "
    "every file without asking. Allow that?"
)


async def _enable_bypass(call: Call) -> Reply:
    if not call.service.policy_for(call.caller).bypass_possible:
        raise PermissionDenied("The operator's policy never allows bypassPermissions.")
    answer = await call.confirmed(_BYPASS_QUESTION, "Switch permission checks off")
    if isinstance(answer, types.InputRequiredResult):
        return answer
    policy = call.service.policy_for(call.caller)
    if answer is None and policy.needs_person and not call.has_person_at_terminal:
        raise PermissionDenied("Only a person may switch it on, and this client cannot ask one.", field="action")
    if answer is False:  # where nobody can be asked, the policy alone decides, which has allowed it
        raise PermissionDenied("The person at the client did not confirm it; bypassPermissions stays off.")
    _switch_bypass(call, True)
    return Configuration(
        allow_bypass=True, message="bypassPermissions is switched on: sessions may run every tool without asking."
    )


_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_STEERS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def code_tools(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The tools of the toolset `code`; replies take more arguments where sessions may be resumed from disk."""
    tools: tuple[Tool[Any], ...] = (
        Tool(
            "claude_code",
            "Run a task in a new Claude Code session and return its result. Nobody is asked by default "
            "(permissionMode dontAsk): name what may run in allowedTools. If it takes too long for one call, returns "
            "with status running and the sessionId to go on with.",
            ClaudeCode,
            TurnReport,
            claude_code,
            _WORKS,
            app=True,
        ),
        Tool(
            "claude_code_reply",
            "Continue a session with another prompt; returns like claude_code. forkSession answers in a copy with a "
            "new id and leaves the original as it is.",
            DiskReply if settings.allow_disk_resume else ReplyArguments,
            TurnReport,
            claude_code_reply,
            _WORKS,
        ),
        Tool(
            "claude_code_session",
            "List the sessions of this server; get one with its result, output and pendingInputs; respond to a pending "
            "input (decision allow or deny; a user_question takes answers); or cancel one for good.",
            SessionAction,
            SessionInfos,
            claude_code_session,
            _STEERS,
        ),
        Tool(
            "claude_code_configure",
            "Switch the permission mode bypassPermissions on or off, or see whether it is.",
            Configure,
            Configuration,
            claude_code_configure,
            _STEERS,
        ),
    )
    return {tool.name: tool for tool in tools}
