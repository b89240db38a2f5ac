"""Keeps the records of sessions up to date on disk, without ever blocking the event loop.

A session that has changed is marked; one task per session takes its record as it is *now* and writes that. So writes
of one session never overtake each other, and many changes in a row cost one write.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

from ..errors import ProcessFailed
from ..model.outcome import Outcome
from ..store.session_records import LONGEST_RESULT, SessionRecord, SessionRecords

log = logging.getLogger(__name__)

_LONGEST_PROMPT = 1000


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
        self._failures: dict[str, str] = {}
        """Why the last write of a session's record failed."""

    def changed(self, session: Recorded) -> None:
        """Has the record written soon."""
        self._changed[session.id] = session
        if session.id not in self._writing:
            self._writing[session.id] = self._start_task(self._write_changes(session.id))

    async def _write_changes(self, session_id: str) -> None:
        try:
            while (session := self._changed.pop(session_id, None)) is not None:
                await self._write(session)
        finally:
            del self._writing[session_id]

    async def _write(self, session: Recorded) -> None:
        session_id = session.id
        try:
            record = session.record()
            if record is not None:
                await asyncio.to_thread(self.records.write, record)
        except (OSError, ValueError, TypeError) as error:  # a disk that refuses, or something that is not JSON
            reason = error.strerror if isinstance(error, OSError) else None
            self._failures[session_id] = reason or type(error).__name__
            log.error("the record of session %s cannot be written: %s", session_id, self._failures[session_id])
        else:
            self._failures.pop(session_id, None)

    async def saved(self, session_id: str) -> bool:
        """Waits until no write is pending; returns whether the last one succeeded. Cancelling it changes nothing."""
        while (writing := self._writing.get(session_id)) is not None:
            await asyncio.wait([writing])
        return session_id not in self._failures

    async def save(self, session: Recorded) -> None:
        """Writes the record of a session and waits for it; ProcessFailed if that cannot be done."""
        self.changed(session)
        if not await self.saved(session.id):
            reason = self._failures.pop(session.id)
            raise ProcessFailed(
                f"What session {session.id} may do cannot be written down, so it is not run: {reason}",
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
        """Removes the record of a session that came to nothing. A failure is only logged."""
        await self.saved(session_id)
        self._failures.pop(session_id, None)
        try:
            await asyncio.to_thread(self.records.remove, session_id)
        except OSError as error:
            log.error("the record of session %s cannot be removed: %s", session_id, error)


def recordable_prompt(prompt: str | None) -> str | None:
    """The beginning of a session's first prompt, as a record keeps it."""
    return _encodable(prompt[:_LONGEST_PROMPT]) if prompt else None


def recordable_outcome(outcome: Outcome | None) -> tuple[Outcome | None, bool]:
    """An outcome as a record keeps it, and whether its result was cut: then the transcript has the rest."""
    if outcome is None:
        return None, False
    if outcome.structured_output is not None and _size(outcome.structured_output) > LONGEST_RESULT:
        outcome = replace(outcome, structured_output=None)
    if outcome.permission_denials and _size(outcome.permission_denials) > LONGEST_RESULT:
        outcome = replace(outcome, permission_denials=())
    cut = len(outcome.result) > LONGEST_RESULT
    result = _encodable(outcome.result[:LONGEST_RESULT])
    return replace(outcome, result=result, detail=_encodable(outcome.detail)), cut


def _encodable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))
