"""What waits for a client to read it. Bounded: one that stops reading costs no more than this, and stops nobody."""

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

_CAPACITY = 20_000


_MAX_BYTES = 16 << 20


class Numbered(NamedTuple):
    """A message with its place in the stream and its time (Unix seconds)."""

    sequence: int
    message: Mapping[str, Any]
    at: float
    size: int


class NotificationQueue:
    """An asynchronous iterator. Who falls too far behind loses the oldest; the numbers of the rest tell it."""

    def __init__(self, capacity: int = _CAPACITY, max_bytes: int = _MAX_BYTES) -> None:
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

    async def __anext__(self) -> Numbered:
        while not self._queue:
            self._read.set()
            if self._closed:
                raise StopAsyncIteration
            self._more.clear()
            await self._more.wait()
        return self._next()

    def _next(self) -> Numbered:
        item = self._queue.popleft()
        self._bytes -= item.size
        return item


_MOST = 100


@dataclass(slots=True)
class Listening:
    """The events of a session for one round of a call."""

    events: Subscription
    comes_back: bool = False
    """Whether another round will go on from here."""


class HeldEvents:
    """The subscriptions of calls between two rounds, by session."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, Subscription] = OrderedDict()

    @contextmanager
    def listening(self, session: Session, after: int) -> Iterator[Listening]:
        """The events from behind `after` on, or from where an earlier round of the call left off."""
        held = self._held.pop(session.id) if session.id in self._held else session.events.subscribe(after)
        listening = Listening(held)
        try:
            yield listening
        finally:
            if listening.comes_back:
                self._hold(session.id, listening.events)
            else:
                listening.events.close()

    def _hold(self, session_id: str, events: Subscription) -> None:
        self._held[session_id] = events
        while len(self._held) > _MOST:
            self._held.popitem(last=False)[1].close()


_TEXT_OF = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


Raw = Mapping[str, Any]


class Fragments:
    """One stream of messages. At most one held-back text per block that is being written."""

    def __init__(self, redactor: Redacts) -> None:
        self._redactor = redactor
        self._held: dict[object, tuple[Raw, str]] = {}

    def take(self, message: Raw) -> list[Raw]:
        """The messages to be sent for this one, in order."""
        told = _text_in(message)
        if told is None:
            return [*self.flush(), message]
        block = message.get("parent_tool_use_id"), message["event"].get("index")
        _, before = self._held.pop(block, (message, ""))
        text = before + told
        kept = self._redactor.held_back(text)
        if kept:
            self._held[block] = message, text[len(text) - kept :]
        return [_with_text(message, text[: len(text) - kept])] if kept or before else [message]

    def flush(self) -> list[Raw]:
        """What was held back, since nothing more follows."""
        left, self._held = self._held, {}
        return [{**_with_text(message, text), "uuid": str(uuid.uuid4())} for message, text in left.values()]


def _text_in(message: Raw) -> str | None:
    """The text of a fragment; None for every other message."""
    event = message.get("event")
    delta = event.get("delta") if isinstance(event, Mapping) and event.get("type") == "content_block_delta" else None
    field = _TEXT_OF.get(str(delta.get("type"))) if isinstance(delta, Mapping) else None
    text = delta.get(field) if isinstance(delta, Mapping) and field else None
    return text if isinstance(text, str) else None


def _with_text(message: Raw, text: str) -> dict[str, Any]:
    event = message["event"]
    delta = event["delta"]
    return {**message, "event": {**event, "delta": {**delta, _TEXT_OF[delta["type"]]: text}}}
