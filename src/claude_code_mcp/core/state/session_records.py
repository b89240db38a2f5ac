"""What is remembered of each session that this product ran, beside its transcript.

A record holds whose the session is, what it may do, what it has spent and how its last turn ended. It has the session's
options as they were admitted, with the secrets that its caller put into `env`, into headers of MCP servers or into
prompts: without them the session could not be resumed as it was. Nothing from the server's own environment is in it. A
session that is not to be persisted has no record.

A session id has one record per state directory, however the session's files are reached: a configuration directory that
was moved or linked elsewhere changes nothing about what a session may do.

A record that exists but cannot be read grants nothing: `read` refuses instead of reporting none. Each carries a
checksum of its content, so that damage is noticed and never brings an older state back. Several threads and several
servers may call at once; all functions block on the disk.
"""

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from ..errors import RecordUnreadable
from ..model.caller import LOCAL
from ..model.options import SessionOptions
from ..model.outcome import Outcome
from ..model.session_id import is_session_id
from ..model.states import State
from ..model.usage import Usage
from ..model.usage_limits import LimitWait
from .database import Database, StateFault

if TYPE_CHECKING:
    import sqlite3

VERSION: Final = 1
MAX_RESULT = 256 << 10
"""Characters of a result that a record keeps; a longer one is read from the transcript."""
_PROMPT_LENGTH = 1000
"""Maximum characters of a result in a record; longer ones are read from the transcript."""
_MAX_BYTES = 16 << 20
_CHECKED_AT_ONCE = 100
_MAX_HOPS = 1000


def _any_text(value: object) -> str:
    """Text that need not be UTF-8, as names of directories need not."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


Time = Annotated[float, Field(ge=0, lt=1e11)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DirectoryName = Annotated[str, PlainValidator(_any_text)]


class SessionRecord(BaseModel):
    """All that a session needs beside its transcript to be resumed as it was. Times are Unix seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    version: Literal[1] = VERSION
    revision: int = 0
    """Grows with every write, so that a server knows when another one has gone on with the session."""
    session_id: str
    owner: str
    created_at: Time
    used_at: Time
    cwd: DirectoryName
    options: SessionOptions
    """Without the directory, which `cwd` has."""
    first_prompt: str | None = None
    origin: tuple[str, str | None] | None = None
    """The session and the message that a fork begins with, until it has a transcript of its own."""
    cancelled: bool = False
    running_since: Time | None = None
    """When the turn began that is running. If it is set and no server runs the session, that turn was cut short."""
    spent_usd: Amount = 0.0
    """When the running turn began. If it is set and no server runs the session, that turn was cut short."""
    usage: Usage = Usage()
    model_turns: int = Field(0, ge=0)
    outcome: Outcome | None = None
    """Of the last turn that ended."""
    result_cut: bool = False
    """Of the last turn that ended."""
    grants: tuple[Mapping[str, Any], ...] = ()
    """Whether `outcome` contains only the beginning of a long result."""
    limit_wait: LimitWait | None = None
    """Permission updates that a person granted for the whole session, in the CLI's format."""


def recordable_prompt(prompt: str | None) -> str | None:
    """The beginning of a session's first prompt, as a record keeps it."""
    return _encodable(prompt[:_PROMPT_LENGTH]) if prompt else None


def recordable_wait(wait: LimitWait | None) -> LimitWait | None:
    """A wait as a record keeps it."""
    return replace(wait, text=_encodable(wait.text)) if wait is not None else None


def recordable_outcome(outcome: Outcome | None) -> tuple[Outcome | None, bool]:
    """An outcome as a record keeps it, and whether its result was cut: then the transcript has the rest."""
    if outcome is None:
        return None, False
    if outcome.structured_output is not None and _size(outcome.structured_output) > MAX_RESULT:
        outcome = replace(outcome, structured_output=None)
    if outcome.permission_denials and _size(outcome.permission_denials) > MAX_RESULT:
        outcome = replace(outcome, permission_denials=())
    cut = len(outcome.result) > MAX_RESULT
    result = _encodable(outcome.result[:MAX_RESULT])
    return replace(outcome, result=result, detail=_encodable(outcome.detail)), cut


def _encodable(text: str) -> str:
    """Without lone surrogates, which no file can hold."""
    return text.encode("utf-8", "replace").decode()


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))


@dataclass(frozen=True, slots=True)
class Summary:
    """What a listing shows of a record."""

    owner: str
    cancelled: bool
    running: bool
    state: State
    """The state in which the last turn that ended left the session."""
    usage: Mapping[str, Sequence[float]]
    """The state in which the last turn left the session."""
    revision: int = 0
    config_dir: str = ""
    """Where the transcript of the session lies."""


class WaitingSession(NamedTuple):
    """A session that continues automatically after a usage limit."""

    session_id: str
    owner: str
    continues_at: float


class SessionRecords:
    """The records of all sessions in a state directory. `config_dir` is where the transcripts of those lie that are
    written through this object."""

    def __init__(self, database: Database, config_dir: str) -> None:
        self._database = database
        self.config_dir = _storable_path(config_dir)
        self._lock = threading.Lock()
        self._summaries: dict[str, Summary] = {}
        self._seen = (-1, -1)
        """The change and the epoch up to which `_summaries` is complete."""
        self._checked = ""

    def read(self, session_id: str) -> SessionRecord | None:
        """The record; None if there is none. RecordUnreadable if there is one that is damaged, or if it cannot be known
        whether there is one."""
        session_id = _checked_id(session_id)
        query = "SELECT body, checksum FROM sessions WHERE session_id = ?"
        try:
            row = self._database.row(query, session_id)
            return None if row is None else decode_record(session_id, *row)
        except (StateFault, ValueError, RecursionError) as error:
            raise _unreadable(session_id, _reason(error)) from None

    def write(self, record: SessionRecord, *, durable: bool = True) -> None:
        """Replaces the record; nobody who reads has half of it. What is not `durable` outlives this process, and a
        failure of the machine only after `make_durable`. OSError if it cannot be written, or if another server has
        written a later revision meanwhile; then the old one is untouched."""
        row = _encode_record(record, self.config_dir, time.time())
        self._database.write(lambda db: _put_record(db, row), durable=durable)

    def make_durable(self) -> None:
        """Waits until all records are on the disk. OSError if that cannot be done."""
        self._database.make_durable()

    def move(self, old: str, record: SessionRecord | None, new: str) -> None:
        """A session goes on under another id: its record is that of the new id, the old one has no turn any more, and
        the old id leads to the new one. All of that or none. OSError or RecordUnreadable if it cannot be done."""
        row = _encode_record(record, self.config_dir, time.time()) if record is not None else None
        # Read before the transaction: if another server goes on with the
        # session meanwhile, `_put_record` refuses the older revision.
        previous = self.read(old)
        ended = previous.model_copy(update={"running_since": None}) if previous is not None else None
        old_row = _encode_record(ended, self.config_dir, time.time()) if ended is not None else None

        def change(db: "sqlite3.Connection") -> None:
            for changed in (row, old_row):
                if changed is not None:
                    _put_record(db, changed)
            _point_id(db, old, new, self.config_dir, time.time())

        self._database.write(change, durable=True)

    def remove(self, session_id: str) -> None:
        """Forgets a session. Harmless where there is nothing; OSError if it cannot be done."""
        session_id = _checked_id(session_id)
        self._database.write(lambda db: _remove_records(db, [session_id]), durable=True)

    def owned_by(self, principal: str, session_id: str) -> bool:
        """Whether a principal may use a session that is only on disk. One whose record cannot be read has no owner."""
        if principal == LOCAL:
            return True
        try:
            record = self.read(session_id) if is_session_id(session_id) else None
        except RecordUnreadable:
            return False
        return record is not None and record.owner == principal

    def knows(self, session_id: str) -> bool:
        """Whether anything is recorded under this id, or was before it moved. True if it cannot be determined."""
        query = "SELECT 1 FROM sessions WHERE session_id = ? UNION SELECT 1 FROM moved_ids WHERE ? IN (old_id, new_id)"
        try:
            return self._database.row(query, session_id, session_id) is not None
        except StateFault:
            return True

    def waiting(self) -> list[WaitingSession]:
        """The sessions below this configuration directory that continue automatically. OSError if that is unknown."""
        query = (
            "SELECT session_id, principal, continues_at FROM sessions WHERE continues_at IS NOT NULL AND config_dir = ?"
        )
        return [WaitingSession(*row) for row in self._database.rows(query, self.config_dir)]

    def summaries(self) -> dict[str, Summary]:
        """Every record in short, by session id; not to be changed, and the same object until a record changes. Reads
        only those that have changed since the last call. OSError if they cannot be read."""
        # Rows and the change up to which they are complete must fit together for the next caller, in whatever thread.
        with self._lock:
            seen, rows = self._database.read(self._news)
            if seen != self._seen:
                # A new epoch means that something was removed, which no row can say: then all of them were read.
                known = self._summaries if seen[1] == self._seen[1] else {}
                # A new object: those who have the old one may be iterating over it, and compare the two by identity.
                self._summaries = known | {row[0]: _summary(row) for row in rows}
                self._seen = seen
            return self._summaries

    def _news(self, db: "sqlite3.Connection") -> tuple[tuple[int, int], list[Any]]:
        change, epoch = db.execute("SELECT change, epoch FROM changes WHERE topic = 'sessions'").fetchone()
        known = self._seen[0] if epoch == self._seen[1] else -1
        if change == known:
            return (change, epoch), []
        columns = "session_id, principal, cancelled, running, state, usage, revision, config_dir"
        rows = db.execute(f"SELECT {columns} FROM sessions WHERE change > ?", (known,)).fetchall()  # noqa: S608 - no value
        return (change, epoch), rows

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes records of this configuration directory that nobody has written for `grace` seconds and whose
        transcript is gone; returns how many. Looks at a bounded number each time and goes on from there the next time.
        """
        before = time.time() - grace
        old, self._checked = _old_ids(self._database, "sessions", "session_id", self.config_dir, self._checked, before)
        # Outside of the transaction, since it looks at files; a record that is written meanwhile is kept by its time.
        gone = [session_id for session_id in old if not has_transcript(session_id)]
        if gone:
            self._database.write(lambda db: _remove_records(db, gone, before))
        return len(gone)


class MovedIds:
    """Leads from ids of sessions that were cleared to those under which they go on."""

    def __init__(self, database: Database, config_dir: str) -> None:
        self._database = database
        self._config_dir = _storable_path(config_dir)
        self._checked = ""

    def point(self, old: str, new: str) -> None:
        """From now on the old id means the session with the new one. OSError if that cannot be written down."""
        self._database.write(lambda db: _point_id(db, old, new, self._config_dir, time.time()), durable=True)

    def resolve(self, session_id: str) -> str:
        """The id under which the session goes on; its own if it was never cleared. OSError if that cannot be read."""
        return self._database.read(lambda db: _resolved(db, session_id))

    def all(self) -> dict[str, str]:
        """Every id that moved, and the id that it leads to."""
        steps = dict(self._database.rows("SELECT old_id, new_id FROM moved_ids"))
        return {old: _follow(steps.get, old) for old in steps}

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes pointers older than `grace` seconds that lead from nowhere to nowhere; returns how many.

        One whose old transcript is still there stays: without it the old id would mean the conversation from before
        it was cleared. Looks at a bounded number each time and goes on from there the next time.
        """
        before = time.time() - grace
        old, self._checked = _old_ids(self._database, "moved_ids", "old_id", self._config_dir, self._checked, before)
        gone = [(each,) for each in old if not has_transcript(each) and not has_transcript(self.resolve(each))]
        if gone:
            self._database.write(lambda db: db.executemany("DELETE FROM moved_ids WHERE old_id = ?", gone))
        return len(gone)


def _old_ids(
    database: Database, table: str, key: str, config_dir: str, checked: str, before: float
) -> tuple[list[str], str]:
    """Some ids behind the one that was checked last that were last written before a moment, and the one to go on
    behind the next time; that is empty when all were looked at. All names are ours."""
    query = (
        f"SELECT {key} FROM {table} WHERE config_dir = ? AND {key} > ? AND written_at < ?"  # noqa: S608
        f" ORDER BY {key} LIMIT ?"
    )
    old = [found for (found,) in database.rows(query, config_dir, checked, before, _CHECKED_AT_ONCE)]
    return old, old[-1] if len(old) == _CHECKED_AT_ONCE else ""


# -- rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record as a row of the table, without the number of its change."""

    session_id: str
    revision: int
    principal: str
    config_dir: str
    written_at: float
    running: bool
    cancelled: bool
    state: str
    usage: str
    checksum: bytes
    body: str
    continues_at: float | None = None
    """When the session continues automatically after a usage limit."""


def _encode_record(record: SessionRecord, config_dir: str, written_at: float) -> RecordRow:
    """ValueError or TypeError for a record that holds something which is not JSON."""
    ended, wait = record.outcome.state if record.outcome is not None else State.IDLE, record.limit_wait
    content = record.model_dump()
    usage = {model: list(used.values()) for model, used in content["usage"]["models"].items()}
    body = json.dumps(content, separators=(",", ":"))
    return RecordRow(
        session_id=_checked_id(record.session_id),
        revision=record.revision,
        principal=record.owner,
        config_dir=config_dir,
        written_at=written_at,
        running=record.running_since is not None,
        cancelled=record.cancelled,
        state=State.CANCELLED if record.cancelled else ended,
        usage=json.dumps(usage, separators=(",", ":")),
        checksum=_checksum(record.session_id, body),
        body=body,
        continues_at=wait.continues_at if wait is not None and wait.on and not record.cancelled else None,
    )


def decode_record(session_id: str, body: str, checksum: bytes) -> SessionRecord:
    """ValueError if it is damaged, of another version or of another session."""
    if len(body) > _MAX_BYTES:
        raise ValueError("it is too large")
    if _checksum(session_id, body) != checksum:
        raise ValueError("it is damaged")
    raw = json.loads(body)
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise ValueError("it was written by another version")
    record = SessionRecord.model_validate(raw)
    if record.session_id != session_id:
        raise ValueError("it belongs to another session")
    return record


def _put_record(db: "sqlite3.Connection", row: RecordRow) -> None:
    """Writes a row within a transaction. StateFault if there is one of a later revision: another server has gone on
    with the session, and what it wrote must not be undone."""
    (change,) = db.execute(
        "UPDATE changes SET change = change + 1 WHERE topic = 'sessions' RETURNING change"
    ).fetchone()
    values = (
        row.session_id, row.revision, change, row.principal, row.config_dir, row.written_at, int(row.running),
        int(row.cancelled), row.state, row.usage, row.checksum, row.body, row.continues_at,
    )  # fmt: skip
    written = db.execute(
        "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET revision = excluded.revision, change = excluded.change,"
        " principal = excluded.principal, config_dir = excluded.config_dir, written_at = excluded.written_at,"
        " running = excluded.running, cancelled = excluded.cancelled, state = excluded.state, usage = excluded.usage,"
        " checksum = excluded.checksum, body = excluded.body, continues_at = excluded.continues_at"
        " WHERE excluded.revision >= sessions.revision",
        values,
    )
    if written.rowcount != 1:
        raise StateFault(errno.ESTALE, "another server has continued the session")


def _point_id(db: "sqlite3.Connection", old: str, new: str, config_dir: str, written_at: float) -> None:
    """Lets one id lead to another, within a transaction."""
    db.execute("INSERT OR REPLACE INTO moved_ids VALUES (?, ?, ?, ?)", (old, new, config_dir, written_at))


def _remove_records(db: "sqlite3.Connection", session_ids: Sequence[str], before: float = float("inf")) -> None:
    """Removes those of the records that were last written before a moment: one that was written since it was looked at
    is in use."""
    rows = [(session_id, before) for session_id in session_ids]
    removed = db.executemany("DELETE FROM sessions WHERE session_id = ? AND written_at < ?", rows).rowcount
    if removed:
        db.execute("UPDATE changes SET change = change + 1, epoch = epoch + 1 WHERE topic = 'sessions'")


def _resolved(db: "sqlite3.Connection", session_id: str) -> str:
    def following(current: str) -> str | None:
        row = db.execute("SELECT new_id FROM moved_ids WHERE old_id = ?", (current,)).fetchone()
        return None if row is None else str(row[0])

    return _follow(following, session_id) if is_session_id(session_id) else session_id


def _follow(following: Callable[[str], str | None], session_id: str) -> str:
    # Bounded: pointers that lead in a circle must not keep a thread for ever.
    for _ in range(_MAX_HOPS):
        new_id = following(session_id)
        if new_id is None:
            break
        session_id = new_id
    return session_id


def _summary(row: Sequence[Any]) -> Summary:
    _, owner, cancelled, running, state, usage, revision, config_dir = row
    return Summary(owner, bool(cancelled), bool(running), State(state), json.loads(usage), revision, config_dir)


def _checked_id(session_id: str) -> str:
    if not is_session_id(session_id):
        raise ValueError("not a session id")
    return session_id.lower()


def _checksum(session_id: str, body: str) -> bytes:
    # With the id, so that the body of one session does not pass for that of another.
    return hashlib.blake2b(f"{session_id.lower()}\n{body}".encode(), digest_size=16).digest()


def _storable_path(path: str) -> str:
    """The name of a directory, which need not be UTF-8, as text that every database takes; the same for the same
    name."""
    return os.path.realpath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    """The fault of a record in words, without its contents, which may be secret."""
    if isinstance(error, ValidationError):
        return f"{len(error.errors(include_input=False))} of its fields are invalid"
    if isinstance(error, json.JSONDecodeError | RecursionError):
        return "it is not JSON"
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


def _unreadable(session_id: str, why: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"Session {session_id} cannot be resumed: the record of its permissions cannot be read ({why}). Start a new "
        "session, or ask the operator to restore the state from a backup.",
        session_id=session_id,
    )
