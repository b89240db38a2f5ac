"""All sessions of a server: new ones, known ones, those found on disk, and those that have had their time."""

import asyncio
import logging
import os
import uuid

from ..errors import InvalidArgument, SessionNotFound
from ..model.options import SessionOptions
from ..model.turn import OutcomeCode
from ..store.transcripts import is_session_id
from .session import Origin, Session, Surroundings

log = logging.getLogger(__name__)


class Sessions:
    """Finds and makes sessions, and lets go of them."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._known: dict[str, Session] = {}

    def all(self) -> list[Session]:
        """Those in memory, most recently used first."""
        return sorted(self._known.values(), key=lambda session: session.used_at, reverse=True)

    def known(self, session_id: str) -> Session | None:
        return self._known.get(session_id)

    async def create(self, options: SessionOptions, owner: str) -> Session:
        """A new session with an id of our choosing. Refused before anything happens if it cannot start."""
        cwd = os.path.abspath(options.cwd or os.getcwd())  # noqa: ASYNC240 - reads no disk
        return Session(str(uuid.uuid4()), options, cwd, owner, self._around)

    def keep(self, session: Session) -> None:
        """Remembers a session whose first message was accepted."""
        self._known[session.id] = session

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
        cwd = options.cwd or transcript.cwd or os.getcwd()
        found = Session(session_id, options, cwd, owner, self._around, usage=transcript.usage)
        return self._known.setdefault(session_id, found)

    async def fork(
        self,
        source: Session,
        owner: str,
        *,
        at_message: str | None = None,
        options: SessionOptions | None = None,
    ) -> Session:
        """A new session that starts from the transcript of another, which stays as it is."""
        resumable = await asyncio.to_thread(self._around.transcripts.resumable, source.id)
        if not resumable:
            raise SessionNotFound(f"Session {source.id} has no transcript to fork from yet.", session_id=source.id)
        origin = Origin(source.id, at_message)
        return Session(
            str(uuid.uuid4()), options or source.options, source.cwd, owner, self._around, origin=origin
        )

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
        elif session.idle_seconds > settings.session_ttl:
            self._forget(session)
        elif session.evictable and session.idle_seconds > settings.idle_park:
            session.evict()

    def _forget(self, session: Session) -> None:
        self._known.pop(session.id, None)
        session.release()
        session.log.close()

    async def close(self) -> None:
        """Ends every process and waits for that."""
        sessions = list(self._known.values())
        for session in sessions:
            session.release()
        await asyncio.gather(*(session.closed() for session in sessions))
        for session in sessions:
            session.log.close()
