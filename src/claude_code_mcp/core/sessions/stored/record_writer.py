"""Writes session records to the database without blocking the event loop.  A changed session is marked, and one task
per session writes its current record. So the writes of a session keep their order, and many changes in a row cost one
write. After `saved`, the changes survive a kill of the server. The sync to the disk follows a moment after the last
turn has ended, or when the service closes: it may take longer than a short turn, and Claude Code, which writes to the
same disk, would have to wait.
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
"""Seconds between the end of a turn and the sync, so that a turn that begins at once is not slowed down."""


class RecordWriter:
    """Writes records in the background; `saved` waits for them."""

    def __init__(
        self,
        records: SessionRecords,
        start_task: StartTask,
        written: Callable[[SessionRecord], None] | None = None,
    ) -> None:
        """`written` is called with every record after it was written, in order."""
        self.records = records
        self._start_task = start_task
        self._written = written
        self._changed: dict[str, Session] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._unwritten: dict[str, asyncio.Event] = {}
        """Set when the changes of a session up to now are written, although not synced yet."""
        self._not_durable: dict[str, int] = {}
        """By session id, the number of its last write if that is not synced yet."""
        self._saving: set[str] = set()
        """Ids of sessions whose next write must be synced at once."""
        self._writes = itertools.count(1)
        self._durable_soon: set[str] = set()
        self._other_writes: dict[str, set[asyncio.Task[None]]] = {}
        """By session id, the tasks of `also_await`."""
        self._failures: dict[str, str] = {}
        """Why the last write of a session's record failed."""

    def changed(self, session: "Session") -> None:
        """Write the record soon, in the background."""
        self._changed[session.id] = session
        self._unwritten.setdefault(session.id, asyncio.Event())
        if session.id not in self._writing:
            self._writing[session.id] = self._start_task(self._write_changes(session.id))

    def also_await(self, session_id: str, task: "asyncio.Task[None]") -> None:
        """Make `saved` wait for this task too, whether or not it succeeds."""
        tasks = self._other_writes.setdefault(session_id, set())
        tasks.add(task)

        def done(ended: "asyncio.Task[None]") -> None:
            tasks.discard(ended)
            if not tasks and self._other_writes.get(session_id) is tasks:
                del self._other_writes[session_id]

        task.add_done_callback(done)

    async def _write_changes(self, session_id: str) -> None:
        try:
            while session_id in self._changed:
                at_rest = False
                # Removed before the write: a change during the write marks the session again.
                while (session := self._changed.pop(session_id, None)) is not None:
                    durable = session_id in self._saving
                    self._saving.discard(session_id)
                    at_rest = await self._write(session, durable=durable)
                # No await since the loop ended: this event stands for all changes up to now.
                self._unwritten.pop(session_id).set()
                if at_rest and session_id not in self._durable_soon:
                    self._durable_soon.add(session_id)
                    self._start_task(self._make_durable_soon(session_id), endless=True)
        finally:
            # Also after a cancellation: the callers of `saved` must not wait forever.
            del self._writing[session_id]
            if (unwritten := self._unwritten.pop(session_id, None)) is not None:
                unwritten.set()

    async def _write(self, session: "Session", *, durable: bool) -> bool:
        """Write the record; return whether it was written and says that no turn is running."""
        try:
            record = session.record()
        except (ValueError, TypeError) as error:  # not representable as JSON
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
            # Before the sync: a record that is written during it needs another one.
            self._durable_soon.discard(session_id)
            await self._make_durable(session_id)

    async def _make_durable(self, session_id: str) -> None:
        written = self._not_durable.get(session_id)
        if written is None or not await self._try(session_id, self.records.make_durable):
            return
        # A record that was written during the sync needs another one.
        if self._not_durable.get(session_id) == written:
            del self._not_durable[session_id]

    async def _try(self, session_id: str, step: Callable[[], None]) -> bool:
        try:
            await asyncio.to_thread(step)
        except (OSError, ValueError, TypeError) as error:  # disk failure, or not representable as JSON
            self._failed(session_id, error)
            return False
        self._failures.pop(session_id, None)
        return True

    def _failed(self, session_id: str, error: Exception) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self._failures[session_id] = reason or type(error).__name__
        log.error("the record of session %s cannot be written: %s", session_id, self._failures[session_id])

    def failure(self, session_id: str) -> str | None:
        """The message for users if the last write of a session's record failed; None if it succeeded."""
        reason = self._failures.get(session_id)
        return f"This could not be saved ({reason}) and will be lost if the server restarts." if reason else None

    async def saved(self, session_id: str) -> bool:
        """Wait until all changes up to now are written; return whether the last write succeeded. Cancelling the wait
        changes nothing."""
        if (unwritten := self._unwritten.get(session_id)) is not None:
            await unwritten.wait()
        if (others := self._other_writes.get(session_id)) is not None:
            await asyncio.wait([*others])
        return session_id not in self._failures

    async def save(self, session: "Session") -> None:
        """Write the record of a session and wait until it is synced; ProcessFailed if that fails."""
        self._saving.add(session.id)
        self.changed(session)
        await self._settled(session.id)
        if session.id not in self._failures:
            await self._make_durable(session.id)  # in case a later change was written without a sync
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
        """Undo the writes for a message that was refused: restore the earlier record, or remove it if there was
        none."""
        # Removed, not overwritten: the refused attempt has a later revision, and a record with an older one is ignored.
        await self.remove(session_id)
        if record is not None:
            try:
                await asyncio.to_thread(self.records.write, record)
            except OSError as error:
                log.error("the record of session %s cannot be restored: %s", session_id, error)

    async def remove(self, session_id: str) -> None:
        """Remove the record of a session that never started. A failure is only logged."""
        # A pending write would bring it back.
        await self._settled(session_id)
        self._failures.pop(session_id, None)
        self._not_durable.pop(session_id, None)
        try:
            await asyncio.to_thread(self.records.remove, session_id)
        except OSError as error:
            log.error("the record of session %s cannot be removed: %s", session_id, error)
