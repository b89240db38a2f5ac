"""The conversations of a fleet's sessions, in the stream `FLEET_TRANSCRIPTS`: one subject for each session.

Appends are batches: each contains entries of one file of the conversation, the main transcript (path "") or a
subagent's transcript (`subagents/agent-…`). A batch that exceeds the maximum message size is split; its parts follow
each other in the stream, and a batch whose writer died before the last part counts as not written. All files of a
session share its subject, its order and its fence.

**The fence.** Each message is published with the sequence that its writer expects to be the last of the subject, so
NATS refuses a writer that has not seen the latest message. A writer begins with a message that has only its epoch. From
then on NATS refuses every writer of an earlier epoch; when that writer reads the subject, it finds the newer epoch
(`LostSession`).

**No duplicates.** An entry whose uuid the file has is skipped, however long ago it was written: a writer first reads
the stream, so NATS's window for duplicates does not matter. If the acknowledgment of a batch is lost, the writer looks
for the batch by its id before it appends anything else.
"""

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.errors import ClaudeCodeError, SessionBusy
from . import names
from .connection import FleetConnection
from .leases import Holding
from .nats_client import (
    AckPolicy,
    APIError,
    ConsumerConfig,
    DeliverPolicy,
    NatsError,
    NotFoundError,
    cancellation_passes,
)

Entry = Mapping[str, Any]

PART_BYTES: Final = 512 << 10
"""Maximum size of a batch in one message. NATS's default limit is 1 MiB."""
_FETCHED_AT_ONCE = 16
_FETCH_SECONDS = 10.0
_MAX_ATTEMPTS = 20
_STALE = (10071, 10164)
"""JetStream's error if the expected sequence is not the last one."""
_EPOCH, _BATCH, _PART, _EXPECTED = "Fleet-Epoch", "Fleet-Batch", "Fleet-Part", "Nats-Expected-Last-Subject-Sequence"


class LostSession(SessionBusy):
    """Another machine, or a later epoch, now writes the session: this writer must stop and never append again."""


class FleetUnavailable(ClaudeCodeError):
    """NATS did not answer. It is unknown whether the request was carried out; repeating it is safe."""


@dataclass(frozen=True, slots=True)
class _Message:
    """One message on a session's subject."""

    sequence: int
    epoch: int
    batch: str
    part: int
    parts: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of one file that were appended together. `deleted`: all earlier entries of the file are removed."""

    id: str
    path: str
    entries: list[dict[str, Any]]
    deleted: bool = False


class _Assembly:
    """Assembles batches from the messages of a subject, in order."""

    def __init__(self) -> None:
        self._parts: list[_Message] = []

    def add(self, message: _Message) -> Batch | None:
        """The batch that this message completes."""
        expected = len(self._parts)
        if message.part != expected or (expected and self._parts[0].batch != message.batch):
            # The previous writer died within a batch, or its fence came in between: that batch will be appended again
            # completely.
            self._parts = []
        if message.part != len(self._parts) or not message.parts:
            return None
        self._parts.append(message)
        if len(self._parts) < message.parts:
            return None
        body, self._parts = b"".join(part.data for part in self._parts), []
        content = json.loads(body)
        return Batch(message.batch, content["path"], content["entries"], bool(content.get("deleted")))


@dataclass(slots=True)
class _Writer:
    """A process's state of a subject that it appends to."""

    epoch: int
    sequence: int = 0
    """The sequence of the subject's last message."""
    seen: set[tuple[str, str]] = field(default_factory=set)
    """Path and uuid of every entry."""
    unsure: set[str] = field(default_factory=set)
    """Batches that may or may not have arrived, or may still be in flight."""
    arrived: set[str] = field(default_factory=set)
    """Those of them that were found, until they are requested again."""
    lost: bool = False

    def note(self, batch: Batch) -> None:
        if batch.deleted:
            self.seen = {(path, entry) for path, entry in self.seen if path != batch.path}
        self.seen.update((batch.path, each) for entry in batch.entries if (each := _uuid_of(entry)) is not None)

    def fresh(self, path: str, entries: Sequence[Entry]) -> list[Entry]:
        """The entries without those that the file has and without duplicates."""
        seen: set[str] = set()
        fresh: list[Entry] = []
        for entry in entries:
            entry_id = _uuid_of(entry)
            if entry_id is None or ((path, entry_id) not in self.seen and entry_id not in seen):
                fresh.append(entry)
            if entry_id is not None:
                seen.add(entry_id)
        return fresh


class TranscriptStore:
    """Appends to and reads the conversations. One object per process; methods may run concurrently."""

    def __init__(self, connection: FleetConnection) -> None:
        self._js = connection.jetstream
        self._writers: dict[str, _Writer] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    # -- writing --------------------------------------------------------------------------------------------------

    async def append(self, session_id: str, entries: Sequence[Entry], *, holding: Holding, path: str = "") -> None:
        """Appends entries to a file of the conversation, in order, skipping those whose uuid it has. The first append
        of a holding shuts out all writers of earlier epochs. Raises LostSession if a later one writes; FleetUnavailable
        if NATS does not answer: then the same call may be repeated, and nothing is duplicated."""
        if entries:
            await self._append(session_id, holding.epoch, path, entries)

    async def fence(self, session_id: str, holding: Holding) -> None:
        """Shuts out all writers of earlier epochs without appending. Raises the errors of `append`."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            with answering():
                await self._writer(session_id, holding.epoch)

    async def clear(self, session_id: str, path: str, *, holding: Holding) -> None:
        """Marks all entries of a file so far as removed. Raises the errors of `append`."""
        await self._append(session_id, holding.epoch, path, (), deleted=True)

    async def delete(self, session_id: str) -> None:
        """Permanently removes the conversation with all of its files."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            with answering():
                await self._js.purge_stream(names.TRANSCRIPTS, subject=names.transcript(session_id))
            self._writers.pop(session_id, None)

    def forget(self, session_id: str) -> None:
        """Frees the memory of a session that is no longer written to."""
        if (lock := self._locks.get(session_id)) is not None and not lock.locked():
            del self._locks[session_id]
            self._writers.pop(session_id, None)

    async def missing(
        self, session_id: str, files: Mapping[str, Sequence[Entry]], *, holding: Holding
    ) -> dict[str, list[Entry]]:
        """The entries of a conversation's files that the store lacks, by path, in order. Entries without a uuid are
        counted: of equal ones, as many are missing as the file has more. Raises the errors of `append`."""
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            with answering():
                await self._writer(session_id, holding.epoch)
                stored = await self.load_all(session_id)
        return {path: _lacking(stored.get(path, ()), entries) for path, entries in files.items()}

    async def _append(
        self, session_id: str, epoch: int, path: str, entries: Sequence[Entry], *, deleted: bool = False
    ) -> None:
        batch_id = _batch_id(path, entries, deleted=deleted)
        # One at a time: each message refers to its predecessor.
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            with answering():
                for _ in range(_MAX_ATTEMPTS):
                    writer = await self._writer(session_id, epoch)
                    if batch_id in writer.arrived:
                        writer.arrived.discard(batch_id)
                        return
                    fresh = writer.fresh(path, entries)
                    if not fresh and not deleted:
                        return
                    batch = Batch(batch_id, path, [dict(entry) for entry in fresh], deleted)
                    if await self._publish(session_id, writer, batch):
                        return
        raise FleetUnavailable(
            f"The conversation of session {session_id} keeps changing; nothing was appended. Try again."
        )

    async def _publish(self, session_id: str, writer: _Writer, batch: Batch) -> bool:
        """False if something else was appended first, which must be read."""
        body = json.dumps({"path": batch.path, "entries": batch.entries, "deleted": batch.deleted}).encode()
        parts = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
        # Before the first message is sent, so that a caller cancelled during the send also leaves this entry.
        writer.unsure.add(batch.id)
        for number, part in enumerate(parts):
            headers = {_BATCH: batch.id, _PART: f"{number}/{len(parts)}"}
            if not await self._publish_message(session_id, writer, part, headers):
                return False
        # From now on messages still in flight are refused, because they expect an earlier message to be the last one.
        writer.unsure.clear()
        writer.note(batch)
        return True

    async def _publish_message(self, session_id: str, writer: _Writer, data: bytes, headers: dict[str, str]) -> bool:
        headers = {**headers, _EPOCH: str(writer.epoch), _EXPECTED: str(writer.sequence)}
        try:
            reply = await self._js.publish(
                names.transcript(session_id), data, headers=headers, stream=names.TRANSCRIPTS
            )
        except APIError as error:
            if error.err_code not in _STALE:
                raise
            writer.unsure.add(headers[_BATCH])  # an earlier attempt may have delivered it
            return False
        writer.sequence = reply.seq
        return True

    async def _writer(self, session_id: str, epoch: int) -> _Writer:
        """The state of the subject, completed if there may be unknown messages."""
        writer = self._writers.get(session_id)
        if writer is None or writer.epoch != epoch:
            writer = await self._begin(session_id, epoch)
            self._writers[session_id] = writer
        elif writer.unsure and not writer.lost:
            await self._read_newer(session_id, writer)
        if writer.lost:
            raise _lost(session_id)
        return writer

    async def _begin(self, session_id: str, epoch: int) -> _Writer:
        """Reads the subject and writes the epoch into it, unless it is there."""
        for _ in range(_MAX_ATTEMPTS):
            writer, assembly, newest = _Writer(epoch), _Assembly(), -1
            async with contextlib.aclosing(self._messages(session_id)) as messages:
                async for message in messages:
                    writer.sequence, newest = message.sequence, max(newest, message.epoch)
                    if (batch := assembly.add(message)) is not None:
                        writer.note(batch)
            if newest > epoch:
                raise _lost(session_id)
            headers = {_BATCH: uuid.uuid4().hex, _PART: "0/0"}
            if newest == epoch or await self._publish_message(session_id, writer, b"", headers):
                writer.unsure.clear()
                return writer
        raise FleetUnavailable(
            f"The conversation of session {session_id} keeps changing and was not taken over; try again."
        )

    async def _read_newer(self, session_id: str, writer: _Writer) -> None:
        """Reads messages after the last one that this writer knows: its own, or another writer's."""
        assembly = _Assembly()
        async with contextlib.aclosing(self._messages(session_id, writer.sequence)) as messages:
            async for message in messages:
                if message.epoch != writer.epoch or (message.parts and message.batch not in writer.unsure):
                    writer.lost = True
                    return
                writer.sequence = message.sequence
                if (batch := assembly.add(message)) is not None:
                    writer.note(batch)
                    writer.arrived.add(batch.id)
        # Messages that have not arrived will be refused if they still arrive, because the next message takes their
        # place.
        writer.unsure -= writer.arrived

    # -- reading --------------------------------------------------------------------------------------------------

    async def load(self, session_id: str, path: str = "") -> list[dict[str, Any]] | None:
        """The entries of one file of the conversation, in order; None if nothing was ever appended to it."""
        return (await self.load_all(session_id)).get(path)

    async def load_all(self, session_id: str) -> dict[str, list[dict[str, Any]]]:
        """The entries of all files of the conversation by path. Raises FleetUnavailable if NATS does not answer."""
        files: dict[str, list[dict[str, Any]]] = {}
        assembly = _Assembly()
        with answering():
            async with contextlib.aclosing(self._messages(session_id)) as messages:
                async for message in messages:
                    if (batch := assembly.add(message)) is None:
                        continue
                    if batch.deleted:
                        files.pop(batch.path, None)
                    if batch.entries:
                        files.setdefault(batch.path, []).extend(batch.entries)
        return files

    async def _messages(self, session_id: str, after: int = 0) -> AsyncGenerator[_Message, None]:
        """The messages of the subject after a sequence, up to the current last one. Close the iterator: it has a
        consumer."""
        subject = names.transcript(session_id)
        try:
            last = (await self._js.get_last_msg(names.TRANSCRIPTS, subject)).seq or 0
        except NotFoundError:
            return
        if last <= after:
            return
        config = ConsumerConfig(
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.NONE,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=60.0,
        )
        reader = await self._js.pull_subscribe(subject, stream=names.TRANSCRIPTS, config=config)
        try:
            sequence = after
            while sequence < last:
                with cancellation_passes():
                    fetched = await reader.fetch(_FETCHED_AT_ONCE, timeout=_FETCH_SECONDS)
                if not fetched:
                    raise TimeoutError  # the last one was removed meanwhile and will never arrive
                for message in fetched:
                    sequence = message.metadata.sequence.stream
                    headers = message.headers or {}
                    part, _, parts = headers.get(_PART, "0/0").partition("/")
                    yield _Message(
                        sequence, int(headers.get(_EPOCH, 0)), headers.get(_BATCH, ""), int(part), int(parts),
                        message.data,
                    )  # fmt: skip
        finally:
            # Without this the server deletes it only after its inactivity threshold, and thousands could accumulate.
            with contextlib.suppress(NatsError):
                info = await reader.consumer_info()
                await reader.unsubscribe()
                await self._js.delete_consumer(names.TRANSCRIPTS, info.name)


@contextlib.contextmanager
def answering() -> Any:
    """Context in which NATS errors become FleetUnavailable."""
    try:
        yield
    except (NatsError, TimeoutError, ConnectionError) as error:
        raise FleetUnavailable(f"NATS does not respond ({type(error).__name__}). Try again.") from error


def _lost(session_id: str) -> LostSession:
    return LostSession(f"Session {session_id} is written by another machine now.", session_id=session_id)


def _uuid_of(entry: Entry) -> str | None:
    entry_id = entry.get("uuid")
    return entry_id if isinstance(entry_id, str) and entry_id else None


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _lacking(stored: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    seen = {_uuid_of(entry) for entry in stored}
    left = Counter(_text(entry) for entry in stored if _uuid_of(entry) is None)
    lacking: list[Entry] = []
    for entry in entries:
        entry_id = _uuid_of(entry)
        if entry_id is None:
            text = _text(entry)
            known = left[text] > 0
            left[text] -= 1
        else:
            known = entry_id in seen
        if not known:
            lacking.append(entry)
    return lacking


def _batch_id(path: str, entries: Sequence[Entry], *, deleted: bool) -> str:
    """Equal for a repeated call with the same entries."""
    named = _text([path, [dict(entry) for entry in entries], deleted])
    return hashlib.sha256(named.encode("utf-8", "surrogatepass")).hexdigest()[:32]
