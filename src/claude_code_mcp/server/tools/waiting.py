"""Waiting for a turn on behalf of a caller: with progress on the way, and never longer than the caller will."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT

from ... import json_text
from ...errors import TurnTimeout
from ...model.events import Event, Output, QuestionOpened, Retrying, TurnStarted
from ...model.outcome import Outcome as TurnOutcome
from ...model.outcome import OutcomeCode
from ...model.question import Question
from ...model.text import cut
from ...service import Service
from ...sessions.messages import UserMessage
from ...sessions.session import Session
from ...store.event_log import Subscription
from .. import sdk
from .base import ToolOutput
from .context import Call
from .status import OUTPUT_BUDGET, ErrorInfo

log = logging.getLogger(__name__)


_BETWEEN_REPORTS = 0.2


_LONGEST_REPORT = 2000


async def wait_for_turn(
    call: Call, session: Session, delivery: UserMessage, seconds: float
) -> types.InputRequiredResult | None:
    """Waits for the outcome of the call's own message, or for a question that no person has before them, or for the
    time to pass.

    Gives back open questions where the client takes them as the result of a call. A caller that cancels the call
    interrupts its turn.
    """
    call.dialogs.follow(session.id)
    call.dialogs.take_all(session.id, call.responses, call.offsets)
    try:
        async with told_progress(call, session):
            await outcome_or_question(call, session, delivery, seconds)
    except asyncio.CancelledError:
        left_waiting(call, session, delivery)
        raise
    return None if delivery.outcome.done() else open_questions(call, session, message=delivery.id)


def left_waiting(call: Call, session: Session, delivery: UserMessage) -> None:
    """The caller no longer waits: if it has cancelled the call, its turn is interrupted; if it is gone, the setting
    for that decides. On HTTP in 2026-07-28 a closed connection is all that a server hears of either."""
    called_off = sdk.was_called_off(call.context)
    wish = "interrupt" if called_off else call.on_disconnect
    log.info("session %s: the call that waited %s: %s", session.id, "was cancelled" if called_off else "is gone", wish)
    if called_off:
        call.service.start_task(session.give_up_message(delivery))
    elif call.on_disconnect != "keep":
        call.service.start_task(end_turns(call.service, [session.id], stop=call.on_disconnect == "stop"))


def open_questions(call: Call, session: Session, **state: Any) -> types.InputRequiredResult | None:
    """The open questions as a result, for a client that takes them so; `state` comes back with the answers."""
    questions = call.dialogs.not_put_away(session.id) if call.returns_questions else []
    return call.dialogs.as_result(session.id, questions, call.offsets, **state) if questions else None


async def rest_or_question(call: Call, session: Session, seconds: float) -> None:
    """Waits for the turn's end or a question; one that a person has before them is left to that person."""
    context = call.context
    with (
        contextlib.suppress(TimeoutError),
        call.dialogs.waiting(session.id, context.request_id, context.session),
    ):
        async with asyncio.timeout(seconds):
            await session.wait(None)
            while session.busy and call.dialogs.all_shown(session.id):
                await call.dialogs.change()
                await session.wait(None)


async def outcome_or_question(call: Call, session: Session, delivery: UserMessage, seconds: float) -> None:
    """Waits for the outcome of one message, whatever else the session does, or for a question as above."""
    context = call.context
    with (
        contextlib.suppress(TimeoutError),
        call.dialogs.waiting(session.id, context.request_id, context.session),
    ):
        async with asyncio.timeout(seconds):
            while not delivery.outcome.done():
                await either(delivery, session.wait(None))
                if delivery.outcome.done() or not (session.busy and call.dialogs.all_shown(session.id)):
                    return
                await either(delivery, call.dialogs.change())


async def either(delivery: UserMessage, event: Coroutine[Any, Any, Any]) -> None:
    """Waits for the outcome of the message or for something else, whatever comes first."""
    other = asyncio.ensure_future(event)
    try:
        await asyncio.wait({delivery.outcome, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()


@asynccontextmanager
async def told_progress(call: Call, session: Session) -> AsyncIterator[None]:
    """While this lasts, a client that asked for progress hears what the session does."""
    if not call.wants_progress:
        yield
        return
    with session.events.subscribe() as events:
        telling = call.service.start_task(_tell(call, session.questions, events))
        try:
            yield
        finally:
            telling.cancel()


async def _tell(call: Call, questions: list[Question], events: Subscription) -> None:
    """One report for all that happened since the last, and not too many of them."""
    report = call.context.session.report_progress

    def clean(line: str) -> str:
        return json_text.sound_text(call.service.redaction.text(line))

    for count, question in enumerate(questions, 1):
        await report(count, None, clean(_asked(question)))
    count = len(questions)
    async for event in events:
        lines = [line for one in (event, *_here(events)) if (line := _line(one)) is not None]
        if lines:
            count += len(lines)
            await report(count, None, cut(clean(lines[-1]), _LONGEST_REPORT))
            await asyncio.sleep(_BETWEEN_REPORTS)


def call_progress(call: Call) -> ProgressFnT | None:
    """Where progress of something else goes that this call waits for."""
    return call.context.session.report_progress if call.wants_progress else None


def _here(events: Subscription) -> Iterator[Event]:
    with contextlib.suppress(IndexError):
        while True:
            yield events.take()


def _line(event: Event) -> str | None:
    match event:
        case Output():
            return event.line
        case Retrying():
            return f"The API answered {event.status or 'with an error'}; attempt {event.attempt} follows."
        case QuestionOpened():
            return _asked(event.question)
    return None


def _asked(question: Question) -> str:
    return f"Waiting for an answer [{question.id}]: {question.description}"


async def end_turns(service: Service, session_ids: Collection[str], *, stop: bool) -> None:
    """Interrupts what these sessions are doing and, to `stop` them, closes their processes too."""
    sessions = [session for session in service.sessions(owner=None) if session.id in session_ids]
    await asyncio.gather(*(session.interrupt() for session in sessions))
    for session in sessions:
        if stop and session.evictable:
            session.evict()


def timeout_error(session: Session, outcome: TurnOutcome, report: ToolOutput) -> TurnTimeout:
    """The error of a call whose turn ran out of time; `report` is what the call would have returned otherwise."""
    told = report.model_dump(mode="json", by_alias=True, exclude_none=True)
    told["result"] = outcome.result or outcome_so_far(session)
    return TurnTimeout(_message(session, outcome), session_id=session.id, report=told)


def timeout_problem(session: Session, outcome: TurnOutcome) -> ErrorInfo | None:
    """The same for a result that has more to it than an error; None if the turn did not run out of time."""
    if outcome.code is not OutcomeCode.TIMEOUT:
        return None
    return ErrorInfo(code=TurnTimeout.code, message=_message(session, outcome))


def _message(session: Session, outcome: TurnOutcome) -> str:
    return f"{outcome.detail} Session {session.id} can be continued."


def outcome_so_far(session: Session) -> str:
    """The last lines that the session's newest turn has put out, as many as fit."""
    began = max((event.seq for event in session.events.latest(TurnStarted, 1)), default=0)
    lines: list[str] = []
    left = OUTPUT_BUDGET
    for event in reversed([one for one in session.events.after(began) if isinstance(one, Output)]):
        left -= len(event.line) + 1
        if left < 0 and lines:
            break
        lines.append(event.line[-OUTPUT_BUDGET:])
    return "\n".join(reversed(lines))
