"""The buffers of `claude_code_query` between a session's log and its client.

`HeldEvents` keeps the subscription of a call between two rounds, `Fragments` keeps a secret that is spread over several
fragments from passing in pieces, and `NotificationQueue` holds what the client has not read yet. All are bounded: a
client that stops reading or never comes back costs no more than this and stops nobody.
"""

import asyncio
import uuid
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...questions.presentation import Redacts
from ...sessions.session import Session
from ...store.event_log import Subscription

_QUEUE_LENGTH = 20_000
_QUEUE_BYTES = 16 << 20
_PIECE_LENGTH = 100
_PIECE_BYTES = 256 << 10
"""What is sent at once: what has gathered, but no more than this, unless it is a single message."""
_MAX_HELD = 100
"""Subscriptions that are kept between two rounds."""
_DELTA_TEXT = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
"""The field of each kind of delta that has text."""

RawMessage = Mapping[str, Any]


class Numbered(NamedTuple):
    """A message with its place in the stream and its time (Unix seconds)."""

    sequence: int
    message: RawMessage
    at: float
    size: int


class NotificationQueue:
    """An asynchronous iterator over messages, in the pieces in which they are to be sent, for one reader.

    When the reader falls too far behind, the oldest messages are dropped; the gap in the numbers shows it.
    """

    def __init__(self, capacity: int = _QUEUE_LENGTH, max_bytes: int = _QUEUE_BYTES) -> None:
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._queue: deque[Numbered] = deque()
        self._bytes = 0
        self._more = asyncio.Event()
        self._read = asyncio.Event()
        self._closed = False
        self.lost = 0
        """How many were dropped."""

    def put(self, item: Numbered) -> None:
        self._queue.append(item)
        self._bytes += item.size
        while len(self._queue) > 1 and (len(self._queue) > self._capacity or self._bytes > self._max_bytes):
            self._next()
            self.lost += 1
        self._read.clear()
        self._more.set()

    def close(self) -> None:
        """Ends the iteration once everything is read."""
        self._closed = True
        self._more.set()

    async def all_read(self) -> None:
        """Returns when the reader has come back for more and there is none, as of this very moment."""
        while not self._read.is_set():  # more may have come between the reader's return and ours
            await self._read.wait()

    def __aiter__(self) -> "NotificationQueue":
        return self

    async def __anext__(self) -> list[Numbered]:
        while not self._queue:
            self._read.set()
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        piece = [self._next()]
        size = piece[0].size
        while self._queue and len(piece) < _PIECE_LENGTH and size + self._queue[0].size <= _PIECE_BYTES:
            piece.append(self._next())
            size += piece[-1].size
        return piece

    def _next(self) -> Numbered:
        item = self._queue.popleft()
        self._bytes -= item.size
        return item


@dataclass(slots=True)
class RoundEvents:
    """The events of a session for one round of a call."""

    events: Subscription
    continues: bool = False
    """Whether another round will go on from here."""


class HeldEvents:
    """The subscriptions of calls between two rounds, by session. The oldest are closed when there are too many."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def subscribe(self, session: Session, after: int) -> Iterator[RoundEvents]:
        """The events from where an earlier round of the call left off, or else those behind `after`. At the end the
        subscription is held for the next round if the call continues, and closed if not."""
        held = self._held.pop(session.id) if session.id in self._held else session.events.subscribe(after)
        round_ = RoundEvents(held)
        try:
            yield round_
        finally:
            if round_.continues:
                self._hold(session.id, round_.events)
            else:
                round_.events.close()

    def _hold(self, session_id: str, events: Subscription) -> None:
        self._held[session_id] = events
        while len(self._held) > _MAX_HELD:
            self._held.popitem(last=False)[1].close()


class Fragments:
    """Holds back the end of a fragment's text as long as it may be the beginning of a known secret.

    One per stream of messages; at most one held-back text per content block that is being written.
    """

    def __init__(self, redactor: Redacts) -> None:
        self._redactor = redactor
        self._held: dict[object, tuple[RawMessage, str]] = {}

    def take(self, message: RawMessage) -> list[RawMessage]:
        """The messages to be sent for this one, in order."""
        delta = _delta_text(message)
        if delta is None:
            return [*self.flush(), message]
        block = message.get("parent_tool_use_id"), message["event"].get("index")
        _, before = self._held.pop(block, (message, ""))
        text = before + delta
        kept = self._redactor.held_back(text)
        if kept:
            self._held[block] = message, text[len(text) - kept :]
        return [_with_text(message, text[: len(text) - kept])] if kept or before else [message]

    def flush(self) -> list[RawMessage]:
        """The held-back texts as messages, when nothing more follows in their blocks."""
        held, self._held = self._held, {}
        return [{**_with_text(message, text), "uuid": str(uuid.uuid4())} for message, text in held.values()]


def _delta_text(message: RawMessage) -> str | None:
    """The text of a fragment; None for every other message."""
    event = message.get("event")
    delta = event.get("delta") if isinstance(event, Mapping) and event.get("type") == "content_block_delta" else None
    field = _DELTA_TEXT.get(str(delta.get("type"))) if isinstance(delta, Mapping) else None
    text = delta.get(field) if isinstance(delta, Mapping) and field else None
    return text if isinstance(text, str) else None


def _with_text(message: RawMessage, text: str) -> dict[str, Any]:
    event = message["event"]
    delta = event["delta"]
    return {**message, "event": {**event, "delta": {**delta, _DELTA_TEXT[delta["type"]]: text}}}
