"""Keeps session records in the database up to date without ever blocking the event loop.

A session that has changed is marked; one task per session takes its record as it is *now* and writes that. So writes of
one session never overtake each other, and many changes in a row cost one write. A caller that waits for `saved` is safe
from a server that is killed. A sync to the disk follows a moment after the session has come to rest, or when the
service closes: it may take longer than a short turn, and Claude Code, which writes to the same disk, would wait too.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ...errors import ProcessFailed
from ...state.session_records import SessionRecord, SessionRecords
from ..background_tasks import StartTask

if TYPE_CHECKING:
    from ..session import Session

log = logging.getLogger(__name__)

_DURABLE_DELAY = 1.0
"""Seconds after a turn in which the next one may begin, and is not to be slowed down."""


class RecordWriter:
    """Writes records in the background; `saved` waits for them."""

    def __init__(
        self,
        records: SessionRecords,
        start_task: StartTask,
        written: Callable[[SessionRecord], None] | None = None,
    ) -> None:
        """`written` is called with every record that is in the database, in their order."""
        self.records = records
        self._start_task = start_task
        self._written = written
        self._changed: dict[str, Session] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._unwritten: dict[str, asyncio.Event] = {}
        """Set when the changes of a session up to now are written, though not durable yet."""
        self._not_durable: dict[str, int] = {}
        """The number of the last write of each session that no sync has followed yet."""
        self._saving: set[str] = set()
        """Sessions whose next write is to be durable at once."""
        self._writes = itertools.count(1)
        self._durable_soon: set[str] = set()
        self._beside: dict[str, set[asyncio.Task[None]]] = {}
        """What else of a session is being written."""
        self._failures: dict[str, str] = {}
        """Why the last write of a session's record failed."""

    def changed(self, session: "Session") -> None:
        """Has the record written soon."""
        self._changed[session.id] = session
        self._unwritten.setdefault(session.id, asyncio.Event())
        if session.id not in self._writing:
            self._writing[session.id] = self._start_task(self._write_changes(session.id))

    def saved_with(self, session_id: str, task: "asyncio.Task[None]") -> None:
        """From now on `saved` waits for this task too, however it ends."""
        tasks = self._beside.setdefault(session_id, set())
        tasks.add(task)

        def done(ended: "asyncio.Task[None]") -> None:
            tasks.discard(ended)
            if not tasks and self._beside.get(session_id) is tasks:
                del self._beside[session_id]

        task.add_done_callback(done)

    async def _write_changes(self, session_id: str) -> None:
        try:
            while session_id in self._changed:
                at_rest = False
                # Taken out before it is written: a change during the write marks the session again.
                while (session := self._changed.pop(session_id, None)) is not None:
                    durable = session_id in self._saving
                    self._saving.discard(session_id)
                    at_rest = await self._write(session, durable=durable)
                # Nothing is awaited since the last look, so that this is the event of all changes up to now.
                self._unwritten.pop(session_id).set()
                if at_rest and session_id not in self._durable_soon:
                    self._durable_soon.add(session_id)
                    self._start_task(self._make_durable_soon(session_id), endless=True)
        finally:
            # Also if it was cancelled: those who wait must not wait for ever.
            del self._writing[session_id]
            if (unwritten := self._unwritten.pop(session_id, None)) is not None:
                unwritten.set()

    async def _write(self, session: "Session", *, durable: bool) -> bool:
        """Returns whether there is a new record, which says that no turn is running."""
        try:
            record = session.record()
        except (ValueError, TypeError) as error:  # something that is not JSON
            self._failed(session.id, error)
            return False
        if record is None:
            return False
        if not await self._try(session.id, partial(self.records.write, record, durable=durable)):
            return False
        if durable:
            self._not_durable.pop(session.id, None)
        else:
            self._not_durable[session.id] = next(self._writes)
        if self._written is not None:
            self._written(record)
        return record.running_since is None

    async def _make_durable_soon(self, session_id: str) -> None:
        try:
            await asyncio.sleep(_DURABLE_DELAY)
        finally:  # also when the service closes
            # Before the sync: a record that is written while it runs needs another one.
            self._durable_soon.discard(session_id)
            await self._make_durable(session_id)

    async def _make_durable(self, session_id: str) -> None:
        written = self._not_durable.get(session_id)
        if written is None or not await self._try(session_id, self.records.make_durable):
            return
        # A record that was written while this was synced needs a sync of its own.
        if self._not_durable.get(session_id) == written:
            del self._not_durable[session_id]

    async def _try(self, session_id: str, step: Callable[[], None]) -> bool:
        try:
            await asyncio.to_thread(step)
        except (OSError, ValueError, TypeError) as error:  # a disk that refuses, or something that is not JSON
            self._failed(session_id, error)
            return False
        self._failures.pop(session_id, None)
        return True

    def _failed(self, session_id: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self._failures[session_id] = reason or type(error).__name__
        log.error("the record of session %s cannot be written: %s", session_id, self._failures[session_id])

    def failure(self, session_id: str) -> str | None:
        """What to tell people if the last write of a session's record failed; None if it did not."""
        reason = self._failures.get(session_id)
        return f"This cannot be recorded ({reason}), so it would be lost in a restart." if reason else None

    async def saved(self, session_id: str) -> bool:
        """Waits until all changes up to now are written; returns whether the last write succeeded. Cancelling it
        changes nothing."""
        if (unwritten := self._unwritten.get(session_id)) is not None:
            await unwritten.wait()
        if (beside := self._beside.get(session_id)) is not None:
            await asyncio.wait([*beside])
        return session_id not in self._failures

    async def save(self, session: "Session") -> None:
        """Writes the record of a session and waits until it is durable; ProcessFailed if that cannot be done."""
        self._saving.add(session.id)
        self.changed(session)
        await self._settled(session.id)
        if session.id not in self._failures:
            await self._make_durable(session.id)  # if another change was written behind this one
        if session.id in self._failures:
            reason = self._failures.pop(session.id)
            raise ProcessFailed(
                f"The record of session {session.id} cannot be written, so a restart would undo this: {reason}",
                session_id=session.id,
            )

    async def _settled(self, session_id: str) -> None:
        while (writing := self._writing.get(session_id)) is not None:
            await asyncio.wait([writing])

    async def restore(self, session_id: str, record: SessionRecord | None) -> None:
        """Undoes what was written for a session that was refused: the record of before, or none."""
        # Removed, not overwritten: what was written for the attempt
        # has a later revision, behind which no older one counts.
        await self.remove(session_id)
        if record is not None:
            try:
                await asyncio.to_thread(self.records.write, record)
            except OSError as error:
                log.error("the record of session %s cannot be restored: %s", session_id, error)

    async def remove(self, session_id: str) -> None:
        """Removes the record of a session that came to nothing. A failure is only logged."""
        # A write that is under way would bring it back.
        await self._settled(session_id)
        self._failures.pop(session_id, None)
        self._not_durable.pop(session_id, None)
        try:
            await asyncio.to_thread(self.records.remove, session_id)
        except OSError as error:
            log.error("the record of session %s cannot be removed: %s", session_id, error)
