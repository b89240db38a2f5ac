"""Progress notifications of a call while its session works."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from mcp.shared.dispatcher import ProgressFnT

from ...core import json_text
from ...core.model.events import (
    BudgetWarned,
    Event,
    Output,
    QuestionOpened,
    QuestionSettled,
    Retrying,
)
from ...core.model.question import Closure, Question
from ...core.model.text import cut
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import retry_text
from ...core.transcripts.event_log import Subscription
from .call import Call

_PROGRESS_INTERVAL = 0.2
"""Seconds between two progress notifications of a call."""
_MAX_PROGRESS_MESSAGE = 2000


def progress_callback(call: Call) -> ProgressFnT | None:
    """Returns a function that sends progress of this call; None if the client did not ask for it."""
    return call.context.session.report_progress if call.wants_progress else None


@asynccontextmanager
async def progress_of(call: Call, session: Session) -> AsyncIterator[None]:
    """Context in which a client that asked for progress is notified of the session's activity. Everything is sent
    before a normal exit."""
    if not call.wants_progress:
        yield
        return
    # Before the task runs, so that events until then are reported too.
    with session.events.subscribe() as events:
        ended = asyncio.Event()
        reporting = call.service.start_task(_report_progress(call, session.questions, events, ended))
        try:
            yield
            # The result follows: report a recent answer before it, without waiting for the interval.
            events.close()
            ended.set()
            await asyncio.wait({reporting})
        finally:
            reporting.cancel()


async def _report_progress(call: Call, questions: list[Question], events: Subscription, ended: asyncio.Event) -> None:
    """Send the open questions, then progress until the call has `ended`: every opened or answered question, and the
    latest line of all other events at a bounded rate."""
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
    """The events that have happened already."""
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
            return f"[retrying] {retry_text(event)}"
        case QuestionOpened():
            return _question_line(event.question)
        case QuestionSettled() if event.resolution.closure is Closure.ANSWERED:
            verdict = "allowed" if event.resolution.answer and event.resolution.answer.allow else "denied"
            return f"Question [{event.question.id}] was {verdict} by {event.resolution.whose}."
    return None


def _question_line(question: Question) -> str:
    return f"Waiting for an answer [{question.id}]: {question.description}"
