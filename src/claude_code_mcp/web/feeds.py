"""What watchers are told: the events of each session that somebody watches, and the list of each principal's sessions.

A feed is there while it is watched. It takes the events as they come, waits a moment for more, encodes each once and
wakes its watchers. The log of the session never waits for any of this.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import ClaudeCodeError
from ..model.events import (
    AuditEvent,
    AuditKind,
    Event,
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
from .event_frames import Frame, FrameEncoder, frame
from .rings import Ring
from .rows import live_row

_MERGE_SECONDS = 0.025
"""How long a feed waits for more: fragments within it become one frame."""
_LIST_SECONDS = 0.5
_LIST_EVENTS = (StateChanged, QuestionOpened, QuestionSettled, TurnStarted, TurnEnded, Stalled)
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
        self._events: Subscription = session.events.subscribe()
        self._tasks = [service.start_task(self._run()), service.start_task(self._follow())]

    def close(self) -> None:
        self._events.close()
        for task in self._tasks:
            task.cancel()

    def backlog(self, after: int) -> bytes:
        """What has happened between an event and where the ring goes on, encoded for one watcher."""
        encoder = FrameEncoder(self._service.redaction, self.session.events.cursor, self.session.cwd)
        frames: list[Frame] = []
        for event in self.session.events.after(after):
            whole = _until(event, self.sent_seq)
            if whole is not None:
                frames += encoder.take(whole)
        frames += encoder.flush()
        return b"".join(sent.data for sent in frames)

    async def _run(self) -> None:
        async for event in self._events:
            self._take(event)
            await asyncio.sleep(_MERGE_SECONDS)
            with contextlib.suppress(IndexError):
                while True:
                    self._take(self._events.take())
            self._flush()
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

    async def _follow(self) -> None:
        """Reports growth of a transcript while the session is not at work here: a terminal or another server has it."""
        session = self.session
        with contextlib.suppress(ClaudeCodeError):  # it has no transcript yet: then nobody else has it either
            async for _ in self._service.stored.follow(session.id, owner=session.owner):
                if not session.live and (session.runs_elsewhere or not session.busy):
                    self.ring.add(Frame(0, frame("grown", {"sessionId": session.id})))
                    self.ring.wake()


def _until(event: Event, seq: int) -> Event | None:
    """The part of an event that is not newer than a number; None if all of it is."""
    if event.seq <= seq:
        return event
    if isinstance(event, PartialRun) and event.first <= seq:
        kept = event.parts[: seq - event.first + 1]
        return PartialRun(first=event.first, kind=event.kind, parts=kept, seq=seq, at=event.at, size=event.size)
    return None


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
    """An observer of the service. Sessions and principals that nobody watches cost nothing here."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._sessions: dict[Session, SessionFeed] = {}
        self._lists: dict[str, ListFeed] = {}

    @property
    def watched(self) -> bool:
        return bool(self._lists)

    @contextlib.contextmanager
    def session(self, session: Session) -> Iterator[SessionFeed]:
        """The feed of a session, while it is watched."""
        feed = self._sessions.get(session)
        if feed is None:
            feed = self._sessions[session] = SessionFeed(self._service, session)
        try:
            yield feed
        finally:
            if not feed.ring.watched and self._sessions.pop(session, None) is not None:
                feed.close()

    @contextlib.contextmanager
    def list_of(self, principal: str) -> Iterator[ListFeed]:
        """The list of a principal, while it is watched."""
        feed = self._lists.get(principal)
        if feed is None:
            feed = self._lists[principal] = ListFeed(self._service, principal)
        try:
            yield feed
        finally:
            if not feed.ring.watched and self._lists.pop(principal, None) is not None:
                feed.close()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        feed = self._lists.get(owner)
        if feed is not None and isinstance(event, _LIST_EVENTS):
            feed.changed(session_id)

    def act(self, act: AuditEvent) -> None:
        feed = self._lists.get(act.who)
        if feed is not None and act.kind in _LIST_ACTS and act.session_id is not None:
            feed.changed(act.session_id)
