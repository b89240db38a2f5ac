"""How calls wait for a turn: bounded in time, and woken by questions.

The turn belongs to the service and not to the call. A wait that times out or loses its client does not affect the turn,
unless the client cancelled the call or the setting `on_disconnect` says otherwise.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Coroutine
from dataclasses import replace
from typing import Any

import mcp_types as types

from ...core.model.events import (
    Gap,
    Output,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    StateChanged,
    TurnEnded,
    TurnStarted,
    WaitChanged,
)
from ...core.service import Service
from ...core.sessions.messages import UserMessage
from ...core.sessions.session import Session
from .. import sdk
from ..rounds import RoundState
from .call import Call
from .progress import progress_of

log = logging.getLogger(__name__)


_SHOWN = (Output, QuestionOpened, QuestionSettled, Retrying, StateChanged, TurnStarted, TurnEnded, WaitChanged, Gap)
"""The events that change a report."""


async def wait_for_turn(
    call: Call, session: Session, message: UserMessage, seconds: float
) -> types.InputRequiredResult | None:
    """Wait for the outcome of the call's own message like `wait_for_rest`, with progress notifications.

    Returns open questions if the client expects them as the result of a call. If the call is cancelled while it waits,
    `waiting_cancelled` decides what happens to the turn.
    """
    call.follow(session.id)
    await call.detach(session.id, message.id)
    try:
        async with progress_of(call, session):
            await wait_for_rest(call, session, seconds, message)
    except asyncio.CancelledError:
        waiting_cancelled(call, session, message)
        raise
    return None if message.outcome.done() else open_questions(call, session, RoundState(message=message.id))


async def wait_for_rest(call: Call, session: Session, seconds: float, message: UserMessage | None = None) -> None:
    """Wait until the session is idle or has an open question, but at most `seconds`. Continues while all open questions
    are left to other channels. A call that became a task waits without a limit.

    With a `message`, waits for the outcome of that message instead, whatever else the session does.
    """
    outcome = message.outcome if message is not None else None
    context, dialogs = call.context, call.dialogs
    with contextlib.suppress(TimeoutError), dialogs.waiting(session.id, context.request_id, context.session):
        async with asyncio.timeout(None if call.detached else seconds):
            while outcome is None or not outcome.done():
                await first_of(outcome, session.wait(None))
                # Others answer if every open question has an open dialog, or if the person closed the dialogs of a task
                # and will answer elsewhere.
                left_to_others = dialogs.all_shown(session.id) or (
                    call.detached and not dialogs.undismissed_questions(session.id)
                )
                if not (session.busy and left_to_others):
                    break
                await first_of(outcome, dialogs.wait_for_change())
    await session.saved()  # a reported outcome must survive a crash


async def wait_for_change(session: Session, position: int | None, seconds: float) -> None:
    """Wait until something that a report shows happens after that event, but at most `seconds`. Does not wait if it
    already happened, or if the position is unknown here."""
    if position is None:
        return
    with contextlib.suppress(TimeoutError), session.events.subscribe(position) as events:
        async with asyncio.timeout(seconds):
            async for event in events:
                if isinstance(event, _SHOWN):
                    break
    if not session.busy:
        await session.saved()  # a reported outcome must survive a crash


async def first_of(outcome: "asyncio.Future[Any] | None", event: Coroutine[Any, Any, Any]) -> None:
    """Wait for an outcome, if given, or for an event, whichever comes first. Then cancel the wait for the event, never
    the outcome."""
    if outcome is None:
        await event
        return
    other = asyncio.ensure_future(event)
    try:
        await asyncio.wait({outcome, other}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        other.cancel()


def waiting_cancelled(call: Call, session: Session, message: UserMessage) -> None:
    """Handle a call that was cancelled while it waited. If the client cancelled it, its message is abandoned and the
    turn interrupted; if the client disconnected, `on_disconnect` decides."""
    # On HTTP in 2026-07-28 a client can cancel only by closing the stream of the response. A task continues, as its
    # client asked, and so does every call if the operator has set `on_disconnect`.
    over_http = call.context.request is not None
    kept = call.detached or call.service.settings.on_disconnect is not None
    closed_to_cancel = over_http and sdk.is_modern(call.context.protocol_version) and not kept
    by_client = sdk.cancelled_by_client(call.context) or closed_to_cancel
    effect = "interrupt" if by_client else call.on_disconnect
    log.info(
        "session %s: the waiting call %s: %s", session.id, "was cancelled" if by_client else "was disconnected", effect
    )
    if by_client:
        # In a task of the service: this call is being cancelled, and cannot wait for it.
        call.service.start_task(session.give_up_message(message))
    elif call.on_disconnect != "keep":
        call.service.start_task(end_turns(call.service, [session.id], stop=call.on_disconnect == "stop"))


async def end_turns(service: Service, session_ids: Collection[str], *, stop: bool) -> None:
    """Interrupt the turns of these sessions and, with `stop`, also close their processes."""
    sessions = [session for session in service.sessions(principal=None) if session.id in session_ids]
    await asyncio.gather(*(session.interrupt() for session in sessions))
    # Only after the turn has ended: a busy session cannot be parked.
    for session in sessions:
        if stop and session.can_park:
            session.park()


def open_questions(call: Call, session: Session, state: RoundState) -> types.InputRequiredResult | None:
    """The open questions as the result of the call, if the client expects them so; None if there are none. `state` is
    returned with the answers."""
    questions = call.dialogs.undismissed_questions(session.id) if call.returns_questions else []
    if not questions:
        return None
    return call.dialogs.as_result(session.id, questions, replace(state, offsets=call.offsets))
