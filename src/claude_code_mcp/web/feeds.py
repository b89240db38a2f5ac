"""What watchers are told: the events of each session that somebody watches, and the list of each principal's sessions.

A feed is there while it is watched. It takes the events as they come, waits a moment for more, encodes each once and
wakes its watchers. The log of the session never waits for any of this.
"""

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Any, TypeVar

from ..errors import ClaudeCodeError
from ..model.events import (
    AuditEvent,
    AuditKind,
    Event,
    Partial,
    PartialRun,
    QuestionOpened,
    QuestionSettled,
    Stalled,
    StateChanged,
    TurnEnded,
    TurnStarted,
)
from ..service import Service
from ..sessions.session import Session
from ..store.event_log import Subscription
from .event_frames import Frame, FrameEncoder, frame, whole_parts
from .rings import Ring
from .rows import live_row

_MERGE_SECONDS = 0.025
"""How long a feed waits for more: fragments within it become one frame."""
_LONGEST_RUN = 5000
"""Fragments of one text that are looked at."""
_LIST_SECONDS = 0.5
_LIST_EVENTS = (StateChanged, QuestionOpened, QuestionSettled, TurnStarted, TurnEnded, Stalled)
Key = TypeVar("Key", bound=Hashable)
FeedT = TypeVar("FeedT", bound="SessionFeed | TranscriptFeed | ListFeed")
_LIST_ACTS = frozenset(
    {AuditKind.SESSION_CREATED, AuditKind.SESSION_FORKED, AuditKind.SESSION_RESUMED, AuditKind.CANCELLED}
)


class SessionFeed:
    """The events of one session, for all who watch it."""

    def __init__(self, service: Service, session: Session) -> None:
        self.session = session
        self.ring = Ring()
        self._service = service
        self._encoder = FrameEncoder(service.redaction, session.events.cursor, session.cwd)
        self.sent_seq = session.events.last_seq
        """The last event of which everything is in the ring, or would be if there were anything to tell of it."""
        self._known_id = session.id
        self._begin_within_a_text()
        self._events: Subscription = session.events.subscribe()
        self.gone = False
        """Whether the session is no longer in memory."""
        self._task = service.start_task(self._run())

    def _begin_within_a_text(self) -> None:
        """Where the latest fragments may be the beginning of a secret, they belong to the ring and to no backlog."""
        latest = self.session.events.after(max(0, self.sent_seq - _LONGEST_RUN))
        run = latest[-1] if latest else None
        if isinstance(run, PartialRun):
            whole = whole_parts(run.parts, self._service.redaction)
            for number, part in enumerate(run.parts[whole:], run.first + whole):
                self._take(Partial(part, run.kind, seq=number, at=run.at))
            self.sent_seq = run.first + whole - 1

    def close(self) -> None:
        self._events.close()
        self._task.cancel()

    def backlog(self, after: int) -> bytes:
        """What has happened between an event and where the ring goes on, encoded for one watcher."""
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
            await asyncio.sleep(_MERGE_SECONDS)
            with contextlib.suppress(IndexError):
                while True:
                    self._take(self._events.take())
            self._flush()
        self.gone = True
        for encoded in self._encoder.finish():
            self.ring.add(encoded)
        self.ring.add(Frame(0, frame("session-gone", {"sessionId": self.session.id})))
        self.ring.wake()

    def _take(self, event: Event) -> None:
        for encoded in self._encoder.take(event):
            self.ring.add(encoded)
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
    """The part of an event that is not newer than a number; None if all of it is."""
    if event.seq <= seq:
        return event
    if isinstance(event, PartialRun) and event.first <= seq:
        kept = event.parts[: seq - event.first + 1]
        return PartialRun(first=event.first, kind=event.kind, parts=kept, seq=seq, at=event.at, size=event.size)
    return None


class TranscriptFeed:
    """Whether the transcript of a session has grown that is not at work here: a terminal or another server has it."""

    def __init__(self, service: Service, principal: str, session_id: str) -> None:
        self.ring = Ring(most_frames=10)
        self._service = service
        self._principal = principal
        self._session_id = session_id
        self._task = service.start_task(self._follow())

    async def _follow(self) -> None:
        with contextlib.suppress(ClaudeCodeError):  # it has no transcript yet: then nobody else has it either
            async for _ in self._service.stored.follow(self._session_id, owner=self._principal):
                session = session_in_memory(self._service, self._principal, self._session_id)
                if session is None or not session.live:
                    self.ring.add(Frame(0, frame("grown", {"sessionId": self._session_id})))
                    self.ring.wake()

    def close(self) -> None:
        self._task.cancel()


def session_in_memory(service: Service, principal: str, session_id: str) -> Session | None:
    """The session of a principal under the id that it goes on with; None if it is on disk alone."""
    current = service.current_id(session_id)
    return next((session for session in service.sessions(owner=principal) if session.id == current), None)


class ListFeed:
    """Which of a principal's sessions have changed, at most twice a second each."""

    def __init__(self, service: Service, principal: str) -> None:
        self.ring = Ring(most_frames=1000, most_bytes=2 << 20)
        self._service = service
        self._principal = principal
        self._changed: dict[str, None] = {}
        self._report_timer: asyncio.TimerHandle | None = None

    def rows(self) -> bytes:
        """All of the principal's sessions in memory."""
        sessions = self._service.sessions(owner=self._principal)
        return b"".join(frame("session", self._row(session)) for session in sessions)

    def _row(self, session: Session) -> dict[str, Any]:
        return live_row(session, self._service.redaction)

    def changed(self, session_id: str) -> None:
        self._changed[session_id] = None
        if self._report_timer is None:
            self._report_timer = asyncio.get_running_loop().call_later(_LIST_SECONDS, self._report)

    def _report(self) -> None:
        self._report_timer = None
        changed, self._changed = self._changed, {}
        known = {session.id: session for session in self._service.sessions(owner=self._principal)}
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
    """An observer of the service. Sessions and principals without a watcher cost nothing here."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: dict[Session, SessionFeed] = {}
        self._transcripts: dict[tuple[str, str], TranscriptFeed] = {}
        self._lists: dict[str, ListFeed] = {}
        self._waiting: dict[str, set[asyncio.Event]] = {}
        """By session, who watches it while it is on disk alone."""

    @contextlib.contextmanager
    def session(self, session: Session) -> Iterator[SessionFeed]:
        """The feed of a session in memory, while it is watched."""
        with _while_watched(self._sessions, session, lambda: SessionFeed(self._service, session)) as feed:
            yield feed

    @contextlib.contextmanager
    def transcript(self, principal: str, session_id: str) -> Iterator[TranscriptFeed]:
        """The feed of a session wherever it is, while it is watched."""
        key = (principal, session_id)
        make = partial(TranscriptFeed, self._service, principal, session_id)
        with _while_watched(self._transcripts, key, make) as feed:
            yield feed

    @contextlib.contextmanager
    def list_of(self, principal: str) -> Iterator[ListFeed]:
        """The list of a principal, while it is watched."""
        with _while_watched(self._lists, principal, lambda: ListFeed(self._service, principal)) as feed:
            yield feed

    @contextlib.contextmanager
    def waiting(self, session_id: str, wake: asyncio.Event) -> Iterator[None]:
        """Within this context, whatever happens in the session sets the event."""
        self._waiting.setdefault(session_id, set()).add(wake)
        try:
            yield
        finally:
            waiting = self._waiting[session_id]
            waiting.discard(wake)
            if not waiting:
                del self._waiting[session_id]

    def event(self, session_id: str, owner: str, event: Event) -> None:
        feed = self._lists.get(owner)
        if feed is not None and isinstance(event, _LIST_EVENTS):
            feed.changed(session_id)
        for wake in self._waiting.get(session_id, ()):
            wake.set()

    def act(self, act: AuditEvent) -> None:
        feed = self._lists.get(act.who)
        if feed is not None and act.kind in _LIST_ACTS and act.session_id is not None:
            feed.changed(act.session_id)


@contextlib.contextmanager
def _while_watched(feeds: dict[Key, FeedT], key: Key, make: Callable[[], FeedT]) -> Iterator[FeedT]:
    """The feed under a key, made if there is none; closed when nobody is left who watches it."""
    feed = feeds.get(key)
    if feed is None:
        feed = feeds[key] = make()
    try:
        yield feed
    finally:
        if not feed.ring.watched and feeds.get(key) is feed:
            del feeds[key]
            feed.close()
