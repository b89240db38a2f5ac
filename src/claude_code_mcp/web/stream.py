"""The event stream of one watcher: the list of their sessions and, of the one that they watch, every event.

A watcher that reads slowly is never waited for: it gets a gap and goes on. One that reads nothing at all is let go, and
one whose sign-in has ended too.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..errors import ClaudeCodeError, LimitReached
from ..service import Service
from .answers import ANSWER_HEADERS, text_of
from .event_frames import frame
from .feeds import Feeds, ListFeed, SessionFeed, session_in_memory
from .guard import Guard, WebCaller
from .rings import Ring, RingPlace

_HEARTBEAT = 15.0
_LONGEST_WRITE = 60.0
"""Seconds that a watcher may take to read what is on its way to it."""
_MOST_STREAMS = 500
"""Of one principal."""


class Streams:
    """The event streams of a server."""

    def __init__(self, service: Service, guard: Guard, feeds: Feeds, heartbeat: float = _HEARTBEAT) -> None:
        self._service = service
        self._guard = guard
        self._feeds = feeds
        self._heartbeat = heartbeat
        self._open: dict[str, set[_Watcher]] = {}
        self._closed = False

    @property
    def watched(self) -> bool:
        return any(self._open.values())

    async def open(self, request: Request, caller: WebCaller) -> Response:
        """The answer to a request for a stream."""
        session_id = text_of(request, "session")
        if session_id is not None:
            session_id = (await self._service.find(session_id, owner=caller.principal)).id
        after = request.headers.get("last-event-id") or text_of(request, "after")
        if len(self._open.get(caller.principal, ())) >= _MOST_STREAMS:
            raise LimitReached("Too many pages are open at once.")
        return _StreamResponse(self._frames(caller, session_id, after))

    async def _frames(self, caller: WebCaller, session_id: str | None, after: str | None) -> AsyncIterator[bytes]:
        mine = self._open.setdefault(caller.principal, set())
        with _Watcher(self._service, self._feeds, caller.principal, session_id) as watcher:
            mine.add(watcher)
            try:
                yield watcher.begin(after)
                async for data in self._until_over(caller, watcher):
                    yield data
            finally:
                mine.discard(watcher)

    async def _until_over(self, caller: WebCaller, watcher: "_Watcher") -> AsyncIterator[bytes]:
        while not self._closed:
            data = watcher.read()
            if data:
                yield data
                continue
            with anyio.move_on_after(self._heartbeat):
                await watcher.wake.wait()
                if not watcher.to_check:
                    continue
            watcher.to_check = False
            try:
                signed_in = await self._guard.still_signed_in(caller)
            except ClaudeCodeError:
                return  # that cannot be said just now: the next request is told why
            yield b": ping\n\n" if signed_in else frame("signed-out", {})
            if not signed_in:
                return

    def check_sign_ins(self, principal: str) -> None:
        """Has every stream of a principal look whether its sign-in still stands, now."""
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
    """What one stream is made of: the list, the transcript of the watched session and, while that is in memory, its
    events. Nothing is awaited between the end of one and the beginning of another."""

    def __init__(self, service: Service, feeds: Feeds, principal: str, session_id: str | None) -> None:
        super().__init__()
        self.wake = asyncio.Event()
        self.to_check = False
        """Whether the sign-in is to be looked at."""
        self._service = service
        self._feeds = feeds
        self._principal = principal
        self._session_id = session_id
        self._places: list[RingPlace] = []
        self._listing: ListFeed | None = None
        self._feed: SessionFeed | None = None
        self._events: RingPlace | None = None
        self._attached = self.enter_context(contextlib.ExitStack())
        """The part that belongs to the session in memory."""

    def begin(self, after: str | None) -> bytes:
        """Takes its places, and returns what comes before what will be read there."""
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
        """Watches the session in memory, if there is one that is not watched yet."""
        if self._session_id is None or (self._feed is not None and not self._feed.gone):
            return False
        session = session_in_memory(self._service, self._principal, self._session_id)
        if session is None or (self._feed is not None and session is self._feed.session):
            return False
        self._attached.close()
        self._feed = self._attached.enter_context(self._feeds.session(session))
        self._events = self._feed.ring.join(self.wake)
        self._attached.callback(self._events.leave)
        self._events.reached(self._feed.sent_seq)
        return True

    def read(self) -> bytes:
        """What is new; empty if nothing is."""
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
    """What a watcher has missed since the event with this id."""
    events = feed.session.events
    if after is None:
        return b""
    try:
        position = events.position(after)
    except ValueError:
        position = None
    if position is None:  # of a log that is no more
        cursor = events.cursor(feed.sent_seq)
        return frame("reset", {"cursor": cursor}, cursor)
    return feed.backlog(position)


class _StreamResponse(Response):
    """Writes until the stream or the watcher ends. A watcher that does not read for too long is let go."""

    def __init__(self, frames: AsyncIterator[bytes]) -> None:
        headers = {**ANSWER_HEADERS, "X-Accel-Buffering": "no"}
        super().__init__(None, 200, headers, "text/event-stream")
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with anyio.create_task_group() as tasks:

            async def until_gone() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(until_gone)
            try:
                await self._write(send)
            finally:
                with anyio.CancelScope(shield=True):
                    await self._frames.aclose()  # type: ignore[attr-defined]  # it is a generator
            tasks.cancel_scope.cancel()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._frames:
            with anyio.move_on_after(_LONGEST_WRITE) as limit:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            if limit.cancelled_caught:
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})
