"""The `claude_code` family: one call, one turn, its result. A view of the same sessions as every other tool."""

from collections.abc import Mapping
from typing import Any, Literal

import mcp_types as types
from pydantic import Field

from ..config import Settings
from ..errors import ClaudeCodeError, InvalidArgument, PermissionDenied, TurnTimeout
from ..model.states import CODE_TOOL_STATUS, State
from ..model.turn import Outcome as TurnOutcome
from ..model.turn import OutcomeCode
from ..sessions.session import Session
from .call import Call
from .code_options import SessionArguments, session_options
from .forms import CONFIRM, confirmation, confirmed
from .limits import Milliseconds
from .status import PendingInput, Problem, pending_input
from .tool import Arguments, Outcome, Reply, Text, Tool
from .turns import wait_for_turn


class ClaudeCode(SessionArguments):
    prompt: Text
    timeout: Milliseconds | None = Field(None, description="Milliseconds")


class ReplyArguments(Arguments):
    session_id: str
    prompt: Text
    fork_session: bool | None = None
    timeout: Milliseconds | None = None


class DiskReply(ReplyArguments, SessionArguments):
    resume_session_at: str | None = None


class SessionAction(Arguments):
    action: Literal["list", "get", "cancel"]
    session_id: str | None = None
    include_sensitive: bool | None = None


class Configure(Arguments):
    action: Literal["enable_bypass", "disable_bypass", "get_config"]


class TurnReport(Outcome):
    """What a turn came to; totals are the session's, the rest this call's."""

    session_id: str | None = None
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
    pending_inputs: list[PendingInput] | None = None
    error: Problem | None = None

    def text(self) -> str:
        return self.result or ""

    @property
    def failed(self) -> bool:
        return bool(self.is_error)


class SessionInfo(Outcome):
    session_id: str
    status: str
    created_at: float
    last_active_at: float
    total_turns: int
    total_cost_usd: float
    model: str | None = None
    permission_mode: str | None = None
    cwd: str | None = None
    system_prompt: Any = None
    agents: Any = None
    additional_directories: list[str] | None = None


class SessionInfos(Outcome):
    sessions: list[dict[str, Any]] | None = None
    message: str | None = None
    error: Problem | None = None


class Configuration(Outcome):
    allow_bypass: bool | None = None
    message: str | None = None
    error: Problem | None = None

    def text(self) -> str:
        return self.message or ""


# -- one call, one turn ---------------------------------------------------------------------------------------


async def claude_code(call: Call, given: ClaudeCode) -> Reply:
    if call.resumed_session is not None:
        return await _turn(call, call.service.session(call.resumed_session, owner=call.principal))
    options = session_options(given, call.service.settings)
    call.switches.check(options.permission_mode)
    options = options.model_copy(update={"turn_timeout": _seconds(given.timeout)})
    session, _ = await call.service.create(given.prompt, options, owner=call.principal)
    return await _turn(call, session)


async def claude_code_reply(call: Call, given: ReplyArguments) -> Reply:
    if call.resumed_session is not None:
        return await _turn(call, call.service.session(call.resumed_session, owner=call.principal))
    timeout = _seconds(given.timeout)
    wanted = _disk_options(call, given)
    if given.fork_session:
        source = await call.service.find(given.session_id, owner=call.principal)
        source.refuse_if_busy()
        session, _ = await call.service.fork(
            given.session_id, given.prompt, owner=call.principal, timeout=timeout, **wanted
        )
    else:
        session, _ = await call.service.send(
            given.session_id, given.prompt, owner=call.principal, timeout=timeout, only_idle=True, **wanted
        )
    return await _turn(call, session)


def _disk_options(call: Call, given: ReplyArguments) -> dict[str, Any]:
    """What a session that is only on disk is resumed with. One in memory keeps what it has."""
    if not call.service.settings.allow_disk_resume:
        call.service.session(given.session_id, owner=call.principal)  # or SESSION_NOT_FOUND
        return {}
    if not isinstance(given, DiskReply):
        return {}
    call.switches.check(given.permission_mode)
    known = any(session.id == given.session_id for session in call.service.sessions(owner=call.principal))
    options = {} if known else {"options": session_options(given, call.service.settings)}
    return {**options, "at_message": given.resume_session_at}


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _turn(call: Call, session: Session) -> Reply:
    asked = await wait_for_turn(call, session, call.service.settings.call_limit_ms / 1000)
    if asked is not None:
        return asked
    if session.busy:
        return _unfinished(session)
    assert session.outcome is not None
    return _finished(session, session.outcome)


def _unfinished(session: Session) -> TurnReport:
    waiting = session.state is State.WAITING
    how = (
        "Answer each entry of pendingInputs with claude_respond; then wait with claude_get_status."
        if waiting
        else "It goes on in the background: wait for it with claude_get_status, then continue with claude_code_reply."
    )
    told = "waits for an answer" if waiting else "is still working"
    return TurnReport(
        session_id=session.id,
        status="waiting_for_input" if waiting else "running",
        result=f"Session {session.id} {told}. {how}",
        pending_inputs=[pending_input(question) for question in session.questions] or None,
    )


def _finished(session: Session, outcome: TurnOutcome) -> TurnReport:
    if outcome.code is OutcomeCode.TIMEOUT:
        raise TurnTimeout(f"{outcome.detail} Session {session.id} can be continued.", session_id=session.id)
    if outcome.code is OutcomeCode.START_FAILED:
        raise _start_failure(outcome, session)
    return TurnReport(
        session_id=session.id,
        result=outcome.result or outcome.detail,
        is_error=not outcome.ok,
        duration_ms=outcome.duration_ms,
        duration_api_ms=outcome.duration_api_ms,
        num_turns=outcome.num_turns,
        total_cost_usd=outcome.usage.cost_usd,
        session_total_turns=session.model_turns,
        session_total_cost_usd=session.usage.cost_usd,
        structured_output=outcome.structured_output,
        stop_reason=outcome.stop_reason,
        error_subtype=None if outcome.ok else _subtype(outcome),
        usage=dict(outcome.raw_usage) or None,
        model_usage=_model_usage(outcome),
        permission_denials=[dict(denial) for denial in outcome.permission_denials] or None,
    )


def _subtype(outcome: TurnOutcome) -> str:
    """The CLI's own word where it has one; it calls an API failure a success."""
    told = outcome.subtype
    return told if told and told.startswith("error") else f"error_{outcome.code}"


def _start_failure(outcome: TurnOutcome, session: Session) -> ClaudeCodeError:
    return ClaudeCodeError(f"Session {session.id} could not start: {outcome.detail}", session_id=session.id)


def _model_usage(outcome: TurnOutcome) -> dict[str, Any] | None:
    told = {
        name: {
            "inputTokens": usage.input_tokens,
            "outputTokens": usage.output_tokens,
            "cacheReadInputTokens": usage.cache_read_tokens,
            "cacheCreationInputTokens": usage.cache_creation_tokens,
            "costUSD": usage.cost_usd,
        }
        for name, usage in outcome.usage.models.items()
    }
    return told or None


# -- looking after sessions -----------------------------------------------------------------------------------


async def claude_code_session(call: Call, given: SessionAction) -> Reply:
    sensitive = bool(given.include_sensitive)
    if sensitive and not call.service.settings.allow_sensitive_session_details:
        raise PermissionDenied(
            "includeSensitive is not allowed here; the operator must set "
            "CLAUDE_CODE_MCP_ALLOW_SENSITIVE_SESSION_DETAILS=1."
        )
    if given.action == "list":
        return _infos(call.service.sessions(owner=call.principal), sensitive)
    if given.session_id is None:
        raise InvalidArgument(f"sessionId: required for {given.action}", field="sessionId")
    if given.action == "get":
        return _infos([call.service.session(given.session_id, owner=call.principal)], sensitive)
    session = await call.service.cancel(given.session_id, owner=call.principal)
    return _infos([session], sensitive, f"Session {session.id} was cancelled.")


def _infos(sessions: list[Session], sensitive: bool, message: str | None = None) -> SessionInfos:
    told = [_info(session, sensitive) for session in sessions]
    rows = [info.model_dump(mode="json", by_alias=True, exclude_none=True) for info in told]
    return SessionInfos(sessions=rows, message=message)


def _info(session: Session, sensitive: bool) -> SessionInfo:
    options = session.options
    hidden = {
        "cwd": session.cwd,
        "system_prompt": _told_prompt(session),
        "agents": options.agents,
        "additional_directories": list(options.additional_directories) or None,
    }
    return SessionInfo(
        session_id=session.id,
        status=CODE_TOOL_STATUS[session.state],
        created_at=session.created_at,
        last_active_at=session.used_at,
        total_turns=session.model_turns,
        total_cost_usd=session.usage.cost_usd,
        model=options.model,
        permission_mode=options.permission_mode,
        **(hidden if sensitive else {}),
    )


def _told_prompt(session: Session) -> Any:
    prompt = session.options.system_prompt
    return prompt if prompt is None or isinstance(prompt, str) else prompt.model_dump(exclude_none=True)


# -- the bypass switch ----------------------------------------------------------------------------------------


async def claude_code_configure(call: Call, given: Configure) -> Reply:
    if given.action == "enable_bypass":
        return await _enable_bypass(call)
    if given.action == "disable_bypass":
        call.switches.set_bypass(False, by=call.principal)
    told = "on" if call.switches.bypass else "off"
    return Configuration(allow_bypass=call.switches.bypass, message=f"bypassPermissions is switched {told}.")


async def _enable_bypass(call: Call) -> Reply:
    if not call.service.bypass_possible(call.principal):
        raise PermissionDenied("The operator's policy never allows bypassPermissions.")
    if call.returns_questions and CONFIRM not in call.responses:
        return call.dialogs.confirmation_result()
    if not await _is_confirmed(call):
        raise PermissionDenied("The person at the client did not confirm it; bypassPermissions stays off.")
    call.switches.set_bypass(True, by=call.principal)
    return Configuration(
        allow_bypass=True, message="bypassPermissions is switched on: sessions may run every tool without asking."
    )


async def _is_confirmed(call: Call) -> bool:
    """Asks the person where the client can; a client that cannot ask has the operator's word in the policy."""
    if call.returns_questions:
        response = call.responses[CONFIRM]
        return isinstance(response, types.ElicitResult) and confirmed(response.action, response.content)
    if not call.can_ask:
        return True
    message, schema = confirmation()
    result = await call.context.session.elicit_form(message, schema, related_request_id=call.context.request_id)
    return confirmed(result.action, result.content)


_WORKS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
_STEERS = types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def code_tools(settings: Settings) -> Mapping[str, Tool[Any]]:
    """The family; replies take more where sessions may be resumed from disk."""
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
        ),
        Tool(
            "claude_code_reply",
            "Continue a session with another prompt and return the result. forkSession answers in a copy with a new "
            "id and leaves the original as it is.",
            DiskReply if settings.allow_disk_resume else ReplyArguments,
            TurnReport,
            claude_code_reply,
            _WORKS,
        ),
        Tool(
            "claude_code_session",
            "List the sessions of this server, get one, or cancel one for good.",
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
