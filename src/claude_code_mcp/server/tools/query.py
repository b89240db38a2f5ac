"""`claude_code_query`: every message of a turn as a notification while it happens, and the bundle at its end."""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import mcp_types as types
from pydantic import Field

from ...config import Settings
from ...model.events import Event, Gap, Message, Partial, PartialRun, TurnEnded
from ...model.options import SessionOptions
from ...model.outcome import Outcome as TurnOutcome
from ...model.outcome import OutcomeCode
from ...model.states import State
from ...model.text import iso
from ...sessions.messages import UserMessage
from ...sessions.session import Session
from ...store.event_log import Subscription
from .. import sdk
from .argument_types import Count, Name, Path, Rules
from .base import Arguments, Reply, Text, Tool, ToolOutput
from .context import Call
from .query_buffer import Fragments, NotificationQueue, Numbered
from .status import ErrorInfo
from .waiting import either, left_waiting, open_questions, outcome_so_far, timeout_problem, told_progress

METHOD = "claude-code/messages"
_BUNDLE_BYTES = 16 << 20
_NAMES = {
    name.lower(): name
    for name in (
        "Read",
        "Write",
        "Edit",
        "Bash",
        "Glob",
        "Grep",
        "WebFetch",
        "WebSearch",
        "NotebookEdit",
        "Task",
        "TodoWrite",
    )
}


class QueryOptions(Arguments):
    cwd: Path | None = None
    max_turns: Count | None = None
    model: Name | None = None
    append_system_prompt: str | None = None
    permission_mode: Name | None = None
    allowed_tools: Rules | None = None
    disallowed_tools: Rules | None = None
    max_messages: int | None = Field(None, ge=0, le=10_000, description="Messages in the result (default 100)")
    include_system_messages: bool | None = Field(None, description="Default true")
    include_partial_messages: bool | None = Field(None, description="Stream fragments too")


class Query(Arguments):
    prompt: Text
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
    error: ErrorInfo | None = None

    def text(self) -> str:
        return self.result.summary if self.result else ""

    @property
    def failed(self) -> bool:
        return self.result is not None and not self.result.success


async def claude_code_query(call: Call, given: Query) -> Reply:
    options = given.options or QueryOptions()
    if call.resumed_session is None:
        call.switches.check(options.permission_mode)
        wanted = _session_options(call, options)
        turn = await call.service.create(given.prompt, wanted, owner=call.principal)
        session, delivery = turn.session, turn.message
    else:
        session = call.service.session(call.resumed_session, owner=call.principal)
        delivery = call.resumed_delivery(session)
    return await _Stream(call, session, delivery, options).run()


def _session_options(call: Call, options: QueryOptions) -> SessionOptions:
    settings = call.service.settings
    allowed = map(_rule, settings.query_allowed_tools) if options.allowed_tools is None else options.allowed_tools
    return SessionOptions(
        cwd=options.cwd or settings.default_cwd,
        max_turns=options.max_turns,
        model=options.model,
        append_system_prompt=options.append_system_prompt,
        permission_mode=options.permission_mode or settings.default_permission_mode,
        allowed_tools=tuple(allowed),
        disallowed_tools=tuple(options.disallowed_tools or ()),
        turn_timeout=settings.max_execution_time_ms / 1000,
    )


def _rule(written: str) -> str:
    """A rule with the tool's name as Claude Code spells it."""
    name, bracket, rest = written.partition("(")
    return f"{_NAMES.get(name.lower(), name)}{bracket}{rest}"


class _Stream:
    """One query: each message is numbered and kept as it happens, and sent when the client is ready for it.

    It ends with the turn of its own message: what others have the session do afterwards is not part of it.
    """

    def __init__(self, call: Call, session: Session, delivery: UserMessage, options: QueryOptions) -> None:
        self._call = call
        self._session = session
        self._delivery = delivery
        self._partials = bool(options.include_partial_messages)
        self._system = options.include_system_messages is not False
        self._limit = 100 if options.max_messages is None else options.max_messages
        self._kept: deque[Message] = deque()
        self._kept_bytes = 0
        self._backlog = NotificationQueue()
        self._fragments = Fragments(call.service.redaction)
        # What an earlier round of this call had come to.
        self._began = call.resumed("began") or _now()
        # A place in the log of an earlier life of the session means nothing in this one.
        same_log = call.state.get("log") == session.events.epoch
        self._reached = (call.resumed("reached") or 0) if same_log else 0
        self._sequence = call.resumed("sequence") or 0
        self._total = call.resumed("total") or 0
        self._missed = call.resumed("missed") or 0

    def _position(self) -> dict[str, int | str]:
        return {
            "message": self._delivery.id,
            "log": self._session.events.epoch,
            "began": self._began,
            "reached": self._reached,
            "sequence": self._sequence,
            "total": self._total,
            "missed": self._missed + self._backlog.lost,
        }

    async def run(self) -> Reply:
        call, session = self._call, self._session
        call.dialogs.follow(session.id)
        call.dialogs.take_all(session.id, call.responses, call.offsets)
        self._recall()
        try:
            with call.dialogs.waiting(session.id, call.context.request_id, call.context.session):
                async with told_progress(call, session):
                    asked = await self._stream()
        except asyncio.CancelledError:
            left_waiting(call, session, self._delivery)
            raise
        return asked or self._bundle()

    def _recall(self) -> None:
        """What an earlier round has sent belongs into the bundle too."""
        for event in self._session.events.after(0):
            if event.seq <= self._reached and isinstance(event, Message) and self._is_bundled(event):
                self._keep(event)

    async def _stream(self) -> types.InputRequiredResult | None:
        """Until the turn is over and everything is sent, or a question must go back to the client."""
        with self._call.holding.listening(self._session, self._reached) as listening:
            async with asyncio.TaskGroup() as tasks:
                noting = tasks.create_task(self._note(listening.events))
                sending = tasks.create_task(self._send())
                asked = await self._question()
                if asked is None:
                    listening.events.close()
                else:  # what happens from now on is for the next round
                    listening.comes_back = True
                    noting.cancel()
                    sending.cancel()
        return asked

    async def _question(self) -> types.InputRequiredResult | None:
        """A question for a client that takes it as the result of a call; None when the message has its outcome."""
        call, session, delivery = self._call, self._session, self._delivery
        while not delivery.outcome.done():
            await either(delivery, session.wait(None, for_questions=call.returns_questions))
            if session.state is State.WAITING and not delivery.outcome.done():
                await either(delivery, self._backlog.all_read())
                asked = None if delivery.outcome.done() else open_questions(call, session, **self._position())
                if asked is not None:
                    return asked
                if session.state is State.WAITING:  # put away by the person: somebody else may answer it
                    await either(delivery, call.dialogs.change())
        return None

    async def _note(self, events: Subscription) -> None:
        """Never waits for the client, so nothing is missed and the numbers are right however slow it is."""
        async for event in events:
            self._take(event)
            self._reached = event.seq
            if isinstance(event, TurnEnded) and event.number == self._delivery.turn:
                break  # what follows is of another message's turn
        self._backlog.close()

    def _take(self, event: Event) -> None:
        if not isinstance(event, Partial):
            for left in self._fragments.flush():
                self._number(left, event)
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
            self._miss(len(event.parts))
        elif isinstance(event, Gap):
            self._miss(event.seq - event.first + 1)

    def _number(self, message: Mapping[str, Any], event: Event) -> None:
        self._sequence += 1
        self._backlog.put(Numbered(self._sequence, message, event.at, event.size))

    def _miss(self, count: int) -> None:
        """While the client put a question to a person, so much happened that the log has not kept it all."""
        self._sequence += count
        self._missed += count

    def _is_bundled(self, event: Message) -> bool:
        return _is_for_clients(event) and (self._system or event.type != "system")

    def _keep(self, event: Message) -> None:
        kept = self._kept
        kept.append(event)
        self._kept_bytes += event.size
        while kept and (len(kept) > self._limit or (self._kept_bytes > _BUNDLE_BYTES and len(kept) > 1)):
            self._kept_bytes -= kept.popleft().size

    async def _send(self) -> None:
        async for sequence, message, at, _ in self._backlog:
            params = {
                "type": "claude_code_message",
                "sessionId": self._session.id,
                "message": self._call.service.redaction.data(message),
                "timestamp": iso(at),
                "sequence": sequence,
            }
            await sdk.notify_on_call(self._call.context, METHOD, params)

    def _bundle(self) -> Bundle:
        outcome = self._delivery.outcome.result()
        return Bundle(
            session_id=self._session.id,
            messages=[dict(event.raw) for event in self._kept],
            execution_time=_now() - self._began,
            usage=dict(outcome.raw_usage) or None,
            total_cost_usd=outcome.usage.cost_usd,
            result=_result(self._session, outcome),
            truncated=self._truncation(),
            error=timeout_problem(self._session, outcome),
        )

    def _truncation(self) -> Truncation | None:
        dropped = self._missed + self._backlog.lost
        if self._total == len(self._kept) and not dropped:
            return None
        return Truncation(total=self._total, returned=len(self._kept), dropped_notifications=dropped or None)


def _is_for_clients(event: Message) -> bool:
    """All but what passes between the CLI and its host."""
    return event.type != "command_lifecycle"


def _now() -> int:
    """Milliseconds, on a clock that only goes forward."""
    return int(time.monotonic() * 1000)


def _result(session: Session, outcome: TurnOutcome) -> QueryResult:
    so_far = outcome_so_far(session) if outcome.code is OutcomeCode.TIMEOUT else ""
    return QueryResult(
        success=outcome.ok,
        summary=outcome.result or so_far or outcome.detail,
        error=None if outcome.ok else f"{outcome.code}: {outcome.detail}",
        timed_out=outcome.code is OutcomeCode.TIMEOUT or None,
    )


def query_tools(_: Settings) -> Mapping[str, Tool[Any]]:
    tool = Tool(
        "claude_code_query",
        f"Run a prompt in a new Claude Code session. Every message is sent as a {METHOD} notification while it "
        "happens; the result bundles the last messages, usage and outcome.",
        Query,
        Bundle,
        claude_code_query,
        types.ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True),
    )
    return {tool.name: tool}
