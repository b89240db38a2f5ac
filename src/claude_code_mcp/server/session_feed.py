"""What happens in a session, for programs that draw it: as it happens, with what is being written, and what was before.

A page of what happens begins behind a cursor, or with the last turn, and may be waited for. Whoever asks again when it
has drawn a page gets all that came meanwhile in one: the log merges fragments, so that a slow reader costs neither side
memory.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..errors import InvalidArgument
from ..model.events import Event, Message, MessageJoined, Output, Partial, PartialRun, TurnStarted
from ..model.text import cut, iso
from ..questions.presentation import Redaction
from ..sessions.session import SessionView
from ..store.conversation import Item
from ..store.event_log import EventReader
from ..store.transcript_reader import ConversationPage, Extent
from .tools.status import retrying_line, silent_seconds, status_of

LONGEST_WAIT = 55.0
_PAGE = 200_000
"""Characters of a page, roughly."""
ITEMS = Extent(_PAGE)
"""Of a page of what was before."""
_LONGEST_PROMPT = 100_000
FieldsOf = Callable[[Event], dict[str, Any] | None]
"""How an event is shown; None for one that is not."""


async def feed_page(
    session: SessionView, cursor: str | None, wait: float, redactor: Redaction, fields_of: FieldsOf
) -> dict[str, Any]:
    """All that happened behind a cursor, as far as it fits; without one, since the last turn began. If there is
    nothing, waits for something, at most so many seconds. After a cursor of another log it begins anew, and
    `restarted` says so.

    `fields_of` shows what is neither a message nor a fragment.
    """
    start, known = _start(session, cursor)
    page = _page(session, start, redactor, fields_of)
    if wait and not page["events"] and known:
        # Nothing is awaited between the page and the subscription: no event is missed.
        with contextlib.suppress(TimeoutError), session.events.subscribe() as happening:
            async with asyncio.timeout(min(wait, LONGEST_WAIT)):
                async for event in happening:
                    if not isinstance(event, Output):
                        page = _page(session, start, redactor, fields_of)
                        if page["events"]:
                            break
    return page | ({} if known else {"restarted": True})


def _start(session: SessionView, cursor: str | None) -> tuple[int, bool]:
    """Behind which event a page begins, and whether the cursor is of this log."""
    log = session.events
    try:
        position = log.position(cursor) if cursor else None
    except ValueError:
        raise InvalidArgument("cursor: must be the nextCursor of an earlier page.", field="cursor") from None
    if position is not None:
        return position, True
    turns = log.latest(TurnStarted, 1)
    return (turns[0].seq - 1 if turns else log.restored_seq), cursor is None


def _page(session: SessionView, start: int, redactor: Redaction, fields_of: FieldsOf) -> dict[str, Any]:
    log = session.events
    shown: list[dict[str, Any]] = []
    left, reached, more = _PAGE, start, False
    for event in log.after(start):
        fields, end = _shown(event, log, redactor, fields_of)
        if fields is not None:
            entry = {"seq": end, "at": iso(event.at), **fields}
            left -= len(json.dumps(entry, ensure_ascii=False, default=str))
            if left < 0 and shown:
                more = True
                break
            shown.append(entry)
        reached = end
    return {
        "sessionId": session.id,
        "events": shown,
        "nextCursor": log.cursor(reached),
        "hasMore": more,
        "session": _summary(session),
    }


def _shown(
    event: Event, log: EventReader, redactor: Redaction, fields_of: FieldsOf
) -> tuple[dict[str, Any] | None, int]:
    """The fields of an event, None if it is not shown, and the number that a reader has reached with it."""
    match event:
        case PartialRun():
            return _fragment(event, log, redactor)
        case Message():
            return {"type": "message", "message": event.raw}, event.seq
        case TurnStarted():
            prompt = cut(event.prompt, _LONGEST_PROMPT)
            fields = {"type": "turn_started", "turn": event.number, "messageId": event.message_id, "prompt": prompt}
            return fields, event.seq
        case MessageJoined():
            text = cut(event.text, _LONGEST_PROMPT)
            return {"type": "message_joined", "messageId": event.message_id, "text": text}, event.seq
        case Output() | Partial():
            return None, event.seq
    return fields_of(event), event.seq


def _fragment(run: PartialRun, log: EventReader, redactor: Redaction) -> tuple[dict[str, Any] | None, int]:
    """What is being written. The end of it is held back while it may be the beginning of a secret; of the input of a
    tool, which is nothing to read before it is whole, only the length is told."""
    parts, end = run.parts, run.seq
    if end == log.last_seq:
        held = redactor.held_back("".join(parts))
        while held > 0 and parts:
            held -= len(parts[-1])
            parts, end = parts[:-1], end - 1
    text = "".join(parts)
    if not text:
        return None, end
    shown: Mapping[str, Any] = {"size": len(text)} if run.kind == "partial_json" else {"text": text}
    return {"type": "fragment", "kind": run.kind, **shown}, end


def _summary(session: SessionView) -> dict[str, Any]:
    """What a status line shows of a session."""
    usage = session.usage.total
    fields = {
        "status": status_of(session),
        "workingDirectory": session.cwd,
        "model": session.options.model,
        "permissionMode": session.options.permission_mode,
        "costUsd": round(session.usage.cost_usd, 6),
        "inputTokens": usage.input_tokens + usage.cache_read_tokens + usage.cache_creation_tokens,
        "outputTokens": usage.output_tokens,
        "turnStarted": None if session.turn_seconds is None else time.time() - session.turn_seconds,
        "retrying": retrying_line(session),
        "stalledSeconds": silent_seconds(session) if session.stalled else None,
        "queued": session.queued,
        "questions": [question.id for question in session.questions],
    }
    return {name: value for name, value in fields.items() if value is not None}


# -- what was before ----------------------------------------------------------------------------------------------


def item_rows(page: ConversationPage) -> list[dict[str, Any]]:
    """The rows of a page: what was said and done, oldest first, each with the id that messages have too."""
    return [*_item_rows(page)]


def _item_rows(page: ConversationPage) -> Iterator[dict[str, Any]]:
    for number, turn in ((part.number, part.turn) for part in page.parts):
        if turn.prompt is not None:
            yield {"kind": "prompt", "turn": number, "id": turn.message_id or "", "at": turn.at, "text": turn.prompt}
        for item in turn.items:
            # That of a call, or of its line: what the CLI names it by while it happens.
            item_id = item.id if item.kind == "tool" else item.id.partition(":")[0]
            yield {"kind": item.kind, "turn": number, "id": item_id, **_item_fields(item)}


def _item_fields(item: Item) -> dict[str, Any]:
    if item.kind != "tool":
        return {"text": item.text}
    names = ("name", "input", "status", "result", "diff", "agent")
    return {name: value for name in names if (value := getattr(item, name))}
