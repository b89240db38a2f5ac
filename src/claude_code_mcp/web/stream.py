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

from ..errors import LimitReached
from ..service import Service
from ..sessions.session import Session
from .answers import ANSWER_HEADERS, text_of
from .event_frames import frame
from .feeds import Feeds, ListFeed, SessionFeed
from .guard import Guard, WebCaller
from .rings import RingPlace

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
        session = None
        if session_id is not None:
            session = await self._service.find(session_id, owner=caller.principal)
        after = request.headers.get("last-event-id") or text_of(request, "after")
        if len(self._open.get(caller.principal, ())) >= _MOST_STREAMS:
            raise LimitReached("Too many pages are open at once.")
        return _StreamResponse(self._frames(caller, session, after))

    async def _frames(self, caller: WebCaller, session: Session | None, after: str | None) -> AsyncIterator[bytes]:
        watcher = _Watcher()
        mine = self._open.setdefault(caller.principal, set())
        mine.add(watcher)
        try:
            with contextlib.ExitStack() as stack:
                listing = stack.enter_context(self._feeds.list_of(caller.principal))
                feed = stack.enter_context(self._feeds.session(session)) if session is not None else None
                stack.callback(watcher.leave)
                yield watcher.begin(listing, feed, after)
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
                await watcher.wait()
                if not watcher.to_check:
                    continue
            watcher.to_check = False
            if not await self._guard.still_signed_in(caller):
                yield frame("signed-out", {})
                return
            yield b": ping\n\n"

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


class _Watcher:
    """The places of one stream."""

    def __init__(self) -> None:
        self.wake = asyncio.Event()
        self.to_check = False
        """Whether the sign-in is to be looked at."""
        self._listing: RingPlace | None = None
        self._events: RingPlace | None = None
        self._feed: SessionFeed | None = None

    def begin(self, listing: ListFeed, feed: SessionFeed | None, after: str | None) -> bytes:
        """Takes the places at the ends of both, and returns what comes before: nothing may be awaited in between."""
        self._listing = listing.ring.join(self.wake)
        before = b"retry: 2000\n\n" + listing.rows()
        if feed is None:
            return before
        self._feed = feed
        self._events = feed.ring.join(self.wake)
        self._events.reached(feed.sent_seq)
        return before + _missed(feed, after)

    def leave(self) -> None:
        for place in (self._listing, self._events):
            if place is not None:
                place.leave()

    async def wait(self) -> None:
        await self.wake.wait()

    def read(self) -> bytes:
        """What is new; empty if nothing is."""
        self.wake.clear()
        data = b""
        if self._listing is not None:
            changed, lost = self._listing.read()
            data += changed if lost is None else b"event: list-gap\ndata: {}\n\n" + changed
        if self._events is not None and self._feed is not None:
            happened, gap = self._events.read()
            if gap is not None:
                cursor = self._feed.session.events.cursor(gap[1])
                data += frame("gap", {"first": gap[0], "last": gap[1]}, cursor)
            data += happened
        return data


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
