"""Events of a session as frames of server-sent events: one encoding for every watcher. Pure.

Fragments of a text that is being written are put together, as many as have come since the last flush, and are held back
as long as they may end with the beginning of a known secret. An id is given only to what was sent up to it: whoever
resumes behind it misses nothing and gets nothing twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import json_text
from ..model.events import (
    Event,
    Gap,
    Message,
    MessageJoined,
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
)
from ..model.states import SESSION_TOOL_STATUS
from ..model.text import iso
from ..questions.presentation import Redacts, describe
from ..store.conversation import Item, frame_items
from ..store.conversation_pages import LONGEST_PREVIEW, shortened

_KINDS = {"text": "text", "thinking": "thinking", "partial_json": "input"}
_LONGEST_PENDING = 64 << 10
_LONGEST_SECRET = 8 << 10
_LOOK_BACK = 1000
"""Fragments that a known secret may be spread over."""


class Frame(NamedTuple):
    """Bytes of the stream; `seq` is the event that they end with, 0 for what is no event of the session."""

    seq: int
    data: bytes


def frame(name: str, payload: Mapping[str, Any], event_id: str = "") -> bytes:
    """One server-sent event."""
    head = f"id: {event_id}\nevent: {name}\ndata: " if event_id else f"event: {name}\ndata: "
    return head.encode() + json_text.encode(payload) + b"\n\n"


def item_fields(item: Item, cwd: str = "") -> dict[str, Any]:
    """An item of a conversation as it goes to the page. Of the result of a call there is no more than the result."""
    if item.kind != "tool":
        fields: dict[str, Any] = {"id": item.id, "kind": item.kind, "text": item.text}
    else:
        fields = {"id": item.id, "kind": "tool", "status": item.status}
        if item.name:
            tool_input = item.input if isinstance(item.input, Mapping) else {}
            fields |= {"name": item.name, "input": item.input, "description": describe(item.name, tool_input, cwd)}
        if item.status:
            fields |= {"result": item.result, "diff": item.diff, "agent": item.agent}
    return {**fields, "cut": True} if item.cut else fields


def whole_parts(parts: Sequence[str], redactor: Redacts) -> int:
    """How many of the first fragments of a text can be sent without those behind them."""
    for count in range(len(parts), 0, -1):
        end = "".join(parts[max(0, count - _LOOK_BACK) : count])[-_LONGEST_SECRET:]
        if not redactor.held_back(end):
            return count
    return 0


class FrameEncoder:
    """Encodes the events of one session, in their order."""

    def __init__(self, redactor: Redacts, cursor: Callable[[int], str], cwd: str = "") -> None:
        """`cursor` makes the id of an event from its number."""
        self._redactor = redactor
        self._cursor = cursor
        self._cwd = cwd
        self._kind = ""
        self._parts: list[str] = []
        self.reached = 0
        """The last fragment that was taken."""
        self._at = 0.0

    @property
    def holds(self) -> bool:
        """Whether fragments wait."""
        return bool(self._parts)

    def take(self, event: Event) -> Iterator[Frame]:
        """The frames that this event completes; a fragment waits for `flush`."""
        if isinstance(event, Partial | PartialRun):
            yield from self._fragment(event)
            return
        yield from self._release()
        for name, payload in self._payloads(event):
            yield self._frame(name, payload, event.seq, event.at)

    def flush(self) -> Iterator[Frame]:
        """What can be sent of the fragments that wait."""
        text = "".join(self._parts)
        if text and (not self._redactor.held_back(text) or len(text) > _LONGEST_PENDING):
            yield from self._release()

    def finish(self) -> Iterator[Frame]:
        """All of the fragments that wait: what follows is sent by another encoder."""
        yield from self._release()

    def _fragment(self, event: Partial | PartialRun) -> Iterator[Frame]:
        if isinstance(event, Partial) and event.raw is not None:
            if event.raw.get("parent_tool_use_id") is not None:
                return  # of a subagent: its items come whole
            if not event.text:
                kind = (event.raw.get("event") or {}).get("type")
                if kind == "content_block_start":
                    yield from self._release()
                    yield self._frame("block", {}, event.seq, event.at)
                return
        if event.kind != self._kind:
            yield from self._release()
        self._kind = event.kind
        self._parts.append(event.text)
        self.reached, self._at = event.seq, event.at

    def _release(self) -> Iterator[Frame]:
        text, self._parts = "".join(self._parts), []
        if text:
            payload = {"kind": _KINDS.get(self._kind, self._kind), "text": self._redactor.text(text), "parent": None}
            yield self._frame("partial", payload, self.reached, self._at)

    def _frame(self, name: str, payload: Mapping[str, Any], seq: int, at: float) -> Frame:
        return Frame(seq, frame(name, {**payload, "at": iso(at)}, self._cursor(seq)))

    def _payloads(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case Message():
                yield from self._message(event)
            case QuestionOpened():
                yield "question", question_fields(event, self._redactor)
            case QuestionSettled():
                yield "answered", self._redactor.data(_settled(event))
            case TurnStarted():
                prompt = self._redactor.text(event.prompt)
                yield "turn", {"number": event.number, "prompt": prompt, "messageId": event.message_id}
            case MessageJoined():
                joined = Item("message", event.text, id=f"{event.message_id}:0")
                shown = item_fields(shortened(_clean(joined, self._redactor), LONGEST_PREVIEW), self._cwd)
                yield "items", {"items": [shown], "parent": None, "model": None}
            case TurnEnded():
                yield "ended", self._redactor.data(_ended(event))
            case StateChanged():
                detail = self._redactor.text(event.detail)
                yield "state", {"status": SESSION_TOOL_STATUS[event.state], "detail": detail}
            case _:
                yield from self._health(event)

    def _health(self, event: Event) -> Iterator[tuple[str, dict[str, Any]]]:
        match event:
            case Retrying():
                fields = {"attempt": event.attempt, "of": event.of, "delayMs": event.delay_ms, "status": event.status}
                yield "retrying", {**fields, "detail": self._redactor.text(event.detail)}
            case Stalled():
                yield "stalled", {"seconds": event.seconds}
            case ProcessChanged():
                yield "process", {"change": event.change, "detail": self._redactor.text(event.detail)}
            case Gap():
                yield "gap", {"first": event.first, "last": event.seq}

    def _message(self, event: Message) -> Iterator[tuple[str, dict[str, Any]]]:
        raw = event.raw
        if "omitted_bytes" in raw:  # the log did not keep it
            yield "gap", {"first": event.seq, "last": event.seq}
            return
        items = frame_items(raw) if event.type in ("assistant", "user") else []
        if items:
            shown = [item_fields(shortened(_clean(item, self._redactor), LONGEST_PREVIEW), self._cwd) for item in items]
            message = raw.get("message")
            model = message.get("model") if isinstance(message, Mapping) else None
            yield "items", {"items": shown, "parent": raw.get("parent_tool_use_id"), "model": model}


def _clean(item: Item, redactor: Redacts) -> Item:
    item.text, item.result, item.diff = (redactor.text(text) for text in (item.text, item.result, item.diff))
    item.input = redactor.data(item.input)
    return item


def question_fields(event: QuestionOpened, redactor: Redacts) -> dict[str, Any]:
    """Which question was opened; its whole input is asked for by its id."""
    question = event.question
    fields = {
        "questionId": question.id,
        "kind": str(question.kind),
        "toolName": question.tool_name,
        "description": question.description,
        "expiresAt": None if question.deadline is None else iso(question.deadline),
    }
    return dict(redactor.data(fields))


def _settled(event: QuestionSettled) -> dict[str, Any]:
    resolution = event.resolution
    answer = resolution.answer
    return {
        "questionId": event.question.id,
        "closure": str(resolution.closure),
        "allow": answer.allow if answer is not None else None,
        "by": resolution.whose,
        "detail": resolution.detail or (answer.message if answer is not None else None) or "",
    }


def _ended(event: TurnEnded) -> dict[str, Any]:
    outcome = event.outcome
    return {
        "number": event.number,
        "code": str(outcome.code),
        "result": outcome.result,
        "detail": outcome.detail,
        "costUsd": round(outcome.usage.cost_usd, 6),
        "durationMs": outcome.duration_ms,
    }
