"""The events of a session, as pages of JSON.

Events are shown in short, or in full for programs that render them. A page of full events, including unfinished text,
starts after a cursor or with the last turn, and a caller may wait for it. A reader that asks again after rendering a
page gets everything new in one page: the log merges fragments, so that a slow reader costs no memory. With `lines` such
a page has the lines of output instead of whole messages, for programs that print them.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from ..core.errors import InvalidArgument
from ..core.model.events import (
    BudgetWarned,
    Event,
    Gap,
    Message,
    MessageJoined,
    Output,
    Partial,
    PartialRun,
    ProcessChanged,
    QuestionOpened,
    QuestionSettled,
    Retrying,
    Stalled,
    StateChanged,
    TurnEnded,
    TurnStarted,
    UsageReported,
    WaitChanged,
    ends_text,
)
from ..core.model.text import cut, iso
from ..core.redaction import Redactor
from ..core.sessions.session import Session
from ..core.sessions.stored.session_row import retrying_line, silent_seconds
from ..core.transcripts.event_log import EventLog
from .tools.output import dump
from .tools.session_report import limit_info, status_of, unfinished_line

_MAX_WAIT = 55.0
_FULL_PAGE = 200_000
"""Approximate characters of a page."""
_MAX_PROMPT = 100_000
_SHORT_PAGE = 24_000
_MAX_WRITTEN = 20_000
"""Maximum characters of an unfinished line, which is sent from its start each time."""
_LOOK_BACK = 5000
"""Maximum number of fragments that a known secret may span."""
_MAX_TEXT = 4000
"""Maximum characters of a text in the short form of an event."""
Shown = tuple[dict[str, Any] | None, int]
"""The fields of an event (None if it is not shown), and the number of the last event that they cover."""


def event_page(session: Session, cursor: str | None) -> dict[str, Any]:
    """The events after a cursor in short, or all kept ones, as far as they fit on a page. After a cursor from before
    the session was last loaded, all kept events are repeated and `restarted` is set."""
    start = _position(session, cursor) if cursor else 0
    page = _page(session, start or 0, _SHORT_PAGE, lambda event: (_short_form(event), event.seq))
    return page | ({"restarted": True} if start is None else {})


async def feed_page(
    session: Session, cursor: str | None, wait: float, redactor: Redactor, *, lines: bool = False
) -> dict[str, Any]:
    """All events after a cursor, as far as they fit, and the session's state; without a cursor, since the last turn
    started. Waits for an event up to `wait` seconds if there is none. After a cursor of another log it starts over, and
    `restarted` is set. With `lines`, the page has lines of output instead of whole messages, and the unfinished line
    from its beginning instead of fragments."""
    log = session.events
    position = _position(session, cursor) if cursor else None
    known = not cursor or position is not None
    turns = log.latest(TurnStarted, 1)
    start = position if position is not None else turns[0].seq - 1 if turns else log.restored_seq

    def read() -> dict[str, Any]:
        if lines:
            return _line_page(session, start, redactor)
        return _full_page(session, start, redactor)

    page = read()
    if wait and not page["events"] and known:
        # No await between the page and the subscription: no event is missed.
        with contextlib.suppress(TimeoutError), session.events.subscribe() as happening:
            async with asyncio.timeout(min(wait, _MAX_WAIT)):
                async for event in happening:
                    if lines or not isinstance(event, Output):
                        page = read()
                        if page["events"]:
                            break
    return page | {"session": _summary(session)} | ({} if known else {"restarted": True})


def _position(session: Session, cursor: str) -> int | None:
    """The event that a cursor names; None if it belongs to another log."""
    try:
        return session.events.position(cursor)
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier page.", field="cursor") from None


def _page(session: Session, start: int, most: int, show: Callable[[Event], Shown]) -> dict[str, Any]:
    """The events after `start`, with at most `most` characters, but at least one if any is shown."""
    shown: list[dict[str, Any]] = []
    left, reached, more = most, start, False
    for event in session.events.after(start):
        fields, end = show(event)
        if fields is not None:
            entry = {"seq": end, "at": iso(event.at), **fields}
            left -= len(json.dumps(entry, ensure_ascii=False, default=str))
            if left < 0 and shown:
                more = True
                break
            shown.append(entry)
        reached = end
    return {"sessionId": session.id, "events": shown, "nextCursor": session.events.cursor(reached), "hasMore": more}


def _full_page(session: Session, start: int, redactor: Redactor) -> dict[str, Any]:
    writing = _Writing(session.events, start, redactor)

    def show(event: Event) -> Shown:
        fragment = writing.take(event)
        return (fragment, event.seq) if isinstance(event, PartialRun) else _whole(event)

    return _page(session, start, _FULL_PAGE, show)


def _whole(event: Event) -> Shown:
    """An event with complete messages and prompts, without the equivalent readable lines."""
    match event:
        case Message():
            return {"type": "message", "message": event.raw}, event.seq
        case TurnStarted():
            prompt = cut(event.prompt, _MAX_PROMPT)
            fields = {"type": "turn_started", "turn": event.number, "messageId": event.message_id, "prompt": prompt}
            return fields | ({"continues": True} if event.continues else {}), event.seq
        case MessageJoined():
            text = cut(event.text, _MAX_PROMPT)
            return {"type": "message_joined", "messageId": event.message_id, "text": text}, event.seq
        case Output() | Partial():
            return None, event.seq
    return _short_form(event), event.seq


def _line_page(session: Session, start: int, redactor: Redactor) -> dict[str, Any]:
    """Lines of output and other events, then the unfinished line if it has grown."""

    def show(event: Event) -> Shown:
        match event:
            case Output():
                return {"type": "output", "kind": event.kind, "line": event.line}, event.seq
            case PartialRun() if event.kind == "text":
                return {"type": "writing"}, event.seq
            case PartialRun() | Message():
                return None, event.seq
        return _whole(event)

    page = _page(session, start, _FULL_PAGE, show)
    has_grown = any(event["type"] == "writing" for event in page["events"])
    page["events"] = [event for event in page["events"] if event["type"] != "writing"]
    if has_grown and not page["hasMore"]:
        shown = unfinished_line(session, redactor, _MAX_WRITTEN)
        if shown:
            page["events"].append({"type": "writing", "text": shown})
    return page


class _Writing:
    """The text being written. Its end is held back while it may be the start of a secret, and is sent with the next
    fragment, even if other events come in between; the complete text follows as a message."""

    def __init__(self, log: EventLog, start: int, redactor: Redactor) -> None:
        self._redactor = redactor
        self._ends: dict[str, str] = {}
        for event in log.after(max(0, start - _LOOK_BACK)):
            if event.seq <= start:
                self.take(event)
            elif isinstance(event, PartialRun) and event.first <= start:
                self._shown(event.kind, "".join(event.parts[: start - event.first + 1]))

    def take(self, event: Event) -> dict[str, Any] | None:
        """The fields of a fragment, None if nothing can be shown. Partial tool input is not readable: only its length
        is shown."""
        if ends_text(event):
            self._ends.clear()
        if not isinstance(event, PartialRun):
            return None
        text = event.text
        if event.kind == "partial_json":
            return {"type": "fragment", "kind": event.kind, "size": len(text)} if text else None
        text = self._shown(event.kind, text)
        return {"type": "fragment", "kind": event.kind, "text": text} if text else None

    def _shown(self, kind: str, more: str) -> str:
        text = self._ends.pop(kind, "") + more
        shown = text[: len(text) - self._redactor.held_back(text)]
        self._ends[kind] = text[len(shown) :]
        return shown


def _short_form(event: Event) -> dict[str, Any] | None:
    """The short form of an event; None for fragments and for events that also appear as readable lines."""
    match event:
        case Output():
            return {"type": "output", "line": cut(event.line, _MAX_TEXT)}
        case StateChanged():
            return {"type": "state", "state": str(event.state), "detail": cut(event.detail, _MAX_TEXT)}
        case TurnStarted():
            return {"type": "turn_started", "turn": event.number, "prompt": cut(event.prompt, _MAX_TEXT)}
        case MessageJoined():
            return {"type": "message_joined", "text": cut(event.text, _MAX_TEXT)}
        case TurnEnded():
            outcome = event.outcome
            text = cut(outcome.result or outcome.detail, _MAX_TEXT)
            # For a failure the detail is more useful than the result, for example what to type.
            reason = cut(outcome.detail, _MAX_TEXT) if outcome.result else ""
            more = {"detail": reason} if reason and reason != text else {}
            return {"type": "turn_ended", "turn": event.number, "code": str(outcome.code), "result": text, **more}
        case QuestionOpened():
            question = event.question
            description = cut(question.description, _MAX_TEXT)
            return {"type": "question", "inputId": question.id, "tool": question.tool_name, "description": description}
        case QuestionSettled():
            answer = event.resolution.answer
            decision = None if answer is None else "allow" if answer.allow else "deny"
            closure, by = str(event.resolution.closure), event.resolution.by
            whose = {"by": by} | ({"client": event.resolution.client} if event.resolution.client else {})
            return {"type": closure, "inputId": event.question.id, "decision": decision, **whose}
        case Retrying():
            return {"type": "retrying", "attempt": event.attempt, "status": event.status}
        case BudgetWarned():
            return {"type": "budget", "warning": event.line}
        case WaitChanged():
            return {"type": "limit", **(event.wait.as_json() if event.wait is not None else {"over": True})}
        case UsageReported():
            return {"type": "plan_usage", **event.plan.as_json()}
        case Stalled():
            return {"type": "stalled", "seconds": event.seconds}
        case ProcessChanged():
            return {"type": "process", "change": event.change}
        case Gap():
            return {"type": "gap", "first": event.first}
    return None


def _summary(session: Session) -> dict[str, Any]:
    """The fields of a session for a status line."""
    outside = session.outside
    usage, limit = session.usage.total, limit_info(session, None if session.busy else session.outcome)
    fields = {
        "status": status_of(session),
        "workingDirectory": session.shown_directory,
        "model": session.options.model,
        "permissionMode": session.options.permission_mode if outside is None else outside.permission_mode,
        "inTerminal": None if outside is None else True,
        "costUsd": round(session.usage.cost_usd, 6),
        "inputTokens": usage.all_input_tokens,
        "outputTokens": usage.output_tokens,
        "turnStarted": None if session.turn_seconds is None else time.time() - session.turn_seconds,
        "retrying": retrying_line(session),
        "stalledSeconds": silent_seconds(session) if session.stalled else None,
        "queued": session.queued,
        "onLimit": session.options.on_limit,
        "limit": None if limit is None else dump(limit),
        "planUsage": session.activity.plan.as_json() if session.activity.plan is not None else None,
        "questions": [question.id for question in session.questions],
    }
    return {name: value for name, value in fields.items() if value is not None}
