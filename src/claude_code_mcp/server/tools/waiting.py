"""Waiting for a turn on behalf of a call: bounded in time, woken by questions, with progress notifications meanwhile.

A turn belongs to the service and not to the call: a wait that runs out of time or loses its client leaves the turn
alone, unless the client cancelled the call or the setting for clients that go away says otherwise.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp.shared.dispatcher import ProgressFnT

from ... import json_text
from ...model.events import (
    BudgetWarned,
    Event,
    Gap,
    Output,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ...model.question import Closure, Question
from ...model.text import cut
from ...service import Service
from ...sessions.messages import UserMessage
from ...sessions.session import Session
from ...store.event_log import Subscription
from .. import sdk
from .context import Call

log = logging.getLogger(__name__)

_PROGRESS_INTERVAL = 0.2
"""Seconds between two progress notifications of a call."""
_SHOWN = (Output, QuestionOpened, QuestionSettled, Retrying, StateChanged, TurnStarted, TurnEnded, Gap)
"""The events by which a report changes."""
_MAX_PROGRESS_MESSAGE = 2000


async def wait_for_turn(
    call: Call, session: Session, message: UserMessage, seconds: float
) -> types.InputRequiredResult | None:
    """Waits for the outcome of the call's own message, as `wait_for_rest` does, with progress notifications.

    Returns open questions where the client takes them as the result of a call. When the call is cancelled while it
    waits, `waiting_cancelled` decides what becomes of the turn.
    """
    call.follow(session.id)
    await call.detach(session.id, message.id)
    try:
        async with progress_of(call, session):
            await wait_for_rest(call, session, seconds, message)
    except asyncio.CancelledError:
        waiting_cancelled(call, session, message)
        raise
    return None if message.outcome.done() else open_questions(call, session, message=message.id)


async def wait_for_rest(call: Call, session: Session, seconds: float, message: UserMessage | None = None) -> None:
    """Waits until the session rests or has an open question, but at most `seconds`. While all open questions are left
    to others the wait goes on. A call that has become a task waits as long as it takes.

    With a `message`, waits for the outcome of that message instead, whatever else the session does.
    """
    outcome = message.outcome if message is not None else None
    context = call.context
    with (
        contextlib.suppress(TimeoutError),
        call.dialogs.waiting(session.id, context.request_id, context.session),
    ):
        async with asyncio.timeout(None if call.detached else seconds):
            while outcome is None or not outcome.done():
                await first_of(outcome, session.wait(None))
                if not (session.busy and _left_to_others(call, session)):
                    break
                await first_of(outcome, call.dialogs.wait_for_change())
    await session.saved()  # what the caller is told now must be known after a crash too


async def wait_for_change(session: Session, position: int | None, seconds: float) -> None:
    """Waits until something that a report shows has happened behind that event, but at most `seconds`. Does not wait if
    it has happened already, or if the position is not known here."""
    if position is None:
        return
    with contextlib.suppress(TimeoutError), session.events.subscribe(position) as events:
        async with asyncio.timeout(seconds):
            async for event in events:
                if isinstance(event, _SHOWN):
                    break
    if not session.busy:
        await session.saved()  # what the caller is told now must be known after a crash too


def _left_to_others(call: Call, session: Session) -> bool:
    """Whether this call has nothing to do with the open questions: they are in dialogs that a person has before them,
    or the person has closed those of a task and will answer somewhere else."""
    dialogs = call.dialogs
    return dialogs.all_shown(session.id) or (call.detached and not dialogs.undismissed(session.id))


async def first_of(outcome: "asyncio.Future[Any] | None", event: Coroutine[Any, Any, Any]) -> None:
    """Waits for an outcome, if there is one, or for an event: whichever comes first. Then the wait for the event is
    cancelled, never the outcome."""
    if outcome is None:
        await event
        return
    other = asyncio.ensure_future(event)
    try:
        await asyncio.wait({outcome, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()


def waiting_cancelled(call: Call, session: Session, message: UserMessage) -> None:
    """The call was cancelled while it waited. If the client cancelled it, its message is given up and the turn is
    interrupted; if the client is gone, the setting for that decides."""
    by_client = sdk.cancelled_by_client(call.context) or _closed_to_cancel(call)
    effect = "interrupt" if by_client else call.on_disconnect
    log.info("session %s: the call that waited %s: %s", session.id, "was cancelled" if by_client else "is gone", effect)
    if by_client:
        # In a task of the service: this call is being cancelled, and cannot wait for it.
        call.service.start_task(session.give_up_message(message))
    elif call.on_disconnect != "keep":
        call.service.start_task(end_turns(call.service, [session.id], stop=call.on_disconnect == "stop"))


def _closed_to_cancel(call: Call) -> bool:
    """Whether the end of the connection is the client's way to cancel. On HTTP in 2026-07-28 it is the only one: to
    close the stream of a response cancels its request. A task runs on, as its client asked, and so does every call
    where the operator has set what becomes of turns whose client goes away."""
    over_http = call.context.request is not None
    kept = call.detached or call.service.settings.on_disconnect is not None
    return over_http and sdk.is_modern(call.context.protocol_version) and not kept


async def end_turns(service: Service, session_ids: Collection[str], *, stop: bool) -> None:
    """Interrupts what these sessions are doing and, to `stop` them, closes their processes too."""
    sessions = [session for session in service.sessions(principal=None) if session.id in session_ids]
    await asyncio.gather(*(session.interrupt() for session in sessions))
    # Only after the turn has ended: a session at work cannot be parked.
    for session in sessions:
        if stop and session.can_park:
            session.park()


def open_questions(call: Call, session: Session, **state: Any) -> types.InputRequiredResult | None:
    """The open questions as the result of the call, where the client takes them so; None if there are none. `state`
    comes back with the answers."""
    questions = call.dialogs.undismissed(session.id) if call.returns_questions else []
    return call.dialogs.as_result(session.id, questions, call.offsets, **state) if questions else None


# -- progress -------------------------------------------------------------------------------------------------


def progress_callback(call: Call) -> ProgressFnT | None:
    """Sends progress of this call; None if the client did not ask for it."""
    return call.context.session.report_progress if call.wants_progress else None


@asynccontextmanager
async def progress_of(call: Call, session: Session) -> AsyncIterator[None]:
    """Within this context a client that asked for progress is notified of what the session does. All of it has been
    sent when the context is left, unless by an exception."""
    if not call.wants_progress:
        yield
        return
    # Before the task runs: what happens until then is reported too.
    with session.events.subscribe() as events:
        ended = asyncio.Event()
        reporting = call.service.start_task(_report_progress(call, session.questions, events, ended))
        try:
            yield
            # The result follows: who answered a moment ago is told before it, and no interval is waited for.
            events.close()
            ended.set()
            await asyncio.wait({reporting})
        finally:
            reporting.cancel()


async def _report_progress(call: Call, questions: list[Question], events: Subscription, ended: asyncio.Event) -> None:
    """Sends the open questions, then what happens: every question that is opened or answered, and of all other events
    since the last notification the latest line, at a bounded rate until the call has `ended`."""
    report = call.context.session.report_progress

    def clean(line: str) -> str:
        return json_text.sound_text(call.service.redaction.text(line))

    for count, question in enumerate(questions, 1):
        await report(count, None, clean(_question_line(question)))
    count = len(questions)
    async for event in events:
        reports = [(new, line) for new in (event, *_available(events)) if (line := _progress_line(new)) is not None]
        for number, (new, line) in enumerate(reports, 1):
            if number == len(reports) or isinstance(new, QuestionOpened | QuestionSettled):
                await report(count + number, None, cut(clean(line), _MAX_PROGRESS_MESSAGE))
        if reports:
            count += len(reports)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _PROGRESS_INTERVAL)


def _available(events: Subscription) -> Iterator[Event]:
    """The events that need no waiting for."""
    with contextlib.suppress(IndexError):
        while True:
            yield events.take()


def _progress_line(event: Event) -> str | None:
    match event:
        case Output():
            return event.line
        case BudgetWarned():
            return event.line
        case Retrying():
            return f"The API answered {event.status or 'with an error'}; attempt {event.attempt} follows."
        case QuestionOpened():
            return _question_line(event.question)
        case QuestionSettled() if event.resolution.closure is Closure.ANSWERED:
            verdict = "allowed" if event.resolution.answer and event.resolution.answer.allow else "denied"
            return f"Question [{event.question.id}] was {verdict} by {event.resolution.whose}."
    return None


def _question_line(question: Question) -> str:
    return f"Waiting for an answer [{question.id}]: {question.description}"
