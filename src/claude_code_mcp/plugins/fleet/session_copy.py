"""The copy of each session in the fleet's stores, kept up to date while its turns run.

For each session, one task at a time appends the entries that its process reports (`TranscriptStore`) and writes its
record (`RecordStore`), in the order in which they arrive. Only the end of a turn waits for this task, for a limited
time.

The queue is bounded. The files on this machine's disk have everything that a process reports, sometimes a moment later.
A full queue is therefore discarded, and the files are compared with the store instead: entries that the store lacks are
appended in their order. The same happens when a process has ended, because it may not have reported its last lines.
While NATS is unavailable, only the files keep the entries, in their order; when it is back, missing entries are
appended.

A command of a session can write its own frames. It can thereby put entries into the copy of its own session, at most
`MAX_REPORTED` bytes for each process: from then on only the files are read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ...core.claude.protocol import Other
from ...core.errors import ClaudeCodeError, SessionBusy
from ...core.model.events import AuditEvent, Event, QuestionOpened, QuestionSettled
from ...core.sessions.background_tasks import BackgroundTasks
from ...core.state.session_marks import Mark, Marks
from ...core.state.session_records import SessionRecord
from ...core.transcripts.transcripts import Transcripts
from .leases import HeldByOtherMachine, Holding, Ownership
from .records import RecordStore, UnansweredQuestion
from .transcript_mirror import LocalFiles, local_files, mirrored_entries
from .transcripts import FleetUnavailable, LostSession, TranscriptStore

log = logging.getLogger(__name__)

Raw = dict[str, Any]

MAX_QUEUED: Final = 8 << 20
"""Bytes of a session's entries that wait in memory."""
MAX_REPORTED: Final = 64 << 20
"""Bytes of a process's entries that are accepted from its frames."""
_BATCH_ENTRIES = 500
_LATEST = 2000
"""How many entries at the end of a file are compared with the queue."""
_MAX_HOLD = 10.0
"""Seconds for which the end of a turn waits for the copy."""
_CANCEL_SECONDS = 1.0
"""Seconds for which `close` waits for cancelled copies."""
_MAX_READINGS, _UNTIL_WRITTEN = 10, 0.1
"""How often files are read for reported entries, and the seconds between."""
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds between attempts while NATS does not answer; the last value repeats."""


@dataclass(slots=True, eq=False)
class _Reported:
    """Entries that wait to be appended."""

    path: str
    entries: list[Raw]
    size: int


@dataclass(slots=True, eq=False)
class _Copy:
    """What a session's copy still lacks."""

    files: LocalFiles | None = None
    live: bool = False
    """Whether a process writes the session."""
    queue: deque[_Reported] = field(default_factory=deque)
    queued: int = 0
    reported: int = 0
    """Bytes that the current process has reported."""
    compare: bool = False
    """Whether the files must be compared with the store."""
    awaited: dict[str, str] = field(default_factory=dict)
    """The last uuid in each file of discarded entries: the files must contain it when they are compared."""
    record: SessionRecord | None = None
    """The newest record."""
    changed: bool = False
    """Whether the document must be written because the record or something else in it changed."""
    worker: asyncio.Task[None] | None = None
    waiting: bool = False
    """Whether the last attempt failed and the next one waits."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when nothing is missing, or when NATS did not answer: in that case the files have the missing data."""
    lost: bool = False

    @property
    def complete(self) -> bool:
        return not (self.queue or self.compare or self.changed)


class FleetReplica:
    """The `SessionReplica` of a machine in a fleet."""

    def __init__(
        self,
        transcripts: TranscriptStore,
        records: RecordStore,
        holding_of: Callable[[str], Holding | None],
        lost: Callable[[str], None],
        claim: Callable[[str, str], Awaitable[object]] | None = None,
        note_staying: Callable[[str, str], Awaitable[object]] | None = None,
    ) -> None:
        """`holding_of` returns the holding with which this machine writes a session; sessions without one are not
        copied. `lost` is called once when another machine turns out to have taken a session. `claim` takes an owner's
        session for this machine before it gets a message, or raises; `note_staying` does the same for a pinned
        session."""
        self._transcripts = transcripts
        self._records = records
        self.holding_of = holding_of
        """The holding with which this machine writes a session; None for one that it does not hold."""
        self._lost = lost
        self._claim = claim
        self._note_staying = note_staying
        self._copies: dict[str, _Copy] = {}
        self._elsewhere: set[str] = set()
        self._questions: dict[str, dict[str, UnansweredQuestion]] = {}
        records.questions = lambda session_id: list(self._questions.get(session_id, {}).values())
        self._tasks = BackgroundTasks()

    # -- reports of sessions ------------------------------------------------------------------------------------------

    async def admit(self, session_id: str, owner: str, *, stays: bool = False) -> None:
        if stays:
            # A pinned session has no holding and is not copied.
            if self._note_staying is not None:
                await self._note_staying(session_id, owner)
            return
        if self._claim is None:
            return
        before = self.holding_of(session_id)
        await self._claim(session_id, owner)
        self._elsewhere.discard(session_id)
        if before is None:
            # Entries that were reported without a holding were not stored.
            self.catch_up(session_id)

    def check_held(self, session_id: str) -> None:
        if self._claim is not None and self.holding_of(session_id) is None:
            raise SessionBusy(
                f"Session {session_id} was just moved away from this machine. Send the message again.",
                session_id=session_id,
            )

    def process_started(self, session_id: str, transcripts: Transcripts, cwd: str) -> None:
        copy = self._copies.setdefault(session_id, _Copy())
        copy.files, copy.reported, copy.live = partial(local_files, transcripts, session_id, cwd), 0, True
        # Its files may have lines that no process reported, from before a restart or from a person's terminal.
        copy.compare = True
        self._work(session_id, copy)

    def mirror_received(self, session_id: str, frame: Other) -> None:
        mirrored = mirrored_entries(frame, session_id)
        if mirrored is None:
            return
        copy = self._copies.setdefault(session_id, _Copy())
        path, entries = mirrored
        if not entries or copy.lost:
            return
        copy.reported += frame.size
        if copy.reported > MAX_REPORTED or copy.queued + frame.size > MAX_QUEUED:
            self._compare_instead(copy, _Reported(path, entries, frame.size))
        else:
            copy.queue.append(_Reported(path, entries, frame.size))
            copy.queued += frame.size
        self._work(session_id, copy)

    def process_gone(self, session_id: str) -> None:
        if (copy := self._copies.get(session_id)) is not None:
            copy.live = False
        self.catch_up(session_id)

    def record_written(self, record: SessionRecord) -> None:
        if record.options.stay_on_machine:
            return
        copy = self._copies.setdefault(record.session_id, _Copy())
        # Only the newest record counts: each one has all of the session.
        copy.record, copy.changed = record, True
        self._work(record.session_id, copy)

    def event(self, session_id: str, _owner: str, event: Event) -> None:
        """As an observer of the service: open questions are part of the document."""
        match event:
            case QuestionOpened():
                title = f"{event.question.kind.value.replace('_', ' ')} ({event.question.tool_name})"
                opened = UnansweredQuestion(id=event.question.id, title=title)
                self._questions.setdefault(session_id, {})[opened.id] = opened
            case QuestionSettled():
                self._questions.get(session_id, {}).pop(event.question.id, None)
            case _:
                return
        self.document_changed(session_id)

    def document_changed(self, session_id: str) -> None:
        """Something in the document other than the record changed: open questions, or the saved tree."""
        copy = self._copies.get(session_id)
        if copy is not None and copy.record is not None:
            copy.changed = True
            self._work(session_id, copy)

    def act(self, act: AuditEvent) -> None:
        """As an observer of the service: the audit trail is not copied here."""

    def elsewhere(self) -> Collection[str]:
        return self._elsewhere

    def note_elsewhere(self, session_ids: Iterable[str]) -> None:
        """Another machine holds these sessions, and this one has files of them."""
        self._elsewhere.update(session_ids)

    def behind(self, session_id: str) -> bool:
        copy = self._copies.get(session_id)
        return copy is not None and not copy.lost and not copy.complete

    async def caught_up(self, session_id: str) -> None:
        copy = self._copies.get(session_id)
        if copy is None or copy.complete or copy.lost:
            return
        try:
            async with asyncio.timeout(_MAX_HOLD):
                await copy.looked.wait()
        except TimeoutError:
            log.warning("the copy of session %s is behind; the missing entries are still in its files", session_id)

    async def remove(self, session_id: str, owner: str) -> None:
        if self._claim is not None:
            await self._claim(session_id, owner)  # only the holder may remove it
        try:
            async with asyncio.timeout(_MAX_HOLD):
                await self.complete(session_id)  # a pending write would recreate the copy
        except TimeoutError:
            raise FleetUnavailable("The fleet does not respond; nothing was deleted.") from None
        # The record first: without it no machine can take the session over, even if the rest fails.
        await self._records.remove(session_id)
        await self._transcripts.delete(session_id)
        self.forget(session_id)

    # -- for moving sessions ------------------------------------------------------------------------------------------

    def catch_up(self, session_id: str, files: LocalFiles | None = None) -> None:
        """Schedules a comparison of a session's files with the store, as after a start of this machine. `files` reads
        them if no process of this server has written the session."""
        copy = self._copies.setdefault(session_id, _Copy())
        copy.files = files or copy.files
        copy.compare = copy.files is not None
        self._work(session_id, copy)

    async def complete(self, session_id: str) -> None:
        """Waits until the copy is complete, without a limit. Raises LostSession if the session was lost."""
        while (copy := self._copies.get(session_id)) is not None and copy.worker is not None:
            await asyncio.wait([copy.worker])
        if copy is not None and copy.lost:
            raise LostSession(f"Session {session_id} is held by another machine.", session_id=session_id)

    def forget(self, session_id: str) -> None:
        """The session is no longer this machine's: removes its data from memory."""
        copy = self._copies.pop(session_id, None)
        self._questions.pop(session_id, None)
        if copy is not None and copy.worker is not None:
            copy.worker.cancel()
        self._transcripts.forget(session_id)

    async def close(self, timeout: float, unless: "asyncio.Future[None] | None" = None) -> None:
        """Waits up to `timeout` seconds for unfinished copies, or until `unless` is done. The next start finds the rest
        in the files."""
        workers = [copy.worker for copy in self._copies.values() if copy.worker is not None]
        if workers:
            copied = asyncio.ensure_future(asyncio.wait(workers))
            ends: list[asyncio.Future[Any]] = [copied] if unless is None else [copied, unless]
            await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            copied.cancel()
        await self._tasks.close(_CANCEL_SECONDS)

    # -- the work -----------------------------------------------------------------------------------------------------

    def _compare_instead(self, copy: _Copy, newest: _Reported) -> None:
        for reported in (*copy.queue, newest):
            ids = [entry["uuid"] for entry in reported.entries if isinstance(entry.get("uuid"), str)]
            if ids:
                copy.awaited[reported.path] = ids[-1]
        copy.queue.clear()
        copy.queued = 0
        copy.compare = copy.files is not None

    def _work(self, session_id: str, copy: _Copy) -> None:
        if copy.worker is None and not copy.lost and not copy.complete:
            copy.looked.clear()
            copy.worker = self._tasks.start(self._write(session_id, copy))

    async def _write(self, session_id: str, copy: _Copy) -> None:
        failures = 0
        try:
            while not copy.complete:
                holding = self.holding_of(session_id)
                if holding is None:
                    copy.queue.clear()
                    copy.queued, copy.compare, copy.changed = 0, False, False
                    return
                try:
                    await self._step(session_id, copy, holding)
                    failures = 0
                except LostSession:
                    copy.lost = True
                    copy.queue.clear()
                    copy.queued = 0
                    self._lost(session_id)
                    return
                except FleetUnavailable as error:
                    log.warning("session %s: %s", session_id, error.message)
                    # From here on the end of a turn need not wait: the missing data is in the files.
                    copy.looked.set()
                    await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
                    failures += 1
                except (ClaudeCodeError, OSError) as error:
                    # Retrying does not help: for example, a record is too large or a database cannot be read. The step
                    # has removed itself from the queue, and the next change triggers another attempt.
                    log.error("the copy of session %s is not complete: %s", session_id, error)
        finally:
            copy.worker = None
            copy.looked.set()
            if copy.complete and not copy.live:
                # The ids of all entries of a long conversation take megabytes; the next process reads them again.
                self._transcripts.forget(session_id)

    async def _step(self, session_id: str, copy: _Copy, holding: Holding) -> None:
        if copy.compare:
            await self._append_missing(session_id, copy, holding)
        elif copy.queue:
            first, *more = copy.queue
            batch = [first]
            for reported in more:
                if reported.path != first.path or sum(len(each.entries) for each in batch) >= _BATCH_ENTRIES:
                    break
                batch.append(reported)
            entries = [entry for reported in batch for entry in reported.entries]
            await self._transcripts.append(session_id, entries, holding=holding, path=first.path)
            # Removed only now, so that a failure leaves them in their place, and only if they are still there: the
            # queue may have been discarded meanwhile.
            for reported in batch:
                if copy.queue and copy.queue[0] is reported:
                    copy.queue.popleft()
                    copy.queued -= reported.size
        elif copy.changed and copy.record is not None:
            # Before the write: a change during the write triggers another write.
            copy.changed = False
            try:
                await self._records.put(copy.record, holding)
            except FleetUnavailable:
                copy.changed = True
                raise

    async def _append_missing(self, session_id: str, copy: _Copy, holding: Holding) -> None:
        """Appends the entries that the files have and the store lacks."""
        files = copy.files
        assert files is not None
        # Before the files are read: entries reported from here on may not be in them yet.
        copy.compare = False
        try:
            found = await self._read_files(files, copy)
            missing = await self._transcripts.missing(session_id, found, holding=holding)
            for path, entries in missing.items():
                for at in range(0, len(entries), _BATCH_ENTRIES):
                    batch = entries[at : at + _BATCH_ENTRIES]
                    await self._transcripts.append(session_id, batch, holding=holding, path=path)
        except FleetUnavailable:
            copy.compare = True
            raise
        except ClaudeCodeError as error:
            if isinstance(error, LostSession):
                raise
            # The transcript cannot be read now: reported entries are still copied, and the end of the next process
            # triggers another comparison.
            log.error("session %s: %s", session_id, error.message)
            return
        # The store has everything that was in the files, including entries reported during the read. Appending these
        # again would duplicate entries without a uuid.
        latest = {path: entries[-_LATEST:] for path, entries in found.items()}
        while copy.queue and all(entry in latest.get(copy.queue[0].path, ()) for entry in copy.queue[0].entries):
            copy.queued -= copy.queue.popleft().size

    async def _read_files(self, files: LocalFiles, copy: _Copy) -> dict[str, list[Raw]]:
        """The files, including entries that are about to be written. Claude Code may report an entry shortly before it
        is on disk; an entry forged by a command of the session never appears."""
        for attempt in range(_MAX_READINGS):
            if attempt:
                await asyncio.sleep(_UNTIL_WRITTEN)
            awaited = dict(copy.awaited)
            found = await asyncio.to_thread(lambda: {path: list(entries) for path, entries in files()})
            # From the end: recently reported entries are among the last.
            if all(
                any(entry.get("uuid") == entry_id for entry in reversed(found.get(path, ())))
                for path, entry_id in awaited.items()
            ):
                break
        for path, entry_id in awaited.items():
            if copy.awaited.get(path) == entry_id:
                del copy.awaited[path]
        return found


# -- deleted by other processes ----------------------------------------------------------------------------------------


class OrphanedCopies:
    """The fleet's copies of sessions that a command, or a server outside of the fleet, deleted on this machine's disk:
    each is marked (`Mark.ORPHANED_COPY`) from before its files are deleted until its copy is gone. Also the copies of
    sessions whose title, tag or marks changed (`Mark.RENAMED`)."""

    def __init__(
        self,
        marks: Marks,
        records: RecordStore,
        transcripts: TranscriptStore,
        ownership: Ownership,
        machine_id: str,
        record_of: Callable[[str], SessionRecord | None],
    ) -> None:
        """`record_of`, which blocks, reads a session's record on this disk; None if it has none."""
        self._marks = marks
        self._records = records
        self._transcripts = transcripts
        self._ownership = ownership
        self._machine_id = machine_id
        self._record_of = record_of

    async def check_held_here(self, session_id: str) -> None:
        """Raises HeldByOtherMachine if another machine continues the session, or if it has yet to arrive here: the
        files on this disk are an old copy. Raises LeaseLapsed if the fleet does not answer."""
        found = await self._ownership.read(session_id)
        if found is not None and (found.machine != self._machine_id or found.arriving):
            raise HeldByOtherMachine(found)

    async def left(self) -> frozenset[str]:
        """The sessions whose copies must still be removed. Raises OSError."""
        return (await asyncio.to_thread(self._marks.read)).orphaned_copy

    async def was_deleted(self, session_id: str) -> bool:
        """Whether the session is gone from this disk; a deletion may have been interrupted after the mark."""
        return await asyncio.to_thread(self._record_of, session_id) is None

    async def remove(self, session_id: str) -> bool:
        """Removes one copy, and then the mark; returns whether there was one. Copies of sessions that another machine
        holds, or that this disk still has, stay. Raises LeaseLapsed or FleetUnavailable if the fleet does not answer,
        OSError for the disk: the mark stays, and it may be called again."""
        removed = False
        try:
            found = await self._ownership.read(session_id)
            # Without a holder this machine must not remove the copy: the last holder has given the session away.
            if found is not None and await self.was_deleted(session_id):
                # The record first: without it no machine can take the session over, even if the rest fails.
                await self._records.remove(session_id, partial(self.check_held_here, session_id))
                await self._transcripts.delete(session_id)
                # Last, because only the holder may do this. Gateways may have read the record already; they check again
                # when a session's holder has changed.
                await self._ownership.release(found)
                removed = True
                log.info("session %s was deleted on this machine's disk, and is no longer in the fleet", session_id)
        except HeldByOtherMachine as taken:
            log.info("an old copy of a session was deleted here. %s", taken.message)
        await asyncio.to_thread(self._marks.set, session_id, Mark.ORPHANED_COPY, False)
        return removed

    async def renamed(self) -> frozenset[str]:
        """The sessions whose copies must still be renamed. Raises OSError."""
        return (await asyncio.to_thread(self._marks.read)).renamed

    async def rename(self, session_id: str) -> None:
        """Updates the names in one copy, and then removes the mark. Does nothing if another machine, or none yet, holds
        the session. Raises the errors of `remove`."""
        record = await asyncio.to_thread(self._record_of, session_id)
        called = None
        with suppress(HeldByOtherMachine):
            if record is not None and await self._ownership.read(session_id) is not None:
                called = await self._records.put_names(record, partial(self.check_held_here, session_id))
        await asyncio.to_thread(self._marks.set, session_id, Mark.RENAMED, False)
        # The names may have changed between the two steps, and the new mark would be removed here.
        if called is not None and record is not None and await self._records.names_of(record) != called:
            await asyncio.to_thread(self._marks.set, session_id, Mark.RENAMED, True)
