"""`claude_code_query`: every message of a turn as a notification as it arrives, and a bundle of them at the end.

Between the session's log and the client, `streamed_redaction.py` holds back the starts of secrets, and
`notification_queue.py` queues what the client has not read yet. Both are bounded: a client that stops reading costs no
more than this and blocks no other client.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import mcp_types as types
from pydantic import Field

from ...core.model.built_in_tools import proper_name
from ...core.model.events import Event, Gap, Message, Partial, PartialRun, TurnEnded, ends_text
from ...core.model.options import SessionOptions
from ...core.model.outcome import OutcomeCode
from ...core.model.states import State
from ...core.model.text import iso
from ...core.model.usage_limits import OnLimit
from ...core.sessions.messages import UserMessage
from ...core.sessions.option_notices import notices_of
from ...core.sessions.session import Session
from ...core.transcripts.event_log import Subscription
from .. import sdk
from ..rounds import RoundState, StreamPosition
from .arguments import Arguments, Count, Name, Path, Rules, Text
from .call import Call
from .notification_queue import NotificationQueue, Numbered
from .output import ErrorInfo, ToolOutput
from .progress import progress_of
from .session_report import LimitInfo, limit_info
from .streamed_redaction import Fragments
from .tool import Reply, Tool
from .turn_report import ended_info, output_so_far
from .waiting import first_of, open_questions, waiting_cancelled

METHOD = "claude-code/messages"
_MAX_BUNDLE_BYTES = 16 << 20


class QueryOptions(Arguments):
    from_settings: ClassVar[Mapping[str, str]] = {
        "cwd": "default_cwd",
        "permission_mode": "default_permission_mode",
        "allowed_tools": "query_allowed_tools",
    }

    cwd: Path | None = None
    max_turns: Count | None = None
    model: Name | None = None
    append_system_prompt: str | None = None
    permission_mode: Name | None = None
    allowed_tools: Rules | None = None
    disallowed_tools: Rules | None = None
    on_limit: OnLimit | None = None
    max_messages: int | None = Field(None, ge=0, le=10_000, description="Messages in the result (default 100)")
    include_system_messages: bool | None = Field(None, description="Default true")
    include_partial_messages: bool | None = Field(None, description="Also stream message fragments")


class Query(Arguments):
    prompt: Text
    message_key: Name | None = None
    options: QueryOptions | None = None


class QueryResult(ToolOutput):
    success: bool
    summary: str
    error: str | None = None
    timed_out: bool | None = None


class Truncation(ToolOutput):
    total: int
    returned: int
    dropped_notifications: int | None = None


class Bundle(ToolOutput):
    session_id: str | None = None
    messages: list[dict[str, Any]] | None = None
    execution_time: int | None = Field(None, description="Milliseconds")
    usage: dict[str, Any] | None = None
    total_cost_usd: float | None = None
    result: QueryResult | None = None
    truncated: Truncation | None = None
    notice: str | None = None
    limit: LimitInfo | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        if self.result is None:
            return ""
        endings = (self.error.message if self.error else None, self.notice)
        return "\n".join([self.result.summary, *(f"[{ending}]" for ending in endings if ending)])

    @property
    def failed(self) -> bool:
        return self.result is not None and not self.result.success


async def claude_code_query(call: Call, arguments: Query) -> Reply:
    options = arguments.options or QueryOptions()
    turn = call.resumed_turn()
    if turn is None:
        call.check_mode(options.permission_mode)
        wanted, timeout = _session_options(call, options), call.service.settings.max_execution_time_ms / 1000
        turn = await call.service.create(
            arguments.prompt, wanted, caller=call.caller, timeout=timeout, key=arguments.message_key
        )
    return await _QueryStream(call, turn.session, turn.message, options).run()


def _session_options(call: Call, options: QueryOptions) -> SessionOptions:
    settings = call.service.settings
    allowed = map(_rule, settings.query_allowed_tools) if options.allowed_tools is None else options.allowed_tools
    return SessionOptions(
        cwd=options.cwd,
        max_turns=options.max_turns,
        model=options.model,
        append_system_prompt=options.append_system_prompt,
        permission_mode=options.permission_mode or settings.default_permission_mode,
        allowed_tools=tuple(allowed),
        disallowed_tools=tuple(options.disallowed_tools or ()),
        on_limit=options.on_limit,
    )


def _rule(rule: str) -> str:
    """A rule with the tool's name as Claude Code spells it."""
    name, bracket, rest = rule.partition("(")
    return f"{proper_name(name)}{bracket}{rest}"


class _QueryStream:
    """One round of a query. Each event of the session is numbered and bundled as it happens, and queued for the client.

    The stream ends with the turn of its own message: later turns of the session, which others start, are not part of
    it. Numbers, totals and the log position are passed from round to round through the state of the call.
    """

    def __init__(self, call: Call, session: Session, message: UserMessage, options: QueryOptions) -> None:
        self._call = call
        self._session = session
        self._user_message = message
        self._partials = bool(options.include_partial_messages)
        self._system = options.include_system_messages is not False
        self._limit = 100 if options.max_messages is None else options.max_messages
        self._kept: deque[Message] = deque()
        self._kept_bytes = 0
        self._queue = NotificationQueue()
        self._fragments = Fragments(call.service.redaction)
        # Where an earlier round of this call stopped.
        before = call.state.stream
        self._began = before.began if before is not None else _now()
        # A number of the log is meaningless once the session was unloaded and has a new log.
        self._reached = before.reached if before is not None and before.epoch == session.events.epoch else 0
        self._sequence = before.sequence if before is not None else 0
        self._total = before.total if before is not None else 0
        self._missed = before.missed if before is not None else 0

    def _state(self) -> RoundState:
        """The state that the next round needs to continue from here."""
        position = StreamPosition(
            epoch=self._session.events.epoch,
            reached=self._reached,
            began=self._began,
            sequence=self._sequence,
            total=self._total,
            missed=self._missed + self._queue.lost,
        )
        return RoundState(message=self._user_message.id, stream=position)

    async def run(self) -> Reply:
        call, session = self._call, self._session
        call.follow(session.id)
        await call.detach(session.id, self._user_message.id)
        # Messages that an earlier round sent are in the bundle again.
        for event in session.events.after(0):
            if event.seq <= self._reached and isinstance(event, Message) and self._is_bundled(event):
                self._keep(event)
        try:
            with call.dialogs.waiting(session.id, call.context.request_id, call.context.session):
                async with progress_of(call, session):
                    questions = await self._stream()
        except asyncio.CancelledError:
            waiting_cancelled(call, session, self._user_message)
            raise
        return questions or self._bundle()

    async def _stream(self) -> types.InputRequiredResult | None:
        """Run until the turn is over and everything is sent; return earlier with questions for the client."""
        call, session, outcome = self._call, self._session, self._user_message.outcome
        with call.held_events.subscribe(session, self._reached) as round_:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._send())
                consuming = tasks.create_task(self._consume(round_.events))
                while await self._is_asked():
                    # No more numbering from here on: numbered messages are sent before the questions are returned, and
                    # later events stay in the subscription.
                    consuming.cancel()
                    await asyncio.wait({consuming})
                    await first_of(outcome, self._queue.all_read())
                    questions = None if outcome.done() else open_questions(call, session, self._state())
                    if questions is not None:
                        round_.continues = True
                        sending.cancel()
                        return questions
                    if consuming.cancelled():
                        consuming = tasks.create_task(self._consume(round_.events))
                    if session.state is State.WAITING:  # the person dismissed it: another channel may answer
                        await first_of(outcome, call.dialogs.wait_for_change())
                # Ends `_consume` after the remaining events of the subscription, and with it the queue and `_send`.
                round_.events.close()
        return None

    async def _is_asked(self) -> bool:
        """Wait for a question to return as the result of the call; False when the message has its outcome."""
        session, outcome = self._session, self._user_message.outcome
        while not outcome.done():
            await first_of(outcome, session.wait(None, for_questions=self._call.returns_questions))
            if session.state is State.WAITING and not outcome.done():
                return True
        return False

    async def _consume(self, events: Subscription) -> None:
        """Number and bundle the events. Never waits for the client, so a slow client misses nothing."""
        async for event in events:
            self._take(event)
            self._reached = event.seq
            if isinstance(event, TurnEnded) and event.number == self._user_message.turn:
                break  # later events belong to another message's turn
        self._queue.close()

    def _take(self, event: Event) -> None:
        held: Sequence[Mapping[str, Any]] = ()
        if isinstance(event, Message) and event.type != "system":
            held = self._fragments.flush_of(event.raw.get("parent_tool_use_id"))
        elif ends_text(event):
            held = self._fragments.flush()
        for fragment in held:
            self._number(fragment, event)
        if isinstance(event, Message):
            if _is_for_clients(event):
                self._number(event.raw, event)
            if self._is_bundled(event):
                self._total += 1
                self._keep(event)
        elif isinstance(event, Partial) and self._partials and event.raw is not None:
            for fragment in self._fragments.take(event.raw):
                self._number(fragment, event)
        elif isinstance(event, PartialRun) and self._partials:
            self._count_missed(len(event.parts))
        elif isinstance(event, Gap):
            self._count_missed(event.seq - event.first + 1)

    def _number(self, message: Mapping[str, Any], event: Event) -> None:
        self._sequence += 1
        self._queue.put(Numbered(self._sequence, message, event.at, event.size))

    def _count_missed(self, count: int) -> None:
        """Count events that the log dropped between two rounds, so that the numbers show the gap."""
        self._sequence += count
        self._missed += count

    def _is_bundled(self, event: Message) -> bool:
        return _is_for_clients(event) and (self._system or event.type != "system")

    def _keep(self, event: Message) -> None:
        kept = self._kept
        kept.append(event)
        self._kept_bytes += event.size
        while kept and (len(kept) > self._limit or (self._kept_bytes > _MAX_BUNDLE_BYTES and len(kept) > 1)):
            self._kept_bytes -= kept.popleft().size

    async def _send(self) -> None:
        task = self._call.task
        async for piece in self._queue:
            # Read in any case: `all_read` waits for that. Once the call is a task, no client reads notifications.
            if task is None or not task.is_begun:
                notifications = (
                    {
                        "type": "claude_code_message",
                        "sessionId": self._session.id,
                        "message": self._call.service.redaction.data(numbered.message),
                        "timestamp": iso(numbered.at),
                        "sequence": numbered.sequence,
                    }
                    for numbered in piece
                )
                await sdk.send_all(self._call.context, ((METHOD, each) for each in notifications))

    def _bundle(self) -> Bundle:
        outcome = self._user_message.outcome.result()
        so_far = output_so_far(self._session) if outcome.code in (OutcomeCode.TIMEOUT, OutcomeCode.CANCELLED) else ""
        dropped = self._missed + self._queue.lost
        truncated = None
        if dropped or self._total != len(self._kept):
            truncated = Truncation(total=self._total, returned=len(self._kept), dropped_notifications=dropped or None)
        return Bundle(
            session_id=self._session.id,
            messages=[dict(event.raw) for event in self._kept],
            execution_time=_now() - self._began,
            usage=dict(outcome.raw_usage) or None,
            total_cost_usd=outcome.usage.cost_usd,
            result=QueryResult(
                success=outcome.ok,
                summary=outcome.final_text or so_far or outcome.detail,
                error=None if outcome.ok else f"{outcome.code}: {outcome.detail}",
                timed_out=outcome.code is OutcomeCode.TIMEOUT or None,
            ),
            truncated=truncated,
            notice=" ".join(notices_of(self._session)) or None,
            limit=limit_info(self._session, outcome),
            error=ended_info(self._session, outcome),
        )


def _is_for_clients(event: Message) -> bool:
    """Whether a message is for clients: all except those between the CLI and its host."""
    return event.type != "command_lifecycle"


def _now() -> int:
    """Milliseconds, on a clock that only goes forward."""
    return int(time.monotonic() * 1000)


def query_tools() -> Mapping[str, Tool[Any]]:
    tool = Tool(
        "claude_code_query",
        "Ask Claude Code",
        f"Run a prompt in a new Claude Code session. Every message is sent as a {METHOD} notification as it arrives; "
        "the result has the last messages, usage and outcome.",
        Query,
        Bundle,
        claude_code_query,
        types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )
    return {tool.name: tool}
