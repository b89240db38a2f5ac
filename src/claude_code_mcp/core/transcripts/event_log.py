"""The event log of one session: numbered, limited by count and bytes, replayable, with subscriptions.

The log never waits for a reader. A reader that falls behind, or asks for events that are gone, gets a `Gap` instead.
Fragments of a message that is being written go to subscribers one by one but share one log entry, so that a long answer
does not displace everything else.
"""

import asyncio
import itertools
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable

from ..model.events import Event, Gap, Partial, PartialRun

_CURSOR = re.compile(r"([0-9a-f]{1,32})-([0-9]{1,18})", re.ASCII)
_LONG_RUN = 128 << 10
_LARGE = 1 << 20
_ENTRY_COST = 256
_PART_COST = 64


class EventLog:
    """Appending is cheap and synchronous; reading is by sequence number."""

    def __init__(self, max_events: int, max_bytes: int, listener: Callable[[Event], None] = lambda _: None) -> None:
        """`listener` is called with every event at once, except fragments; it must neither block nor raise."""
        self._listener = listener
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._large = min(_LARGE, max_bytes // 2)
        self._long_run = min(_LONG_RUN, max_bytes // 8)
        self._entries: deque[Event] = deque()
        self._bytes = 0
        self._counted = 0
        self._closed = False
        # A tuple that is replaced and never changed: a subscriber may leave while an event is being delivered.
        self._subscribers: tuple[Subscription, ...] = ()
        self.epoch = secrets.token_hex(4)
        """Distinguishes this log from every other, including other logs of the same session."""
        self._restored_epoch = ""
        self.restored_seq = 0
        """The number of the newest restored event."""
        self.last_seq = 0
        """The number of the newest event; 0 if there is none."""

    @property
    def first_seq(self) -> int:
        """The number of the oldest event in the log."""
        if not self._entries:
            return self.last_seq + 1
        oldest = self._entries[0]
        return oldest.first if isinstance(oldest, PartialRun) else oldest.seq

    @property
    def size(self) -> int:
        """The approximate size in bytes."""
        return self._bytes

    def restore(self, events: Iterable[Event], epoch: str) -> None:
        """Fills an empty log with events from before a restart, without passing them to subscribers or the listener.
        `epoch` must be equal for equal events only."""
        for event in events:
            self.last_seq += 1
            event.seq, event.at = self.last_seq, event.at or time.time()
            self._keep(event)
        self._restored_epoch, self.restored_seq = epoch, self.last_seq

    def cursor(self, seq: int) -> str:
        """A position in this log that no other log of the same session accepts as its own."""
        restored = bool(self._restored_epoch) and seq <= self.restored_seq
        return f"{self._restored_epoch if restored else self.epoch}-{seq}"

    def position(self, cursor: str) -> int | None:
        """The number in a cursor; None if the cursor is from another log. Raises ValueError for an invalid cursor."""
        found = _CURSOR.fullmatch(cursor)
        if found is None:
            raise ValueError("is not a cursor")
        epoch, seq = found[1], int(found[2])
        if epoch == self.epoch:
            return seq if seq <= self.last_seq else None
        return seq if epoch == self._restored_epoch and seq <= self.restored_seq else None

    def append(self, event: Event) -> None:
        """Numbers the event, adds the time, stores it and passes it to every subscriber."""
        self.last_seq += 1
        event.seq = self.last_seq
        event.at = time.time()
        if event.__class__ is Partial:
            self._merge(event)
        else:
            self._keep(event)
            self._listener(event)
        for subscriber in self._subscribers:
            subscriber._offer(event)

    def _merge(self, event: Partial) -> None:
        run = self._entries[-1] if self._entries else None
        cost = _PART_COST + len(event.text)
        # Only the newest entry is continued, so that the numbers of a run have no gap; not indefinitely, or it could
        # never be evicted.
        if run.__class__ is PartialRun and (run.kind == event.kind or not event.text) and run.size < self._long_run:
            run.parts.append(event.text)
            run.seq = event.seq
            run.size += cost
            self._bytes += cost
            if self._bytes > self._max_bytes:
                self._evict()
            return
        self._keep(
            PartialRun(first=event.seq, kind=event.kind, parts=[event.text], seq=event.seq, at=event.at, size=cost)
        )

    def _keep(self, event: Event) -> None:
        kept = event.kept() if event.kept_in_part else event
        if kept.size > self._large:
            kept = kept.shortened()
        self._entries.append(kept)
        self._bytes += _ENTRY_COST + kept.size
        self._counted += kept.__class__ is not PartialRun
        if self._bytes > self._max_bytes or self._counted > self._max_events:
            self._evict()

    def _evict(self) -> None:
        """Drops the oldest events. Keeps the newest, however large."""
        entries = self._entries
        while len(entries) > 1 and (self._bytes > self._max_bytes or self._counted > self._max_events):
            oldest = entries.popleft()
            self._bytes -= _ENTRY_COST + oldest.size
            self._counted -= oldest.__class__ is not PartialRun

    def after(self, seq: int) -> list[Event]:
        """The events after `seq`, oldest first; a Gap stands for those that are gone."""
        seq = max(0, seq)
        newer = itertools.takewhile(lambda event: event.seq > seq, reversed(self._entries))
        found = [_behind(event, seq) if isinstance(event, PartialRun) else event for event in newer]
        if seq + 1 < self.first_seq:
            found.append(Gap(first=seq + 1, seq=self.first_seq - 1, at=self._entries[0].at))
        return found[::-1]

    def latest(self, kind: type[Event], count: int) -> list[Event]:
        """The last `count` events of a kind, oldest first."""
        matching = (event for event in reversed(self._entries) if isinstance(event, kind))
        return list(itertools.islice(matching, count))[::-1]

    def subscribe(self, after: int | None = None, capacity: int = 10_000, max_bytes: int = 32 << 20) -> "Subscription":
        """A live view of the events after `after` (or from now on). Use it as a context manager."""
        subscription = Subscription(self, capacity, max_bytes)
        # No await from here to the registration: no event can fall between the replayed and the live events.
        for event in self.after(after) if after is not None else ():
            subscription._offer(event)
        if self._closed:
            subscription.close()
        else:
            self._subscribers = (*self._subscribers, subscription)
        return subscription

    def _unsubscribe(self, subscription: "Subscription") -> None:
        self._subscribers = tuple(other for other in self._subscribers if other is not subscription)

    def close(self) -> None:
        """Ends every present and future subscription after its stored events."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.close()


class Subscription:
    """An asynchronous iterator over events. A reader that falls behind loses the oldest events and gets a `Gap` for
    them."""

    def __init__(self, log: EventLog, capacity: int, max_bytes: int) -> None:
        self._log = log
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._bytes = 0
        self._queue: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._waiting = False
        """Whether the reader sleeps and was not woken yet."""
        self._lost: Gap | None = None
        self._closed = False

    def _offer(self, event: Event) -> None:
        """Accepts an event. Thousands may arrive per second, so it does as little as possible."""
        self._queue.append(event)
        self._bytes += event.size
        if self._bytes > self._max_bytes or len(self._queue) > self._capacity:
            self._drop_oldest()
        if self._waiting:
            self._waiting = False
            self._wake.set()

    def _drop_oldest(self) -> None:
        while len(self._queue) > 1 and (len(self._queue) > self._capacity or self._bytes > self._max_bytes):
            event = self._queue.popleft()
            self._bytes -= event.size
            first = event.first if isinstance(event, Gap | PartialRun) else event.seq
            self._lost = Gap(first=self._lost.first if self._lost else first, seq=event.seq, at=event.at)

    def close(self) -> None:
        """Accepts no more events and ends the iteration once the queue is empty."""
        self._closed = True
        self._log._unsubscribe(self)
        self._wake.set()

    def __enter__(self) -> "Subscription":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> "Subscription":
        return self

    async def __anext__(self) -> Event:
        while not (self._lost or self._queue):
            if self._closed:
                raise StopAsyncIteration
            # No await between the check of the queue and the wait: an event cannot arrive unnoticed.
            self._wake.clear()
            self._waiting = True
            await self._wake.wait()
            self._waiting = False
        return self.take()

    def take(self) -> Event:
        """The next event that is already available. Raises IndexError if there is none."""
        if self._lost is not None:
            lost, self._lost = self._lost, None
            return lost
        event = self._queue.popleft()
        self._bytes -= event.size
        return event


def _behind(run: PartialRun, seq: int) -> PartialRun:
    """The part of a run after `seq`. Always a copy, because the log may still extend its own."""
    skipped = max(0, seq + 1 - run.first)
    return PartialRun(
        first=run.first + skipped, kind=run.kind, parts=run.parts[skipped:], seq=run.seq, at=run.at, size=run.size
    )
