"""All sessions of a server: new ones, known ones, those found on disk, and those that have had their time."""

import asyncio
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ..config import Settings
from ..errors import Cancelled, InvalidArgument, SessionNotFound
from ..model.options import SessionOptions
from ..model.turn import OutcomeCode
from ..store.transcripts import is_session_id, read_lines
from .origin import Origin
from .session import Session
from .surroundings import Surroundings

log = logging.getLogger(__name__)


def own_directory() -> str:
    """Where this server works; InvalidArgument if that directory is gone."""
    try:
        return os.getcwd()
    except OSError:
        raise InvalidArgument(
            "cwd: the directory that this server was started in no longer exists. Name another one, or start the "
            "server elsewhere.",
            field="cwd",
        ) from None


def default_directory(settings: Settings) -> str:
    """Where sessions work that name no directory."""
    named = settings.default_cwd
    if named is not None and os.path.isabs(named):
        return os.path.abspath(named)
    return os.path.abspath(os.path.join(own_directory(), named or ""))


class Sessions:
    """Finds and makes sessions, and lets go of them."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._known: dict[str, Session] = {}
        self._senders: Counter[str] = Counter()
        self._closed = False

    def all(self) -> list[Session]:
        """Those in memory that have taken a message, most recently used first."""
        begun = (session for session in self._known.values() if session.turns)
        return sorted(begun, key=lambda session: session.used_at, reverse=True)

    def known(self, session_id: str) -> Session | None:
        return self._known.get(session_id)

    def create(self, options: SessionOptions, owner: str) -> Session:
        """A new session with an id of our choosing."""
        cwd = options.cwd or default_directory(self._around.settings)
        if not os.path.isabs(cwd):
            cwd = os.path.abspath(os.path.join(own_directory(), cwd))
        self._check_servers(options.hub_servers or ())
        return self._new(str(uuid.uuid4()), options, cwd, owner)

    def _check_servers(self, wanted: Iterable[str]) -> None:
        there = self._around.host.servers if self._around.host is not None else ()
        for name in wanted:
            if name not in there:
                raise InvalidArgument(f"hub_servers: the hub has no server {name!r}.", field="hub_servers")

    def _new(self, session_id: str, options: SessionOptions, cwd: str, owner: str, **more: Any) -> Session:
        """The one way to a session: past the gate, which may refuse it, or tighten what was asked for."""
        admitted = self._around.gate.admit(options, cwd, owner)
        return Session(session_id, admitted, admitted.cwd or cwd, owner, self._around, **more)

    @contextmanager
    def keeping(self, session: Session) -> Iterator[Session]:
        """Keeps a session in memory while it is given a message, and from then on if it took one.

        Of two that are the same session, found on disk at the same moment, the first is kept and given to both.
        """
        if self._closed:
            raise Cancelled("The server is stopping.", session_id=session.id)
        kept = self._known.setdefault(session.id, session)
        if kept.owner != session.owner:
            raise SessionNotFound(f"There is no session {session.id}.", session_id=session.id)
        self._senders[kept.id] += 1
        try:
            yield kept
        finally:
            self._senders[kept.id] -= 1
            if not self._senders[kept.id]:
                del self._senders[kept.id]
                if not kept.turns:
                    del self._known[kept.id]

    async def find(self, session_id: str, owner: str, options: SessionOptions | None = None) -> Session:
        """The session in memory, or one on disk that can be resumed; `options` are for the latter."""
        known = self._known.get(session_id)
        if known is not None:
            return known
        if not is_session_id(session_id):
            raise InvalidArgument(f"{session_id!r} is not a session id.", field="session_id")
        transcript = await asyncio.to_thread(self._around.transcripts.read, session_id)
        if transcript is None:
            raise SessionNotFound(f"There is no session {session_id}.", session_id=session_id)
        options = options or SessionOptions()
        cwd = options.cwd or transcript.cwd or own_directory()
        return self._new(session_id, options, cwd, owner, usage=transcript.usage)

    async def check_message(self, session_id: str, message_id: str | None) -> None:
        """InvalidArgument if the session's transcript has no such message; None is always fine."""
        if message_id is not None and not await asyncio.to_thread(self._holds, session_id, message_id):
            raise InvalidArgument(f"Session {session_id} has no message {message_id!r}.", field="at_message")

    def _holds(self, session_id: str, message_id: str) -> bool:
        path = self._around.transcripts.path_of(session_id)
        return path is not None and any(line.get("uuid") == message_id for line in read_lines(path))

    async def fork(
        self,
        source: Session,
        owner: str,
        *,
        at_message: str | None = None,
        options: SessionOptions | None = None,
    ) -> Session:
        """A new session that starts from the transcript of another, which stays as it is."""
        resumable = await asyncio.to_thread(self._around.transcripts.resumable, source.id, source.cwd)
        if not resumable:
            raise SessionNotFound(f"Session {source.id} has no transcript to fork from yet.", session_id=source.id)
        origin = Origin(source.id, at_message)
        options = options or source.options
        cwd = options.cwd or source.cwd
        return self._new(str(uuid.uuid4()), options, cwd, owner, origin=origin)

    async def clean_up_regularly(self) -> None:
        """Parks idle processes, ends stuck turns and forgets sessions that nobody used for long. Never returns."""
        settings = self._around.settings
        while True:
            await asyncio.sleep(min(settings.cleanup_interval, settings.idle_park))
            for session in list(self._known.values()):
                self._clean_up(session)

    def _clean_up(self, session: Session) -> None:
        settings, around = self._around.settings, self._around
        if session.busy:
            if (session.turn_seconds or 0) > settings.running_session_max:
                log.warning("session %s runs for too long and is ended", session.id)
                around.start_task(session.interrupt(OutcomeCode.TIMEOUT))
        elif session.idle_seconds > settings.session_ttl and not self._senders[session.id]:
            self._forget(session)
        elif session.evictable and session.idle_seconds > settings.idle_park:
            session.evict()

    def _forget(self, session: Session) -> None:
        """A session whose process is still being closed stays known: whoever resumes it must wait for that."""
        session.evict()
        if session.dormant:
            del self._known[session.id]
            session.log.close()

    async def close(self) -> None:
        """Ends every process and waits for that; no message is taken any more."""
        self._closed = True
        sessions = list(self._known.values())
        for session in sessions:
            session.release()
        await asyncio.gather(*(session.closed() for session in sessions))
        for session in sessions:
            session.log.close()
