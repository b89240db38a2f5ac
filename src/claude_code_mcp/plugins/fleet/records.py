"""The data of a session that another machine needs, except its conversation and its tree: the bucket `fleet_records`.

A document has the session's record as it is on the holder's disk, the keys of its messages, its spending by day, its
open questions and the location of its tree. It is replaced by compare-and-swap and carries the holder's epoch, so that
an earlier holder can neither overwrite it nor continue unnoticed.

**Machines of other versions.** A reader ignores an unknown field and uses the default for a missing one, so fields may
be added. Increase `VERSION` for a field that must not be ignored because the session would have more permissions
without it: a document of another version is refused, and the refusal names the version of the machine that wrote it. An
unknown option of a session is refused in any case, unless it is not set: most options are restrictions.

The document never contains secrets in plain text: variables and MCP servers of a session (`env`, `mcp_servers`, agents
with servers) are omitted from the record, named in `left_out`, and sealed separately (`KeptSecrets` of `keeper.py`).
"""

import asyncio
import dataclasses
import json
import math
import zlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from ... import __version__
from ...core.errors import InvalidArgument, SessionNotFound, UpstreamUnavailable
from ...core.model.options import SessionOptions
from ...core.model.outcome import Outcome, OutcomeCode
from ...core.model.states import State
from ...core.model.text import clip_line
from ...core.state.database import Database
from ...core.state.session_records import SessionRecord
from . import names
from .connection import FleetConnection
from .keeper import KeptSecrets
from .leases import WRONG_SEQUENCE, Holding
from .nats_client import BadRequestError, KeyNotFoundError, KeyValue, KeyWrongLastSequenceError, NotFoundError
from .transcripts import FleetUnavailable, LostSession, answering

if TYPE_CHECKING:
    import sqlite3

VERSION: Final = 1
_MAX_RESULT = 64 << 10
_MAX_BYTES = 16 << 20
_MAX_ATTEMPTS = 10
_SECRET_OPTIONS = ("env", "mcp_servers")
_MAX_VERSION = 50
_MAX_NAMED = 200
_MAX_KNOWN = 20_000
_READ_AT_ONCE = 16
_MAX_TITLE = 300
_MAX_DIRECTORY = 4096


class UnansweredQuestion(BaseModel):
    """A question that was open when the document was written."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    title: str


class GivenNames(BaseModel):
    """A session's title, tag and marks."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    title: str = ""
    tag: str = ""
    pinned: bool = False
    archived: bool = False


class SessionDocument(BaseModel):
    """One session, as its last holder wrote it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: int = VERSION
    written_by: str = ""
    """The version of claude-code-mcp that wrote it; empty if unknown."""
    epoch: int
    record: SessionRecord
    left_out: tuple[str, ...] = ()
    """The options that contain secrets and are not in the record."""
    sealed: str = ""
    """These options, sealed for the keeper."""
    keys: tuple[tuple[str, str, str, str, str, str, int, float], ...] = ()
    """Keys of messages: principal, session, key, message, digest, target, whether accepted, time."""
    spending: tuple[tuple[str, str, float], ...] = ()
    """Day, principal and dollars."""
    questions: tuple[UnansweredQuestion, ...] = ()
    names: GivenNames | None = None
    """None if the writing version did not support them."""
    tree: Mapping[str, Any] | None = None
    """A `TreeRef`: the last saved tree."""
    tree_flaw: str | None = None
    """Why the tree could not be saved after that."""
    tree_behind: bool = False
    """Whether a turn began after the tree was saved: it may have changed files."""


class RecordStore:
    """The fleet's documents, as one machine reads and writes them."""

    def __init__(self, connection: FleetConnection, database: Database, secrets: KeptSecrets) -> None:
        """`database` is this machine's, with keys and spending."""
        self._connection = connection
        self._database = database
        self._secrets = secrets
        self.questions: Callable[[str], Sequence[UnansweredQuestion]] = lambda _: ()
        """Returns the open questions of a session."""
        self.trees: dict[str, Mapping[str, Any]] = {}
        """The last saved tree of each session of this machine; part of its document at the next write."""
        self.tree_flaws: dict[str, str] = {}
        """Why the tree of a session could not be saved after that."""
        self.trees_behind: set[str] = set()
        """Sessions with a turn that began after their tree was saved."""
        self.names_of: Callable[[SessionRecord], Awaitable[GivenNames]] = _no_names
        """Returns a session's title, tag and marks on this machine's disk."""
        self._bucket: KeyValue | None = None

    async def put(self, record: SessionRecord, holding: Holding) -> None:
        """Writes the current document of a session. Raises LostSession if a later epoch has written it;
        FleetUnavailable if NATS does not answer: it may be called again."""
        safe, left_out = without_secrets(record)
        keys, spending = await asyncio.to_thread(
            self._database.read, lambda db: _keys_and_spending(db, record.session_id)
        )
        sealed = ""
        if left_out:
            secrets = record.options.model_dump(mode="json", include=set(left_out))
            try:
                sealed = await self._secrets.seal(record.session_id, secrets)
            except UpstreamUnavailable as problem:
                raise FleetUnavailable(problem.message) from problem
        document = SessionDocument(
            written_by=__version__,
            epoch=holding.epoch,
            record=safe,
            left_out=left_out,
            sealed=sealed,
            keys=keys,
            spending=spending,
            questions=tuple(self.questions(record.session_id)),
            tree=self.trees.get(record.session_id),
            tree_flaw=self.tree_flaws.get(record.session_id),
            tree_behind=record.session_id in self.trees_behind,
        )
        # A restarted server has saved no tree yet: keep the previous one.
        knows_tree = record.session_id in self.trees or record.session_id in self.tree_flaws
        await self._replace(record.session_id, document, keep_tree=not knows_tree)

    async def put_names(self, record: SessionRecord, check: Callable[[], Awaitable[None]]) -> GivenNames:
        """Writes only a session's title, tag and marks into its document, if there is one, and returns it. `check`
        raises if this machine does not hold the session. Raises FleetUnavailable if NATS does not answer."""
        session_id = record.session_id
        with answering():
            for _ in range(_MAX_ATTEMPTS):
                found, revision = await self._get(session_id)
                # Between the read and the write, as in `remove`: a machine that takes the session writes a new
                # document.
                await check()
                called = await self.names_of(record)
                if found is None or found.names == called:
                    return called
                value = zlib.compress(found.model_copy(update={"names": called}).model_dump_json().encode())
                with suppress(KeyWrongLastSequenceError):
                    await (await self._kv()).update(names.token(session_id), value, last=revision)
                    return called
        raise FleetUnavailable(f"The record of session {session_id} keeps changing and was not saved; try again.")

    async def read(self, session_id: str) -> SessionDocument:
        """Raises SessionNotFound if no machine has written one; InvalidArgument if it is from another version."""
        with answering():
            found, _ = await self._get(session_id)
        if found is None:
            raise SessionNotFound(f"The fleet has no record of session {session_id}.", session_id=session_id)
        return found

    async def remove(self, session_id: str, check: Callable[[], Awaitable[None]] | None = None) -> None:
        """Removes the document of a session that this machine holds, and then its trees. `check` raises if the machine
        does not hold it; a machine that takes the session after that check has all of it, or finds nothing to take.
        Raises FleetUnavailable if NATS does not answer."""
        with answering():
            tree = await self._remove_document(session_id, check)
            trees = await self._connection.jetstream.object_store(names.TREES)
            for pack in (tree or {}).get("packs", ()):
                # Only trees of this session, whatever the document says.
                if str(pack).startswith(f"{session_id}/"):
                    with suppress(NotFoundError):
                        await trees.delete(str(pack))

    async def _remove_document(
        self, session_id: str, check: Callable[[], Awaitable[None]] | None
    ) -> Mapping[str, Any] | None:
        """Removes the document as read before the check; returns the tree in it."""
        for _ in range(_MAX_ATTEMPTS):
            tree: Mapping[str, Any] | None = None
            try:
                entry = await (await self._kv()).get(names.token(session_id))
            except KeyNotFoundError:
                entry = None
            # Between the read and the removal: a machine that takes the session writes a new document. Either the check
            # finds that machine, or the removal finds another revision.
            if check is not None:
                await check()
            if entry is None:
                return None
            with suppress(InvalidArgument):  # removed even if it cannot be parsed
                tree = _decode(session_id, entry.value or b"").tree
            try:
                await (await self._kv()).delete(names.token(session_id), last=entry.revision)
            except BadRequestError as problem:
                if problem.err_code in WRONG_SEQUENCE:
                    continue
                raise
            return tree
        raise FleetUnavailable(f"The record of session {session_id} keeps changing and was not removed; try again.")

    async def whole_record(self, document: SessionDocument) -> SessionRecord:
        """The record including the omitted options, for the machine that holds the session. Raises InvalidArgument if
        they were not sealed for it, and the errors of `KeptSecrets.unseal`."""
        record = document.record
        if not document.left_out:
            return record
        secrets = await self._secrets.unseal(record.session_id, document.sealed)
        if not secrets.keys() >= {*document.left_out}:  # without them the session would have other options than before
            raise InvalidArgument(f"The fleet's record of session {record.session_id} lacks options that it refers to.")
        values = {name: secrets[name] for name in document.left_out}
        options = SessionOptions.model_validate({**record.options.model_dump(), **values})
        return record.model_copy(update={"options": options})

    async def take_over(self, session_id: str, holding: Holding) -> SessionDocument:
        """The document, which no earlier epoch can replace from now on. Raises the errors of `read` and `put`."""
        document = await self.read(session_id)
        if document.epoch > holding.epoch:
            raise _lost(session_id)
        if document.epoch < holding.epoch:
            document = document.model_copy(update={"epoch": holding.epoch, "written_by": __version__})
            await self._replace(session_id, document, over=True)
        return document

    async def _replace(
        self, session_id: str, document: SessionDocument, *, over: bool = False, keep_tree: bool = False
    ) -> None:
        with answering():
            for _ in range(_MAX_ATTEMPTS):
                found, revision = await self._get(session_id)
                if found is not None and found.epoch > document.epoch:
                    raise _lost(session_id)
                ours = found is not None and found.epoch == document.epoch and not over
                if ours and found is not None and found.record.revision > document.record.revision:
                    return  # a later write of this machine was faster
                # Only `put_names` changes the document, except for the first time.
                names_before = found.names if found is not None else None
                called = names_before or await self.names_of(document.record)
                document = document.model_copy(update={"names": called})
                if keep_tree and found is not None:
                    behind = document.tree_behind or found.tree_behind
                    kept = {"tree": found.tree, "tree_flaw": found.tree_flaw, "tree_behind": behind}
                    document = document.model_copy(update=kept)
                value = zlib.compress(document.model_dump_json().encode())
                if len(value) > self._connection.client.max_payload - 1024:
                    raise InvalidArgument(f"The record of session {session_id} is too large for the fleet.")
                try:
                    kv = await self._kv()
                    # With the revision that was read: if it was written since then, read it again.
                    await kv.update(names.token(session_id), value, last=revision)
                    return
                except KeyWrongLastSequenceError:
                    continue
        raise FleetUnavailable(f"The record of session {session_id} keeps changing and was not saved; try again.")

    async def _get(self, session_id: str) -> tuple[SessionDocument | None, int]:
        try:
            entry = await (await self._kv()).get(names.token(session_id))
        except KeyNotFoundError as error:
            deleted = getattr(error, "entry", None)
            return None, int(getattr(deleted, "revision", None) or 0)
        return _decode(session_id, entry.value or b""), int(entry.revision or 0)

    async def _kv(self) -> KeyValue:
        if self._bucket is None:
            self._bucket = await self._connection.jetstream.key_value(names.RECORDS)
        return self._bucket


@dataclasses.dataclass(frozen=True, slots=True)
class AbsentSession:
    """A session that no online machine holds, with the data of the fleet's copy for lists."""

    session_id: str
    machine: str
    """The id of its machine; empty if the last one released it, or the next one has yet to take it."""
    title: str = ""
    directory: str = ""
    created: float = 0.0
    last_used: float = 0.0
    state: State | None = None
    """The state in which it will continue: a running turn counts as interrupted. None if the copy cannot be read."""
    cost_usd: float = 0.0
    model: str | None = None
    was_active: bool = False
    """Whether a turn was running or a question was open."""
    tag: str = ""
    pinned: bool = False
    archived: bool = False
    continues_at: float | None = None
    """When its wait for a usage limit ends, if it continues automatically."""


class AbsentRecords:
    """The documents of sessions whose machines are offline, for gateways, which may read all of them."""

    def __init__(self, connection: FleetConnection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[int, AbsentSession]] = {}
        """Session → its holder's revision and its document: nothing writes that while its machine is offline and no
        other has claimed it."""
        self._alive: frozenset[str] = frozenset()
        """The machines that were online while `_known` was read."""

    async def read(self, holdings: Sequence[Holding], alive: Collection[str]) -> list[AbsentSession]:
        """The fleet's data about these sessions, which none of the machines `alive` has; nothing for deleted ones.
        Raises NATS errors."""
        if self._alive != frozenset(alive) or len(self._known) > _MAX_KNOWN:
            # A machine that came back may have written since.
            self._known, self._alive = {}, frozenset(alive)
        cache = self._known  # for this set of machines: a read that ends late must not fill the cache of the next set
        bucket = await self._connection.jetstream.key_value(names.RECORDS)
        room = asyncio.Semaphore(_READ_AT_ONCE)

        async def read(holding: Holding) -> AbsentSession | None:
            revision, known = cache.get(holding.session_id, (-1, None))
            if revision == holding.revision:
                return known
            async with room:
                try:
                    entry = await bucket.get(names.token(holding.session_id))
                except KeyNotFoundError:
                    return None
            # In a thread: an unpacked record may have several megabytes.
            found = await asyncio.to_thread(_absent_session, holding, entry.value or b"")
            cache[holding.session_id] = holding.revision, found
            return found

        return [found for found in await asyncio.gather(*map(read, holdings)) if found is not None]


def _absent_session(holding: Holding, value: bytes) -> AbsentSession:
    machine = "" if holding.arriving else holding.machine
    try:
        document = _decode(holding.session_id, value)
    except InvalidArgument as problem:
        # An unreadable document is not a missing one: it is listed with the data of the holders' bucket.
        return AbsentSession(holding.session_id, machine, title=problem.message)
    record, outcome, called = document.record, document.record.outcome, document.names or GivenNames()
    state = State.CANCELLED if record.cancelled else outcome.state if outcome is not None else State.IDLE
    if record.running_since is not None and not record.cancelled:
        state = Outcome(OutcomeCode.MACHINE_LOST).state
    wait = record.limit_wait
    return AbsentSession(
        holding.session_id,
        machine,
        title=clip_line(called.title or record.first_prompt or "", _MAX_TITLE),
        # Bounded whatever the machine wrote: many documents make one answer.
        directory=record.cwd[:_MAX_DIRECTORY],
        created=record.created_at,
        last_used=record.used_at,
        state=state,
        cost_usd=record.usage.cost_usd,
        model=clip_line(record.options.model, _MAX_TITLE) if record.options.model is not None else None,
        was_active=record.running_since is not None or bool(document.questions),
        tag=clip_line(called.tag, _MAX_TITLE),
        pinned=called.pinned,
        archived=called.archived,
        continues_at=wait.continues_at if wait is not None and wait.on and not record.cancelled else None,
    )


async def _no_names(_: SessionRecord) -> GivenNames:
    return GivenNames()


def _decode(session_id: str, value: bytes) -> SessionDocument:
    reader = zlib.decompressobj()
    writer = ""
    try:
        text = reader.decompress(value, _MAX_BYTES)
        raw = json.loads(text)
        if not isinstance(raw, dict) or not isinstance(raw.get("record"), dict):
            raise ValueError("damaged")
        writer = _writer_of(raw)
        if raw.get("version", VERSION) != VERSION:
            raise ValueError(f"in a different format, written by {writer}; this is {__version__}")
        document = SessionDocument.model_validate({**raw, "record": _known_fields(raw["record"], writer)})
        if document.record.session_id != session_id:
            raise ValueError("for another session")
    except (ValueError, RecursionError, zlib.error) as error:
        # Without the content, which is untrusted.
        reason = str(error) if type(error) is ValueError else "damaged"
        if isinstance(error, ValidationError) and writer:
            reason += f", or in a different format: it was written by {writer}"
        raise InvalidArgument(f"The fleet's record of session {session_id} cannot be used: it is {reason}.") from None
    return document


def _writer_of(raw: Mapping[str, Any]) -> str:
    written_by = raw.get("written_by")
    if not isinstance(written_by, str) or not written_by:
        return "another version of claude-code-mcp"
    return f"claude-code-mcp {written_by[:_MAX_VERSION]}"


def _is_unset(value: object) -> bool:
    # Not a zero, which may be a limit.
    return value is None or value is False or value in ("", [], {})


def _known_fields(record: Mapping[str, Any], writer: str) -> dict[str, Any]:
    """The record without fields that this version does not know. Raises ValueError for an unknown option that is
    set."""
    known = {name: value for name, value in record.items() if name in SessionRecord.model_fields}
    options = known.get("options")
    if isinstance(options, dict):
        unknown = sorted(name for name in options if name not in SessionOptions.model_fields)
        asking = [name for name in unknown if not _is_unset(options[name])]
        if asking:
            raise ValueError(
                f"for a session with options that this version, {__version__}, does not support "
                f"({', '.join(asking)[:_MAX_NAMED]}): it was written by {writer}"
            )
        known["options"] = {name: value for name, value in options.items() if name not in unknown}
    return known


# -- secrets ----------------------------------------------------------------------------------------------------------


def without_secrets(record: SessionRecord) -> tuple[SessionRecord, tuple[str, ...]]:
    """The record without the options that contain secrets, with its result shortened to fit; and the names of these
    options."""
    options, left_out = record.options, []
    for name in _SECRET_OPTIONS:
        if getattr(options, name):
            left_out.append(name)
    if options.agents and any(
        isinstance(agent, Mapping) and agent.get("mcpServers") for agent in options.agents.values()
    ):
        left_out.append("agents")
    changes: dict[str, Any] = {name: {} if name == "env" else None for name in left_out}
    outcome, cut = record.outcome, record.result_cut
    if outcome is not None and len(outcome.result) > _MAX_RESULT:
        outcome, cut = dataclasses.replace(outcome, result=outcome.result[:_MAX_RESULT]), True
    update = {"options": options.model_copy(update=changes), "outcome": outcome, "result_cut": cut}
    return record.model_copy(update=update), tuple(left_out)


# -- data besides the record ------------------------------------------------------------------------------------------


def _keys_and_spending(db: "sqlite3.Connection", session_id: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    keys = db.execute(
        "SELECT principal, session_id, key, message_id, digest, target, accepted, at FROM message_keys"
        " WHERE session_id = ? OR target = ?",
        (session_id, session_id),
    ).fetchall()
    spending = db.execute("SELECT day, principal, usd FROM spending WHERE session_id = ?", (session_id,)).fetchall()
    return tuple(map(tuple, keys)), tuple(map(tuple, spending))


def _is_of(record: SessionRecord, principal: str, session_id: str, target: str) -> bool:
    """Whether a key belongs to a message to the session, or to the call with which its owner created it."""
    return session_id == record.session_id or (target == record.session_id and principal == record.owner)


def put_keys_and_spending(database: Database, document: SessionDocument) -> None:
    """Writes a session's keys and spending into this machine's database, only for this session and its owner. Another
    machine's data is a claim: it must neither lower anyone's spending nor use up another's budget. A pending key
    belongs to no living server: its next user looks into the transcript. Blocks; raises OSError if it cannot be
    written."""
    record = document.record
    spending = [
        (day, principal, record.session_id, usd)
        for day, principal, usd in document.spending
        if principal == record.owner and 0 <= usd < math.inf
    ]

    def change(db: "sqlite3.Connection") -> None:
        rows = [(*key[:7], "", key[7]) for key in document.keys if _is_of(record, *key[:2], key[5])]
        db.executemany("INSERT OR REPLACE INTO message_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
        db.executemany(
            # The larger one: this machine may have held the session before and has its costs until then.
            "INSERT INTO spending VALUES (?, ?, ?, ?)"
            " ON CONFLICT (day, principal, session_id) DO UPDATE SET usd = max(usd, excluded.usd)",
            spending,
        )

    database.write(change, durable=True)


def _lost(session_id: str) -> LostSession:
    return LostSession(f"Session {session_id} is held by another machine now.", session_id=session_id)
