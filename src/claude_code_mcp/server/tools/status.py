"""The reports of the session tools: status, output within a budget, open questions, and what was changed."""

import os
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import mcp_types as types
from pydantic import ConfigDict, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from ...errors import InvalidArgument, PermissionDenied
from ...model.events import Event, Gap, Output, Stalled
from ...model.options import Worktree
from ...model.outcome import SESSION_TOOL_STATUS, State
from ...model.question import Question
from ...model.text import as_json, clip_line, cut, iso
from ...questions.presentation import Redaction
from ...sessions.launcher import notices_of
from ...sessions.messages import UserMessage
from ...sessions.session import SessionView
from ...sessions.stored_sessions import ChangedFiles
from .base import ResultParts, ToolOutput, render_page, render_truncated
from .context import Call

_LONGEST_DIFF = 24_000
_MOST_FILES = 20


def worktree_report(session: SessionView) -> dict[str, str] | None:
    """Where the worktree of a session is, if it has one."""
    worktree = session.options.worktree
    if not isinstance(worktree, Worktree):
        return None
    facts = {"path": worktree.path, "branch": worktree.branch, "base": worktree.base[:12], "from": worktree.repository}
    return facts if os.path.isdir(worktree.path) else {**facts, "state": "removed"}


async def diff(call: Call, session_id: str) -> tuple[str, str | None]:
    """The changes in the worktree; those that are too long to be returned are in a file."""
    text = call.service.redaction.text(await call.service.work.diff(session_id, caller=call.caller))
    if len(text) <= _LONGEST_DIFF:
        return text or "Nothing has changed.", None
    path = await call.service.stored.keep_text(session_id, ".diff", text, caller=call.caller)
    return f"{text[:_LONGEST_DIFF]}\n[cut here; the whole diff is in {path}]", str(path)


async def discard(call: Call, session_id: str, *, confirmed: bool) -> str | types.InputRequiredResult:
    """Removes the worktree. What is not merged or committed is lost only with the yes of a person, or of a caller that
    says to have it."""
    work = call.service.work
    if confirmed:
        return await work.discard(session_id, None, caller=call.caller)
    lost = await work.unsaved(session_id, caller=call.caller)
    if lost:
        question = f"Discard the worktree of session {session_id}? This would be lost: {lost}."
        asked = await _asked(call, question, "Discard it", f"it has {lost}")
        if asked is not None:
            return asked
    # With what the person has seen: `discard` counts again, and refuses if that is something else.
    return await work.discard(session_id, lost, caller=call.caller)


async def changes(call: Call, session_id: str) -> str:
    """The messages that the files can be taken back to."""
    listed = await call.service.work.checkpoints(session_id, caller=call.caller)
    shown = [_work_line(changed, call) for changed in listed]
    return "Going back to a message would change, as files are now:\n" + "\n".join(shown)


def _work_line(changed: ChangedFiles, call: Call) -> str:
    checkpoint = changed.checkpoint
    prompt = clip_line(call.service.redaction.text(checkpoint.prompt), 80)
    return f"{checkpoint.message_id}  {checkpoint.at[:19]}  {changed}  {prompt!r}{_names(changed)}"


def _names(changed: ChangedFiles) -> str:
    more = len(changed.files) - _MOST_FILES
    names = [*changed.files[:_MOST_FILES], *([f"and {more} more"] if more > 0 else [])]
    return "".join(f"\n    {name}" for name in names)


async def rewind(
    call: Call, session_id: str, message_id: str | None, *, confirmed: bool
) -> str | types.InputRequiredResult:
    """Takes the files back to a message, with the yes of a person, or of a caller that says to have it."""
    if message_id is None:
        raise InvalidArgument("text: the id of the message to go back to, as changes lists it.", field="text")
    work, agreed = call.service.work, None
    if not confirmed:
        listed = await work.checkpoints(session_id, caller=call.caller)
        agreed = next((changed for changed in listed if changed.checkpoint.message_id == message_id), None)
        if agreed is None:
            raise InvalidArgument(f"There is no checkpoint at a message {message_id[:100]!r}.", field="text")
        question = f"Take the files of session {session_id} back to a message? This changes {agreed}:{_names(agreed)}"
        asked = await _asked(call, question, "Take them back", f"this changes {agreed}")
        if asked is not None:
            return asked
    # With what the person has seen: `rewind` looks again, and refuses if that is something else.
    changed = await work.rewind(session_id, message_id, agreed, caller=call.caller)
    return f"Taken back: {changed}. The conversation is as it was.{_names(changed)}"


async def _asked(call: Call, question: str, title: str, reason: str) -> types.InputRequiredResult | None:
    """Asks a person; returns the question where it goes back as the result of the call. PermissionDenied without a
    yes."""
    answer = await call.confirmed(question, title)
    if isinstance(answer, types.InputRequiredResult):
        return answer
    if answer is None:
        raise PermissionDenied(f"Nobody can be asked here, and {reason}: it takes confirm.", field="confirm")
    if not answer:
        raise PermissionDenied("The person at the client did not confirm it; nothing was changed.")
    return None


# -- status -----------------------------------------------------------------------------------------------------------


Status = Literal["running", "waiting_for_input", "completed", "error", "interrupted", "cancelled"]

OUTPUT_BUDGET = 24_000
_FROM_THE_START = "0"
_RESTART_NOTICE = (
    "The cursor is from before the session was last loaded: the output starts over with all that is kept; lines may "
    "come twice, and lines in between may be missing."
)
_DEFAULT_LINES = 50
_MAX_RESULT = 24_000
_MAX_ERROR = 4_000
_MAX_STRUCTURE = 256 << 10
_MAX_TOOLS = 20
_MAX_RULES = 20
_MAX_DROPPED = 500


StatusWord = Annotated[Status, WithJsonSchema({"type": "string"})]
"""A status in a short output: the schema of `claude_get_status` tells which there are, once."""


class ToolUseEvent(ToolOutput):
    tool_name: str
    status: str


class PendingInput(ToolOutput):
    input_id: str
    type: Literal["permission", "plan_review", "user_question"]
    tool_name: str
    tool_input: dict[str, Any]
    description: str
    reason: str | None = None
    blocked_path: str | None = None
    file_diff: SkipJsonSchema[str | None] = None
    file_note: SkipJsonSchema[str | None] = None
    modes: list[str] | None = None
    can_allow_for_session: bool | None = None
    session_rules: SkipJsonSchema[list[str] | None] = None
    expires_at: str | None = None


def _object_alone(schema: dict[str, Any]) -> None:
    schema.clear()
    schema["type"] = "object"


class ErrorInfo(ToolOutput):
    """In every output; its schema is kept short for that reason."""

    model_config = ConfigDict(json_schema_extra=_object_alone)

    code: str
    message: str


class SessionReport(ToolOutput):
    """What every session tool returns. Only what applies is there."""

    session_id: str | None = None
    previous_session_id: str | None = None
    status: Status | None = None
    result: str | None = None
    recent_output: list[str] | None = None
    pending_inputs: list[PendingInput] | None = None
    tool_use_events: list[ToolUseEvent] | None = None
    cost_usd: float | None = None
    tokens: dict[str, int] | None = None
    turn_count: int | None = None
    next_cursor: str | None = Field(None, description="Pass as cursor to get only what is new")
    has_more: bool | None = None
    stalled_seconds: int | None = None
    retrying: str | None = None
    queued: str | None = None
    memory_bytes: int | None = None
    worktree: dict[str, Any] | None = None
    structured_output: Any = None
    notice: str | None = None
    truncated: list[dict[str, Any]] | None = None
    part: dict[str, Any] | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        return render(self)


class Acknowledgement(ToolOutput):
    """The short form: enough to go on. A call that waited returns the fields of a full report too."""

    session_id: str | None = None
    status: StatusWord | None = None
    error: ErrorInfo | None = None


class Interruption(Acknowledgement):
    """What an interruption came to; `dropped_messages` are the beginnings of those that will never run."""

    dropped_messages: list[str] | None = None


def interruption(session: SessionView, dropped: Iterable[UserMessage], redactor: Redaction) -> Interruption:
    # Redacted first: half of a secret could not be recognised.
    beginnings = [cut(redactor.text(message.text), _MAX_DROPPED) for message in dropped]
    return Interruption(session_id=session.id, status=status_of(session), dropped_messages=beginnings or None)


def status_of(session: SessionView) -> Status:
    return _status(session.state)


def _status(state: State) -> Status:
    return SESSION_TOOL_STATUS[state]  # type: ignore[return-value]  # the values of the table are these


def report(
    session: SessionView,
    redactor: Redaction,
    *,
    lines: int | None = None,
    cursor: str | None = None,
    notice: str | None = None,
    asked_as: str | None = None,
    message: UserMessage | None = None,
) -> SessionReport:
    """The full report: output after `cursor` (at most `lines` of it), or the last `lines` lines. Parts that are too
    long for it are cut and named in `truncated`.

    A cursor from before the session was last loaded gets all output that is kept, and a notice: nothing is skipped
    silently. With a `message`, status and result are those of that message as soon as it has an outcome. `asked_as` is
    the id under which the caller knows the session.
    """
    parts = ResultParts(redactor)
    start, known = _start(session, cursor)
    output, next_cursor, more = _output(session, lines, start, parts)
    notices = (notice, None if known else _RESTART_NOTICE, session.not_recorded, *notices_of(session))
    notice = " ".join(filter(None, notices)) or None
    own = message.outcome.result() if message is not None and message.outcome.done() else None
    outcome = own or (None if session.busy else session.outcome)
    usage = session.usage.total
    return SessionReport(
        session_id=session.id,
        previous_session_id=asked_as if asked_as != session.id else None,
        status=_status(own.state) if own is not None else status_of(session),
        result=parts.text("result", outcome.result, _MAX_RESULT) if outcome and outcome.result else None,
        recent_output=output,
        pending_inputs=pending_inputs(session.questions, parts),
        tool_use_events=_tools(session),
        cost_usd=round(session.usage.cost_usd, 6),
        tokens={
            "input": usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens,
            "output": usage.output_tokens,
        },
        turn_count=session.model_turns,
        next_cursor=session.events.cursor(next_cursor),
        has_more=more or None,
        stalled_seconds=silent_seconds(session) if session.stalled else None,
        retrying=retrying_line(session),
        queued=session.queued,
        memory_bytes=session.memory_bytes,
        worktree=worktree_report(session),
        structured_output=parts.data("structuredOutput", outcome.structured_output, _MAX_STRUCTURE)
        if outcome
        else None,
        error=ErrorInfo(code=str(outcome.code), message=parts.text("error", outcome.detail, _MAX_ERROR))
        if outcome and not outcome.ok
        else None,
        notice=notice,
        truncated=parts.truncated,
    )


def silent_seconds(session: SessionView) -> int:
    """How long the process has been silent: since the stall was noticed, and before that."""
    noticed = session.events.latest(Stalled, 1)
    return int(sum(time.time() - stall.at + stall.seconds for stall in noticed if isinstance(stall, Stalled)))


def _tools(session: SessionView) -> list[ToolUseEvent]:
    recent = list(session.readable_lines.tools.values())[-_MAX_TOOLS:]
    return [ToolUseEvent(tool_name=tool.name, status=tool.status) for tool in recent]


def retrying_line(session: SessionView) -> str | None:
    """What the CLI waits for, after the API has refused; None if it does not."""
    retry = session.activity.retrying
    if retry is None:
        return None
    of = f" of {retry.of}" if retry.of else ""
    problem = f"API error {retry.status}" if retry.status else "The API cannot be reached"
    return f"{problem}: attempt {retry.attempt}{of}, next in {retry.delay_ms / 1000:.1f} s"


def pending_inputs(questions: Sequence[Question], parts: ResultParts, start: int = 0) -> list[PendingInput]:
    """Open questions as callers see them, with their whole input where there is room for it."""
    return [
        PendingInput(
            input_id=question.id,
            type=str(question.kind),
            tool_name=question.tool_name,
            tool_input=tool_input,
            description=question.description,
            reason=question.reason,
            blocked_path=question.blocked_path,
            file_diff=(question.change.diff or None) if question.change else None,
            file_note=(question.change.note or None) if question.change else None,
            modes=[*question.modes] or None,
            can_allow_for_session=bool(question.suggestions) or None,
            session_rules=_rules(question),
            expires_at=None if question.deadline is None else iso(question.deadline),
        )
        for question, tool_input in parts.questions(questions, start)
    ]


def _rules(question: Question) -> list[str] | None:
    rules = [*question.session_rules]
    more = [f"and {len(rules) - _MAX_RULES} more"] if len(rules) > _MAX_RULES else []
    return [*rules[:_MAX_RULES], *more] or None


def position_of(session: SessionView, cursor: str) -> int | None:
    """The event number of a cursor; None if it is not one of this log."""
    start, known = _start(session, cursor)
    return start if known else None


def _start(session: SessionView, cursor: str | None) -> tuple[int | None, bool]:
    """The event number behind which output is wanted (None without a cursor), and whether the cursor is of this log."""
    if cursor is None or cursor == _FROM_THE_START:
        return (None if cursor is None else 0), True
    try:
        position = session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier call.", field="cursor") from None
    return position or 0, position is not None


def _output(
    session: SessionView, lines: int | None, start: int | None, parts: ResultParts
) -> tuple[list[str], int, bool]:
    last = session.events.last_seq
    if start is None:
        latest = session.events.latest(Output, _DEFAULT_LINES if lines is None else lines)
        shown, _, _ = _within_budget(reversed(latest), parts)
        return shown[::-1], last, False
    shown, reached, more = _within_budget(session.events.after(start), parts, lines)
    return shown, (reached or start) if more else last, more


def _within_budget(
    events: Iterable[Event], parts: ResultParts, lines: int | None = None
) -> tuple[list[str], int, bool]:
    """Lines until the budget is used up, at least one unless `lines` forbids it; the number of the last event taken;
    whether more are left."""
    shown: list[str] = []
    left, reached = OUTPUT_BUDGET, 0
    for event in events:
        size = _size(event)
        if size is not None:
            if len(shown) == lines or (shown and size > left):
                return shown, reached, True
            shown.append(_line(event, parts))
            left -= len(shown[-1])
        reached = event.seq
    return shown, reached, False


def _size(event: Event) -> int | None:
    """How long its line is; None if it has none."""
    return len(event.line) if isinstance(event, Output) else 60 if isinstance(event, Gap) else None


def _line(event: Event, parts: ResultParts) -> str:
    if isinstance(event, Gap):
        return f"[{event.seq - event.first + 1} earlier events are no longer kept]"
    assert isinstance(event, Output)
    return parts.line(event, OUTPUT_BUDGET)


def render(report: SessionReport) -> str:
    """The report as text. Open questions are there with their input: some callers read nothing else."""
    if report.part is not None:
        return render_page(report.part)
    head = f"Session {report.session_id}: {report.status}"
    if report.cost_usd:
        head += f" (${report.cost_usd:.4f})"
    parts = [head, *(report.recent_output or [])]
    if report.has_more:
        parts.append(f"[more output: call claude_get_status with cursor {report.next_cursor}]")
    parts += render_inputs(report.pending_inputs)
    parts += render_truncated(report.truncated)
    if report.stalled_seconds:
        parts.append(f"[nothing heard for {report.stalled_seconds} s]")
    if report.retrying:
        parts.append(f"[retrying: {report.retrying}]")
    if report.queued:
        parts.append(f"[not started yet: {report.queued}]")
    if report.worktree:
        parts.append(f"[in the worktree {report.worktree['path']}, on branch {report.worktree['branch']}]")
    if report.notice:
        parts.append(f"[{report.notice}]")
    if report.error:
        parts.append(f"Ended with {report.error.code}: {report.error.message}")
    return "\n".join(parts)


def render_inputs(pending_inputs: list[PendingInput] | None) -> list[str]:
    """The text lines for open questions, each with its whole input."""
    return [
        f"WAITING [{entry.input_id}] {entry.type}: {entry.description}\ninput: {as_json(entry.tool_input)}"
        for entry in pending_inputs or []
    ]
