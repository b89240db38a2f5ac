"""The `claude_code` family: one call, one turn, its result. A view of the same sessions as every other tool."""

from collections.abc import Mapping
from typing import Any, Literal

import mcp_types as types
from pydantic import Field

from ...config import Settings
from ...errors import ClaudeCodeError, InvalidArgument, PermissionDenied, SessionBusy
from ...model.outcome import Outcome as TurnOutcome
from ...model.outcome import OutcomeCode
from ...model.states import CODE_TOOL_STATUS, State
from ...model.text import iso
from ...sessions.messages import UserMessage, WhenBusy
from ...sessions.session import Session
from ..elicitation.forms import CONFIRM, confirmation, confirmed
from .answering import GivenAnswers, ModeAfterPlan, answer_in, how_to_answer, how_to_wait
from .argument_types import Milliseconds, Name, Offset
from .base import Arguments, Reply, Text, Tool, ToolOutput
from .code_options import SessionArguments, resume_options, session_options
from .context import Call
from .paging import ResultParts, read_part, told_cut, told_page
from .status import ErrorInfo, PendingInput, pending_inputs, report, told_inputs
from .waiting import open_questions, rest_or_question, timeout_error, wait_for_turn

_LONGEST = 256 << 10


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
    answers: GivenAnswers | None = None
    updated_input: dict[str, Any] | None = None
    permission_mode: ModeAfterPlan | None = Field(None, description="With an approved plan")


class Configure(Arguments):
    action: Literal["enable_bypass", "disable_bypass", "get_config"]


class TurnReport(ToolOutput):
    """What a turn came to; totals are the session's, the rest this call's."""

    session_id: str | None = None
    previous_session_id: str | None = Field(None, description="The id before /clear; it leads to the new one")
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
    truncated: list[dict[str, Any]] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return "\n".join([self.result or "", *told_inputs(self.pending_inputs), *told_cut(self.truncated)])

    @property
    def failed(self) -> bool:
        return bool(self.is_error)


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


class SessionInfos(ToolOutput):
    sessions: list[dict[str, Any]] | None = None
    message: str | None = None
    part: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return super().text() if self.part is None else told_page(self.part)


class Configuration(ToolOutput):
    allow_bypass: bool | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.message or ""


# -- one call, one turn ---------------------------------------------------------------------------------------


async def claude_code(call: Call, given: ClaudeCode) -> Reply:
    if call.resumed_session is not None:
        return await _resumed(call)
    options = session_options(given, call.service.settings)
    call.switches.check(options.permission_mode)
    options = options.model_copy(update={"turn_timeout": _seconds(given.timeout)})
    turn = await call.service.create(given.prompt, options, owner=call.principal)
    return await _turn(call, turn.session, turn.message)


async def claude_code_reply(call: Call, given: ReplyArguments) -> Reply:
    if call.resumed_session is not None:
        return await _resumed(call)
    timeout = _seconds(given.timeout)
    wanted = _disk_options(call, given)
    if given.fork_session:
        source = await call.service.find(given.session_id, owner=call.principal)
        source.refuse_if_busy()
        turn = await call.service.fork(given.session_id, given.prompt, owner=call.principal, timeout=timeout, **wanted)
        return await _turn(call, turn.session, turn.message)
    turn = await call.service.send(
        given.session_id,
        given.prompt,
        owner=call.principal,
        timeout=timeout,
        when_busy=WhenBusy.REFUSE,
        **wanted,
    )
    return await _turn(call, turn.session, turn.message, given.session_id)


def _disk_options(call: Call, given: ReplyArguments) -> dict[str, Any]:
    """What a session that is only on disk is resumed with. One in memory keeps what it has."""
    if not call.service.settings.allow_disk_resume:
        call.service.session(given.session_id, owner=call.principal)  # or SESSION_NOT_FOUND
        return {}
    if not isinstance(given, DiskReply):
        return {}
    call.switches.check(given.permission_mode)
    known = any(session.id == given.session_id for session in call.service.sessions(owner=call.principal))
    options = {} if known else {"options": resume_options(given, call.service.settings)}
    return {**options, "at_message": given.resume_session_at}


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


async def _resumed(call: Call) -> Reply:
    """Another round of a call, which waits for the message that the first round sent."""
    assert call.resumed_session is not None
    session = call.service.session(call.resumed_session, owner=call.principal)
    return await _turn(call, session, call.resumed_delivery(session), call.resumed_session)


async def _turn(call: Call, session: Session, delivery: UserMessage, asked_as: str | None = None) -> Reply:
    """The outcome of the call's own message; `asked_as` is the id under which the caller knows the session."""
    asked_as = asked_as or session.id
    asked = await wait_for_turn(call, session, delivery, call.service.settings.call_limit_ms / 1000)
    if asked is not None:
        return asked
    done, parts = delivery.outcome.done(), ResultParts(call.service.redaction)
    report = (
        _finished(session, delivery.outcome.result(), parts)
        if done
        else _unfinished(session, parts, call.service.settings)
    )
    return report.model_copy(update={"previous_session_id": asked_as}) if asked_as != session.id else report


def _unfinished(session: Session, parts: ResultParts, settings: Settings) -> TurnReport:
    waiting = session.state is State.WAITING
    how = how_to_answer(settings) if waiting else how_to_wait(settings)
    told = "waits for an answer" if waiting else "is still working"
    return TurnReport(
        session_id=session.id,
        status="waiting_for_input" if waiting else "running",
        result=f"Session {session.id} {told}. {how}",
        pending_inputs=pending_inputs(session.questions, parts) or None,
        truncated=parts.truncated,
    )


def _finished(session: Session, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    if outcome.code is OutcomeCode.TIMEOUT:
        raise timeout_error(session, outcome, _report(session, outcome, parts))
    if outcome.code is OutcomeCode.START_FAILED:
        raise _start_failure(outcome, session)
    return _report(session, outcome, parts)


def _report(session: Session, outcome: TurnOutcome, parts: ResultParts) -> TurnReport:
    return TurnReport(
        session_id=session.id,
        result=parts.text("result", outcome.result, _LONGEST)
        if outcome.result
        else parts.text("error", outcome.detail, _LONGEST),
        is_error=not outcome.ok,
        duration_ms=outcome.duration_ms,
        duration_api_ms=outcome.duration_api_ms,
        num_turns=outcome.num_turns,
        total_cost_usd=outcome.usage.cost_usd,
        session_total_turns=session.model_turns,
        session_total_cost_usd=session.usage.cost_usd,
        structured_output=parts.data("structuredOutput", outcome.structured_output, _LONGEST),
        stop_reason=outcome.stop_reason,
        error_subtype=None if outcome.ok else _subtype(outcome),
        usage=dict(outcome.raw_usage) or None,
        model_usage=_model_usage(outcome),
        permission_denials=parts.shortened(outcome.permission_denials, _LONGEST) or None,
        truncated=parts.truncated,
    )


def _subtype(outcome: TurnOutcome) -> str:
    """The CLI's own word where it has one; it calls an API failure a success."""
    told = outcome.subtype
    return told if told and told.startswith("error") else f"error_{outcome.code}"


def _start_failure(outcome: TurnOutcome, session: Session) -> ClaudeCodeError:
    if outcome.error_code == SessionBusy.code:
        return SessionBusy(outcome.detail, session_id=session.id)
    refused = session.start_error
    if refused is not None and refused.code != ClaudeCodeError.code:
        return refused  # the options were fine once, and are not any more
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
    if given.action == "cancel":
        session = await call.service.cancel(given.session_id, owner=call.principal)
        return _infos([session], sensitive, f"Session {session.id} was cancelled.")
    session = await call.service.find(given.session_id, owner=call.principal)
    if given.action == "get" and given.part is not None:
        return SessionInfos(part=read_part(session, given.part, given.offset or 0, call.service.redaction))
    if given.action == "respond" and call.resumed_session is None:
        _respond(call, session, given)
        await call.service.saved(session.id)  # what was allowed for the session outlives this process
    call.dialogs.follow(session.id)
    call.dialogs.take_all(session.id, call.responses, call.offsets)
    if given.wait_seconds:
        await rest_or_question(call, session, given.wait_seconds)
    asked = open_questions(call, session) if given.wait_seconds else None
    return asked or SessionInfos(sessions=[_detailed(call, session, sensitive)])


def _respond(call: Call, session: Session, given: SessionAction) -> None:
    for name, value in (("inputId", given.input_id), ("decision", given.decision)):
        if value is None:
            raise InvalidArgument(f"{name}: required for respond", field=name)
    assert given.input_id is not None
    assert given.decision is not None
    answer = answer_in(
        given.decision, given.reason, given.scope, given.answers, given.updated_input, given.permission_mode
    )
    call.service.respond(session.id, given.input_id, answer, owner=call.principal, by="claude_code_session")


def _detailed(call: Call, session: Session, sensitive: bool) -> dict[str, Any]:
    """A session with what its last turn has come to: its result and output, and what it waits for."""
    told = report(session, call.service.redaction)
    details = told.model_dump(mode="json", by_alias=True, exclude_none=True, include=_DETAILS)
    return {**_row(session, sensitive), **details}


_DETAILS = {
    "result",
    "recent_output",
    "pending_inputs",
    "structured_output",
    "error",
    "retrying",
    "stalled_seconds",
    "truncated",
}


def _infos(sessions: list[Session], sensitive: bool, message: str | None = None) -> SessionInfos:
    return SessionInfos(sessions=[_row(session, sensitive) for session in sessions], message=message)


def _row(session: Session, sensitive: bool) -> dict[str, Any]:
    return _info(session, sensitive).model_dump(mode="json", by_alias=True, exclude_none=True)


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
        created_at=iso(session.created_at),
        last_active_at=iso(session.used_at),
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
