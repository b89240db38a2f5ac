"""The feeds for watchers: events of sessions and lists, stored once in rings, and the stream of one watcher.

Frames are stored in a ring: adding one costs the same for any number of watchers and never waits. A watcher that falls
behind the oldest frame is notified of the gap and continues there. Watchers at the same position receive identical
bytes.

A feed exists while it is watched. It collects events for a short time, encodes each once and wakes its watchers. The
session's log never waits for a feed.

A watcher that reads slowly gets a gap and continues. A watcher that reads nothing, or whose sign-in has ended, is
disconnected.
"""

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...core.errors import ClaudeCodeError, LimitReached
from ...core.model.caller import Caller
from ...core.model.events import (
    LIST_CHANGES,
    AuditEvent,
    Event,
    Partial,
    PartialRun,
    QuestionOpened,
    QuestionSettled,
    Stalled,
    StateChanged,
    TurnEnded,
    TurnStarted,
    WaitChanged,
    ends_text,
)
from ...core.service import Service
from ...core.sessions.session import Session
from ...core.sessions.stored.session_row import session_row
from ...core.transcripts.event_log import Subscription
from ...server.web_answers import ANSWER_HEADERS, text_of
from .event_frames import Frame, FrameEncoder, frame, page_row, session_in_memory, whole_parts
from .guard import WebUser

_MAX_FRAMES = 4096
_MAX_BYTES = 8 << 20
_MAX_READ = 256 << 10


class Read(NamedTuple):
    """Consecutive frames."""

    begin: int
    end: int
    data: bytes
    last_seq: int
    """The newest event in them; 0 if there is none."""


class Ring:
    """The latest frames of one source."""

    def __init__(self, most_frames: int = _MAX_FRAMES, most_bytes: int = _MAX_BYTES) -> None:
        self._most_frames = most_frames
        self._most_bytes = most_bytes
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._start = 0
        """The position of the oldest frame."""
        self.dropped_seq = 0
        """The event of the newest dropped frame."""
        self._wakes: set[asyncio.Event] = set()
        self._latest = Read(0, 0, b"", 0)

    @property
    def end(self) -> int:
        """The position after the newest frame."""
        return self._start + len(self._frames)

    @property
    def watched(self) -> bool:
        return bool(self._wakes)

    def add(self, frame: Frame) -> None:
        """Adds a frame; watchers notice it after `wake`."""
        self._frames.append(frame)
        self._bytes += len(frame.data)
        while len(self._frames) > 1 and (len(self._frames) > self._most_frames or self._bytes > self._most_bytes):
            oldest = self._frames.popleft()
            self._bytes -= len(oldest.data)
            self._start += 1
            self.dropped_seq = max(self.dropped_seq, oldest.seq)

    def wake(self) -> None:
        for event in self._wakes:
            event.set()

    def join(self, wake: asyncio.Event) -> "RingPlace":
        """A reader's position at the end; `wake` is set whenever there may be more. The caller must leave it."""
        self._wakes.add(wake)
        return RingPlace(self, wake)

    def leave(self, wake: asyncio.Event) -> None:
        self._wakes.discard(wake)

    def read(self, place: int) -> Read:
        """The frames from a position on that are still stored, within a size."""
        begin = max(place, self._start)
        # Watchers that keep up share one position: the bytes are joined once for all of them.
        if self._latest.begin == begin and self._latest.end == self.end:
            return self._latest
        parts: list[bytes] = []
        size, last_seq = 0, 0
        for kept in islice(self._frames, begin - self._start, None):
            if parts and size + len(kept.data) > _MAX_READ:
                break
            parts.append(kept.data)
            size += len(kept.data)
            last_seq = max(last_seq, kept.seq)
        found = Read(begin, begin + len(parts), b"".join(parts), last_seq)
        if found.end == self.end:
            self._latest = found
        return found


class RingPlace:
    """The position of one watcher."""

    def __init__(self, ring: Ring, wake: asyncio.Event) -> None:
        self._ring = ring
        self._wake = wake
        self._next = ring.end
        self._last_seq = 0

    def read(self) -> tuple[bytes, tuple[int, int] | None]:
        """The new frames, possibly none; and the first and last event that were lost before them, if any."""
        found = self._ring.read(self._next)
        lost = (self._last_seq + 1, self._ring.dropped_seq) if found.begin > self._next else None
        self._next, self._last_seq = found.end, max(self._last_seq, found.last_seq)
        return found.data, lost

    def reached(self, seq: int) -> None:
        """Marks everything up to this event as received by the watcher from elsewhere."""
        self._last_seq = max(self._last_seq, seq)

    def leave(self) -> None:
        self._ring.leave(self._wake)


_MERGE_SECONDS = 0.025
"""How long a feed waits for more: fragments within this time become one frame."""
_MAX_RUN = 5000
"""Maximum fragments of one text per frame."""
_LIST_SECONDS = 0.5
_LIST_EVENTS = (StateChanged, QuestionOpened, QuestionSettled, TurnStarted, TurnEnded, WaitChanged, Stalled)
Key = TypeVar("Key", bound=Hashable)
FeedT = TypeVar("FeedT", bound="SessionFeed | TranscriptFeed | ListFeed")


class SessionFeed:
    """The events of one session for all its watchers."""

    def __init__(self, service: Service, session: Session) -> None:
        self.session = session
        self.ring = Ring()
        self._service = service
        self._encoder = FrameEncoder(service.redaction, session.events.cursor, session.cwd)
        self.sent_seq = session.events.last_seq
        """The last event that is completely in the ring, or needs no frame."""
        self._known_id = session.id
        # Before the subscription and without an await in between: each fragment is read once, either from the log or
        # from the subscription.
        self._begin_within_a_text()
        self._events: Subscription = session.events.subscribe()
        self.gone = False
        """Whether the session is no longer in memory."""
        self._task = service.start_task(self._run())

    def _begin_within_a_text(self) -> None:
        """If the latest fragments may be the beginning of a secret, they belong to the ring and to no backlog."""
        latest = self.session.events.after(max(0, self.sent_seq - _MAX_RUN))
        begin = next((number for number in range(len(latest), 0, -1) if ends_text(latest[number - 1])), 0)
        writing = latest[begin:]
        runs = [event for event in writing if isinstance(event, PartialRun)]
        parts = [
            (number, part)
            for run in runs
            if run.kind == runs[-1].kind
            for number, part in enumerate(run.parts, run.first)
        ]
        whole = whole_parts([part for _, part in parts], self._service.redaction)
        if whole == len(parts):
            return
        first = parts[whole][0]
        for event in writing:
            if isinstance(event, PartialRun):
                for number, part in enumerate(event.parts, event.first):
                    if number >= first:
                        self._take(Partial(part, event.kind, seq=number, at=event.at))
            elif event.seq > first:
                self._take(event)
        self.sent_seq = first - 1

    def close(self) -> None:
        self._events.close()
        self._task.cancel()

    def backlog(self, after: int) -> bytes:
        """The events between a given one and the ring's position, encoded for one watcher."""
        encoder = FrameEncoder(self._service.redaction, self.session.events.cursor, self.session.cwd)
        frames: list[Frame] = []
        for event in self.session.events.after(after):
            whole = _until(event, self.sent_seq)
            if whole is not None:
                frames += encoder.take(whole)
        frames += encoder.finish()
        return b"".join(sent.data for sent in frames)

    async def _run(self) -> None:
        async for event in self._events:
            self._take(event)
            # Usually more fragments arrive within this pause. Combined in one frame they cost every watcher less.
            await asyncio.sleep(_MERGE_SECONDS)
            with contextlib.suppress(IndexError):
                while True:
                    self._take(self._events.take())
            self._flush()
        # The log was closed. Set first, so that the watchers woken below look for the session that replaced it.
        self.gone = True
        for encoded in self._encoder.finish():
            self.ring.add(encoded)
        self.ring.add(Frame(0, frame("session-gone", {"sessionId": self.session.id})))
        self.ring.wake()

    def _take(self, event: Event) -> None:
        for encoded in self._encoder.take(event):
            self.ring.add(encoded)
        # Must not advance while fragments are held back: a watcher that resumes after this event would miss them.
        if not isinstance(event, PartialRun) and not self._encoder.holds:
            self.sent_seq = event.seq

    def _flush(self) -> None:
        for encoded in self._encoder.flush():
            self.ring.add(encoded)
        if not self._encoder.holds:
            self.sent_seq = max(self.sent_seq, self._encoder.reached)
        if self.session.id != self._known_id:
            old, self._known_id = self._known_id, self.session.id
            self.ring.add(Frame(0, frame("moved", {"sessionId": old, "newSessionId": self.session.id})))
        self.ring.wake()


def _until(event: Event, seq: int) -> Event | None:
    """The part of an event up to a number; None if all of it is later."""
    if event.seq <= seq:
        return event
    if isinstance(event, PartialRun) and event.first <= seq:
        kept = event.parts[: seq - event.first + 1]
        return PartialRun(first=event.first, kind=event.kind, parts=kept, seq=seq, at=event.at, size=event.size)
    return None


class TranscriptFeed:
    """Whether the transcript of a session grows while a terminal or another server runs it."""

    def __init__(self, service: Service, principal: str, session_id: str) -> None:
        self.ring = Ring(most_frames=10)
        self._service = service
        self._principal = principal
        self._session_id = session_id
        self._task = service.start_task(self._follow())

    async def _follow(self) -> None:
        with contextlib.suppress(ClaudeCodeError):  # it has no transcript yet, so no other process has it either
            async for _ in self._service.stored.follow(self._session_id, caller=Caller(self._principal)):
                session = session_in_memory(self._service, self._principal, self._session_id)
                if session is None or not session.live:
                    self.ring.add(Frame(0, frame("grown", {"sessionId": self._session_id})))
                    self.ring.wake()

    def close(self) -> None:
        self._task.cancel()


class ListFeed:
    """A principal's changed sessions, each at most twice a second."""

    def __init__(self, service: Service, principal: str) -> None:
        self.ring = Ring(most_frames=1000, most_bytes=2 << 20)
        self._service = service
        self._principal = principal
        self._changed: dict[str, None] = {}
        self._report_timer: asyncio.TimerHandle | None = None

    def rows(self) -> bytes:
        """All of the principal's sessions in memory."""
        sessions = self._service.sessions(principal=self._principal)
        return b"".join(frame("session", self._row(session)) for session in sessions)

    def _row(self, session: Session) -> dict[str, Any]:
        sharing = self._service.access.sharing(session.id, self._principal)
        return dict(self._service.redaction.data(page_row(session_row(None, session, sharing=sharing))))

    def changed(self, session_id: str) -> None:
        self._changed[session_id] = None
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(_LIST_SECONDS, self._report)

    def _report(self) -> None:
        self._report_timer = None
        # Cleared before encoding: changes during the encoding go into the next report.
        changed, self._changed = self._changed, {}
        known = {session.id: session for session in self._service.sessions(principal=self._principal)}
        for session_id in changed:
            session = known.get(session_id)
            gone = {"sessionId": session_id}
            row = frame("session", self._row(session)) if session is not None else frame("session-gone", gone)
            self.ring.add(Frame(0, row))
        self.ring.wake()

    def close(self) -> None:
        if self._report_timer is not None:
            self._report_timer.cancel()


class Feeds:
    """An observer of the service. Sessions and principals without watchers cost nothing here."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: dict[Session, SessionFeed] = {}
        self._transcripts: dict[tuple[str, str], TranscriptFeed] = {}
        self._lists: dict[str, ListFeed] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        """By session, its watchers while it is only on disk."""

    def session(self, session: Session) -> AbstractContextManager[SessionFeed]:
        """The feed of a session in memory, while it is watched."""
        return _while_watched(self._sessions, session, partial(SessionFeed, self._service, session))

    def transcript(self, principal: str, session_id: str) -> AbstractContextManager[TranscriptFeed]:
        """The transcript feed of any session, while it is watched."""
        make = partial(TranscriptFeed, self._service, principal, session_id)
        return _while_watched(self._transcripts, (principal, session_id), make)

    def list_of(self, principal: str) -> AbstractContextManager[ListFeed]:
        """The list of a principal, while it is watched."""
        return _while_watched(self._lists, principal, partial(ListFeed, self._service, principal))

    @contextlib.contextmanager
    def waiting(self, session_id: str, wake: asyncio.Event) -> Iterator[None]:
        """Within this context, every event of the session sets `event`."""
        self._waiting.setdefault(session_id, set()).add(wake)
        try:
            yield
        finally:
            waiting = self._waiting[session_id]
            waiting.discard(wake)
            if not waiting:
                del self._waiting[session_id]

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, _LIST_EVENTS):
            self._list_changed(session_id, owner)
        for wake in self._waiting.get(session_id, ()):
            wake.set()

    def act(self, act: AuditEvent) -> None:
        if act.kind in LIST_CHANGES and act.session_id is not None:
            self._list_changed(act.session_id, act.who)

    def _list_changed(self, session_id: str, owner: str) -> None:
        for principal, feed in self._lists.items():
            if principal == owner or self._service.access.is_shared(session_id, principal):
                feed.changed(session_id)


@contextlib.contextmanager
def _while_watched(feeds: dict[Key, FeedT], key: Key, make: Callable[[], FeedT]) -> Iterator[FeedT]:
    """The feed with a key, created on demand; closed with its last watcher."""
    feed = feeds.get(key)
    if feed is None:
        feed = feeds[key] = make()
    try:
        yield feed
    finally:
        # Another feed with other watchers may be stored under the same key by now.
        if not feed.ring.watched and feeds.get(key) is feed:
            del feeds[key]
            feed.close()


# -- stream -----------------------------------------------------------------------------------------------------------


HEARTBEAT = 15.0
_MAX_WRITE = 60.0
"""Seconds that a watcher may take to read pending data."""
_MAX_STREAMS = 500
"""Per principal."""


class Streams:
    """The event streams of a server."""

    def __init__(
        self,
        service: Service,
        still_signed_in: Callable[[WebUser], Awaitable[bool]],
        feeds: Feeds,
        heartbeat: float = HEARTBEAT,
    ) -> None:
        self._service = service
        self._still_signed_in = still_signed_in
        self._feeds = feeds
        self._heartbeat = heartbeat
        self._open: dict[str, set[_Watcher]] = {}
        self._closed = False

    def watched(self, principal: str | None = None) -> bool:
        """Whether anyone, or this principal, has the page open."""
        return bool(self._open.get(principal)) if principal is not None else any(self._open.values())

    async def open(self, request: Request, user: WebUser) -> Response:
        """Answers a request for a stream."""
        session_id = text_of(request, "session")
        if session_id is not None:
            session_id = (await self._service.find(session_id, caller=user.caller)).id
        after = request.headers.get("last-event-id") or text_of(request, "after")
        mine = self._open.setdefault(user.principal, set())
        # Checked and counted without an await in between: concurrent requests cannot all pass the check.
        if len(mine) >= _MAX_STREAMS:
            raise LimitReached("Too many pages are open at once.")
        watcher = _Watcher(self._service, self._feeds, user.principal, session_id)
        mine.add(watcher)
        return StreamResponse(self._frames(user, watcher, after), partial(mine.discard, watcher))

    async def _frames(self, user: WebUser, watcher: "_Watcher", after: str | None) -> AsyncIterator[bytes]:
        with watcher:
            yield watcher.begin(after)
            async for data in self._until_over(user, watcher):
                yield data

    async def _until_over(self, user: WebUser, watcher: "_Watcher") -> AsyncIterator[bytes]:
        clock = asyncio.get_running_loop().time
        due = clock() + self._heartbeat
        while not self._closed:
            data = watcher.read()
            if data:
                yield data
            else:
                with anyio.move_on_after(due - clock()):
                    await watcher.wake.wait()
            # By the clock, however much data is pending: a sign-in that ended elsewhere also ends a busy stream.
            if not watcher.to_check and clock() < due:
                continue
            watcher.to_check, due = False, clock() + self._heartbeat
            try:
                signed_in = await self._still_signed_in(user)
            except ClaudeCodeError:
                return  # the sign-in cannot be checked now: the next request reports the reason
            yield b": ping\n\n" if signed_in else frame("signed-out", {})
            if not signed_in:
                return

    def check_sign_ins(self, principal: str) -> None:
        """Makes every stream of a principal check whether its sign-in is still valid."""
        for watcher in self._open.get(principal, ()):
            watcher.to_check = True
            watcher.wake.set()

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for watchers in self._open.values():
            for watcher in watchers:
                watcher.wake.set()


class _Watcher(contextlib.ExitStack):
    """The parts of one stream: the list, the transcript of the watched session and, while it is in memory, its events.
    Nothing is awaited between the end of one and the start of another."""

    def __init__(self, service: Service, feeds: Feeds, principal: str, session_id: str | None) -> None:
        super().__init__()
        self.wake = asyncio.Event()
        self.to_check = False
        """Whether the sign-in must be checked."""
        self._service = service
        self._feeds = feeds
        self._principal = principal
        self._session_id = session_id
        self._places: list[RingPlace] = []
        self._listing: ListFeed | None = None
        self._feed: SessionFeed | None = None
        self._events: RingPlace | None = None
        self._attached = self.enter_context(contextlib.ExitStack())
        """The feed of the session in memory."""

    def begin(self, after: str | None) -> bytes:
        """Takes its positions, and returns the data that precedes the frames read there."""
        self._listing = self.enter_context(self._feeds.list_of(self._principal))
        self._join(self._listing.ring)
        first = b"retry: 2000\n\n" + self._listing.rows()
        if self._session_id is None:
            return first
        self._join(self.enter_context(self._feeds.transcript(self._principal, self._session_id)).ring)
        self.enter_context(self._feeds.waiting(self._session_id, self.wake))
        if self._attach():
            assert self._feed is not None
            return first + _missed(self._feed, after)
        return first + (frame("reset", {"cursor": None}) if after is not None else b"")

    def _join(self, ring: Ring) -> None:
        place = ring.join(self.wake)
        self._places.append(place)
        self.callback(place.leave)

    def _attach(self) -> bool:
        """Watches the session in memory, if it is not watched yet."""
        if self._session_id is None or (self._feed is not None and not self._feed.gone):
            return False
        session = session_in_memory(self._service, self._principal, self._session_id)
        if session is None or (self._feed is not None and session is self._feed.session):
            return False
        # No await between leaving the old log and joining the new one, so that no event is lost in between.
        self._attached.close()
        self._feed = self._attached.enter_context(self._feeds.session(session))
        self._events = self._feed.ring.join(self.wake)
        self._attached.callback(self._events.leave)
        self._events.reached(self._feed.sent_seq)
        return True

    def read(self) -> bytes:
        """The new data, possibly empty."""
        # Before reading: an event that arrives meanwhile sets this again, and the next round finds it.
        self.wake.clear()
        parts = []
        for place in self._places:
            changed, lost = place.read()
            parts.append(changed if lost is None else b"event: list-gap\ndata: {}\n\n" + changed)
        if self._attach():
            assert self._feed is not None
            parts.append(self._feed.backlog(self._feed.session.events.restored_seq))
        if self._events is not None and self._feed is not None:
            happened, gap = self._events.read()
            if gap is not None:
                cursor = self._feed.session.events.cursor(gap[1])
                parts.append(frame("gap", {"first": gap[0], "last": gap[1]}, cursor))
            parts.append(happened)
        return b"".join(parts)


def _missed(feed: SessionFeed, after: str | None) -> bytes:
    """The events since the one with this id."""
    events = feed.session.events
    if after is None:
        return b""
    try:
        position = events.position(after)
    except ValueError:
        position = None
    if position is None:  # the id belongs to a log that no longer exists
        cursor = events.cursor(feed.sent_seq)
        return frame("reset", {"cursor": cursor}, cursor)
    return feed.backlog(position)


class StreamResponse(Response):
    """Writes until the stream or the watcher ends. A watcher that does not read for too long is disconnected. `release`
    is called once: at the end, or when the response is dropped unsent."""

    def __init__(self, frames: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        headers = {**ANSWER_HEADERS, "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, "text/event-stream")
        del self.headers["content-length"]
        self._frames = frames
        self._release = weakref.finalize(self, release)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            # Only reading the request shows that a browser has disconnected; a silent stream would never notice.
            tasks.start_soon(until_gone)
            try:
                await self._write(send)
            finally:
                # Closing the generator makes it leave its feeds, also when this task is being cancelled.
                with anyio.CancelScope(shield=True):
                    await self._frames.aclose()  # type: ignore[attr-defined]  # it is a generator
                self._release()
            tasks.cancel_scope.cancel()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            with anyio.move_on_after(_MAX_WRITE) as limit:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            # Without a final chunk: the connection is in an unknown state and must be dropped.
            if limit.cancelled_caught:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
