"""Keeps the records of sessions up to date on disk, without ever holding up the event loop.

A session that has changed is marked; one task at a time takes what it is like *now* and writes that down. So writes
of one session never overtake each other, and many changes in a row cost one write.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ..errors import ProcessFailed
from ..store.session_records import SessionRecord, SessionRecords

log = logging.getLogger(__name__)


class Recorded(Protocol):
    """A session, as far as its record goes."""

    id: str

    def record(self) -> SessionRecord | None:
        """What it is like now, under the next revision; None for one that leaves no trace."""


class RecordWriter:
    """Writes records in the background; `saved` waits for them."""

    def __init__(
        self, records: SessionRecords, start_task: "Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]"
    ) -> None:
        self.records = records
        self._start_task = start_task
        self._changed: dict[str, Recorded] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, str] = {}

    def changed(self, session: Recorded) -> None:
        """Something happened that must be on disk soon."""
        self._changed[session.id] = session
        if session.id not in self._writing:
            self._writing[session.id] = self._start_task(self._write(session.id))

    async def _write(self, session_id: str) -> None:
        try:
            while (session := self._changed.pop(session_id, None)) is not None:
                await self._put(session)
        finally:
            del self._writing[session_id]

    async def _put(self, session: Recorded) -> None:
        session_id = session.id
        try:
            record = session.record()
            if record is not None:
                await asyncio.to_thread(self.records.write, record)
        except (OSError, ValueError, TypeError) as error:  # a disk that refuses, or something that is not JSON
            why = error.strerror if isinstance(error, OSError) else None
            self._failed[session_id] = why or type(error).__name__
            log.error("the record of session %s cannot be written: %s", session_id, self._failed[session_id])
        else:
            self._failed.pop(session_id, None)

    async def saved(self, session_id: str) -> bool:
        """Waits until all of the session is on disk; tells whether it is. Cancelling the wait changes nothing."""
        while (writing := self._writing.get(session_id)) is not None:
            await asyncio.wait([writing])
        return session_id not in self._failed

    async def save(self, session: Recorded) -> None:
        """Writes the record of a session and waits for it; ProcessFailed if that cannot be done."""
        self.changed(session)
        if not await self.saved(session.id):
            why = self._failed.pop(session.id)
            raise ProcessFailed(
                f"What session {session.id} may do cannot be written down, so it is not run: {why}",
                session_id=session.id,
            )

    async def put_back(self, session_id: str, record: SessionRecord | None) -> None:
        """Undoes what was written for a session that was refused: the record of before, or none."""
        await self.remove(session_id)
        if record is not None:
            try:
                await asyncio.to_thread(self.records.write, record)
            except OSError as error:
                log.error("the record of session %s cannot be put back: %s", session_id, error)

    async def remove(self, session_id: str) -> None:
        """Forgets a session that came to nothing."""
        await self.saved(session_id)
        self._failed.pop(session_id, None)
        try:
            await asyncio.to_thread(self.records.remove, session_id)
        except OSError as error:
            log.error("the record of session %s cannot be removed: %s", session_id, error)
