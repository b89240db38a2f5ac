"""`claude_code_query`: every message of a turn as a notification while it happens, and the bundle at its end."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import mcp_types as types
from pydantic import Field

from ..config import Settings
from ..model.events import Event, Gap, Message, Partial
from ..model.options import SessionOptions
from ..model.turn import Outcome as TurnOutcome
from ..model.turn import OutcomeCode
from ..sessions.session import Session
from ..store.log import Subscription
from . import sdk
from .call import Call
from .status import Problem
from .tool import Arguments, Outcome, Reply, Text, Tool
from .turns import open_questions

METHOD = "claude-code/messages"
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
    cwd: str | None = None
    max_turns: int | None = Field(None, gt=0)
    model: str | None = None
    append_system_prompt: str | None = None
    permission_mode: str | None = None
    allowed_tools: list[str] | None = None
    disallowed_tools: list[str] | None = None
    max_messages: int | None = Field(None, ge=0, le=10_000, description="Messages in the result (default 100)")
    include_system_messages: bool | None = Field(None, description="Default true")
    include_partial_messages: bool | None = Field(None, description="Stream fragments too")


class Query(Arguments):
    prompt: Text
    options: QueryOptions | None = None


class QueryResult(Outcome):
    success: bool
    summary: str
    error: str | None = None
    timed_out: bool | None = None


class Truncation(Outcome):
    total: int
    returned: int
    dropped_notifications: int | None = None


class Bundle(Outcome):
    session_id: str | None = None
    messages: list[dict[str, Any]] | None = None
    execution_time: int | None = Field(None, description="Milliseconds")
    usage: dict[str, Any] | None = None
    result: QueryResult | None = None
    truncated: Truncation | None = None
    error: Problem | None = None

    def text(self) -> str:
        return self.result.summary if self.result else ""

    @property
    def failed(self) -> bool:
        return self.result is not None and not self.result.success


async def claude_code_query(call: Call, given: Query) -> Reply:
    options = given.options or QueryOptions()
    if call.resumed_session is None:
        session, _ = await call.service.create(given.prompt, _session_options(call, options), owner=call.principal)
    else:
        session = call.service.session(call.resumed_session, owner=call.principal)
    return await _Stream(call, session, options).run()


def _session_options(call: Call, options: QueryOptions) -> SessionOptions:
    settings = call.service.settings
    return SessionOptions(
        cwd=options.cwd or settings.default_cwd,
        max_turns=options.max_turns,
        model=options.model,
        append_system_prompt=options.append_system_prompt,
        permission_mode=options.permission_mode or settings.default_permission_mode,
        allowed_tools=tuple(
            options.allowed_tools or (_NAMES.get(name.lower(), name) for name in settings.query_allowed_tools)
        ),
        disallowed_tools=tuple(options.disallowed_tools or ()),
        turn_timeout=settings.max_execution_time_ms / 1000,
    )


class _Stream:
    """One query: what was sent, what is kept for the bundle."""

    def __init__(self, call: Call, session: Session, options: QueryOptions) -> None:
        self._call = call
        self._session = session
        self._partials = bool(options.include_partial_messages)
        self._system = options.include_system_messages is not False
        limit = 100 if options.max_messages is None else options.max_messages
        self._kept: deque[Mapping[str, Any]] = deque(maxlen=limit)
        self._total = 0
        self._sequence = call.resumed("sequence") or 0
        self._reached = 0
        self._dropped = 0
        self._started = time.monotonic()

    async def run(self) -> Reply:
        call, session = self._call, self._session
        call.dialogs.follow(session.id)
        call.dialogs.take_all(session.id, call.responses)
        since = call.resumed("since") or 0
        for event in session.log.after(0):  # what an earlier round of this call has sent
            if event.seq <= since:
                self._message(event)
        try:
            with session.log.subscribe(since) as events:
                asked = await self._until_the_end(events)
        except asyncio.CancelledError:
            call.service.start_task(session.interrupt())
            raise
        return asked or self._bundle()

    async def _until_the_end(self, events: Subscription) -> types.InputRequiredResult | None:
        """Forwards until the turn is over, or a question must go back to the client."""
        forwarding = asyncio.ensure_future(self._forward(events))
        try:
            while True:
                resting = asyncio.ensure_future(self._session.wait(None, for_questions=self._call.returns_questions))
                await asyncio.wait({resting, forwarding}, return_when=asyncio.FIRST_COMPLETED)
                resting.cancel()
                if not self._session.busy:
                    break
                asked = open_questions(self._call, self._session, since=self._reached, sequence=self._sequence)
                if asked is not None:
                    return asked
                await self._call.dialogs.change()
            events.close()
            await forwarding
            return None
        finally:
            forwarding.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await forwarding

    async def _forward(self, events: Subscription) -> None:
        async for event in events:
            message = self._message(event)
            if message is not None:
                await self._notify(message, event.at)
            self._reached = event.seq

    def _message(self, event: Event) -> Mapping[str, Any] | None:
        if isinstance(event, Partial):
            return event.raw if self._partials else None
        if isinstance(event, Gap):
            self._dropped += event.seq - event.first + 1
        if not isinstance(event, Message) or not self._wanted(event):
            return None
        self._total += 1
        self._kept.append(event.raw)
        return event.raw

    def _wanted(self, event: Message) -> bool:
        return event.type in ("assistant", "user", "result") or (self._system and event.type == "system")

    async def _notify(self, message: Mapping[str, Any], at: float) -> None:
        self._sequence += 1
        params = {
            "type": "claude_code_message",
            "sessionId": self._session.id,
            "message": message,
            "timestamp": datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds"),
            "sequence": self._sequence,
        }
        await sdk.notify_on_call(self._call.context, METHOD, params)

    def _bundle(self) -> Bundle:
        outcome = self._session.outcome
        assert outcome is not None
        return Bundle(
            session_id=self._session.id,
            messages=[dict(message) for message in self._kept],
            execution_time=int((time.monotonic() - self._started) * 1000),
            usage=dict(outcome.raw_usage) or None,
            result=_result(outcome),
            truncated=self._truncation(),
        )

    def _truncation(self) -> Truncation | None:
        if self._total == len(self._kept) and not self._dropped:
            return None
        return Truncation(total=self._total, returned=len(self._kept), dropped_notifications=self._dropped or None)


def _result(outcome: TurnOutcome) -> QueryResult:
    return QueryResult(
        success=outcome.ok,
        summary=outcome.result or outcome.detail,
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
