"""Records of the sessions that this product ran, in addition to their transcripts.

A record holds the session's owner, its permissions, its spending and the outcome of its last turn. It has the session's
options as they were admitted, including the secrets that its caller put into `env`, into headers of MCP servers or into
prompts: without them the session could not be resumed unchanged. It contains nothing from the server's own environment.
A session that must not be persisted has no record.

A session id has one record per state directory, however the session's files are reached: moving or linking a
configuration directory does not change the session's permissions.

A record that exists but cannot be read grants nothing: `read` raises instead of returning None. Each record carries a
checksum of its content, so that damage is noticed and never restores an older state. Several threads and several
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
"""Maximum characters of a result in a record; longer ones are read from the transcript."""
_PROMPT_LENGTH = 1000
"""Maximum characters of the first prompt in a record."""
_MAX_BYTES = 16 << 20
_CHECKED_AT_ONCE = 100
_MAX_HOPS = 1000


def _any_text(value: object) -> str:
    """Text that may not be valid UTF-8, such as directory names."""
    if not isinstance(value, str):
        raise ValueError("must be a string")
    return value


Time = Annotated[float, Field(ge=0, lt=1e11)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DirectoryName = Annotated[str, PlainValidator(_any_text)]


class SessionRecord(BaseModel):
    """Everything that a session needs, apart from its transcript, to be resumed. Times are Unix seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    version: Literal[1] = VERSION
    revision: int = 0
    """Grows with every write, so that a server notices when another one has continued the session."""
    session_id: str
    owner: str
    created_at: Time
    used_at: Time
    cwd: DirectoryName
    options: SessionOptions
    """Without the directory, which is in `cwd`."""
    first_prompt: str | None = None
    origin: tuple[str, str | None] | None = None
    """The session and message that a fork begins with, until it has its own transcript."""
    cancelled: bool = False
    running_since: Time | None = None
    """When the running turn began. If it is set and no server runs the session, that turn was cut short."""
    spent_usd: Amount = 0.0
    """The spending that counts against the session's budget."""
    usage: Usage = Usage()
    model_turns: int = Field(0, ge=0)
    outcome: Outcome | None = None
    """The outcome of the last turn that ended."""
    result_cut: bool = False
    """Whether `outcome` contains only the beginning of a long result."""
    grants: tuple[Mapping[str, Any], ...] = ()
    """Permission updates that a person granted for the whole session, in the CLI's format."""
    limit_wait: LimitWait | None = None
    """The message that a usage limit stopped, and when it continues automatically."""


def recordable_prompt(prompt: str | None) -> str | None:
    """The beginning of a session's first prompt, for a record."""
    return _encodable(prompt[:_PROMPT_LENGTH]) if prompt else None


def recordable_wait(wait: LimitWait | None) -> LimitWait | None:
    """A wait in the form stored in a record."""
    return replace(wait, text=_encodable(wait.text)) if wait is not None else None


def recordable_outcome(outcome: Outcome | None) -> tuple[Outcome | None, bool]:
    """An outcome in the form stored in a record, and whether its result was cut: then the transcript has the rest."""
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
    """The text without lone surrogates, which cannot be encoded."""
    return text.encode("utf-8", "replace").decode()


def _size(value: object) -> int:
    return len(json.dumps(value, default=str))


@dataclass(frozen=True, slots=True)
class Summary:
    """The part of a record that lists show."""

    owner: str
    cancelled: bool
    running: bool
    state: State
    """The state in which the last turn left the session."""
    usage: Mapping[str, Sequence[float]]
    """By model: input, output, cache read and cache creation tokens, and dollars."""
    revision: int = 0
    config_dir: str = ""
    """The directory of the session's transcript."""


class WaitingSession(NamedTuple):
    """A session that continues automatically after a usage limit."""

    session_id: str
    owner: str
    continues_at: float


class SessionRecords:
    """The records of all sessions in a state directory. `config_dir` is the location of transcripts of records written
    through this object."""

    def __init__(self, database: Database, config_dir: str) -> None:
        self._database = database
        self.config_dir = _storable_path(config_dir)
        self._lock = threading.Lock()
        self._summaries: dict[str, Summary] = {}
        self._seen = (-1, -1)
        """The change and the epoch up to which `_summaries` is complete."""
        self._checked = ""

    def read(self, session_id: str) -> SessionRecord | None:
        """The record; None if there is none. Raises RecordUnreadable if it is damaged, or if its existence cannot be
        determined."""
        session_id = _checked_id(session_id)
        query = "SELECT body, checksum FROM sessions WHERE session_id = ?"
        try:
            row = self._database.row(query, session_id)
            return None if row is None else decode_record(session_id, *row)
        except (StateFault, ValueError, RecursionError) as error:
            raise _unreadable(session_id, _reason(error)) from None

    def write(self, record: SessionRecord, *, durable: bool = True) -> None:
        """Replaces the record atomically. Unless `durable`, it survives this process, but a crash of the machine only
        after `make_durable`. Raises OSError if it cannot be written, or if another server has written a later revision;
        then the old one is unchanged."""
        row = _encode_record(record, self.config_dir, time.time())
        self._database.write(lambda db: _put_record(db, row), durable=durable)

    def make_durable(self) -> None:
        """Waits until all records are on disk. Raises OSError."""
        self._database.make_durable()

    def move(self, old: str, record: SessionRecord | None, new: str) -> None:
        """A session continues under another id: its record moves to the new id, the old one has no running turn, and
        the old id refers to the new one. All or nothing. Raises OSError or RecordUnreadable."""
        row = _encode_record(record, self.config_dir, time.time()) if record is not None else None
        # Read before the transaction: if another server continues the session meanwhile, `_put_record` refuses the
        # older revision.
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
        """Removes a session's record, if it exists. Raises OSError."""
        session_id = _checked_id(session_id)
        self._database.write(lambda db: _remove_records(db, [session_id]), durable=True)

    def owned_by(self, principal: str, session_id: str) -> bool:
        """Whether a principal may use a session that is only on disk. A session with an unreadable record has no
        owner."""
        if principal == LOCAL:
            return True
        try:
            record = self.read(session_id) if is_session_id(session_id) else None
        except RecordUnreadable:
            return False
        return record is not None and record.owner == principal

    def knows(self, session_id: str) -> bool:
        """Whether there is a record for this id, or was before it moved. True if that cannot be determined."""
        query = "SELECT 1 FROM sessions WHERE session_id = ? UNION SELECT 1 FROM moved_ids WHERE ? IN (old_id, new_id)"
        try:
            return self._database.row(query, session_id, session_id) is not None
        except StateFault:
            return True

    def waiting(self) -> list[WaitingSession]:
        """The sessions of this configuration directory that continue automatically. Raises OSError if that is
        unknown."""
        query = (
            "SELECT session_id, principal, continues_at FROM sessions WHERE continues_at IS NOT NULL AND config_dir = ?"
        )
        return [WaitingSession(*row) for row in self._database.rows(query, self.config_dir)]

    def summaries(self) -> dict[str, Summary]:
        """Summaries of all records by session id; do not modify them; the same object until a record changes. Reads
        only records changed since the last call. Raises OSError."""
        # The rows and the change up to which they are complete must match for the next caller, in any thread.
        with self._lock:
            seen, rows = self._database.read(self._news)
            if seen != self._seen:
                # A new epoch means that a record was removed, which no row shows: then all rows were read.
                known = self._summaries if seen[1] == self._seen[1] else {}
                # A new object: callers with the old one may be iterating over it, and compare the two by identity.
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
        """Removes records of this configuration directory that were not written for `grace` seconds and whose
        transcript is gone; returns the number. Checks a limited number each time and continues from there."""
        before = time.time() - grace
        old, self._checked = _old_ids(self._database, "sessions", "session_id", self.config_dir, self._checked, before)
        # Outside of the transaction, since it reads files; the time of a record written meanwhile protects it.
        gone = [session_id for session_id in old if not has_transcript(session_id)]
        if gone:
            self._database.write(lambda db: _remove_records(db, gone, before))
        return len(gone)


class MovedIds:
    """Maps ids of cleared sessions to their successors."""

    def __init__(self, database: Database, config_dir: str) -> None:
        self._database = database
        self._config_dir = _storable_path(config_dir)
        self._checked = ""

    def point(self, old: str, new: str) -> None:
        """From now on the old id means the session with the new one. Raises OSError if that cannot be stored."""
        self._database.write(lambda db: _point_id(db, old, new, self._config_dir, time.time()), durable=True)

    def resolve(self, session_id: str) -> str:
        """The id under which the session continues; its own if it was never cleared. Raises OSError."""
        return self._database.read(lambda db: _resolved(db, session_id))

    def all(self) -> dict[str, str]:
        """Every moved id, with its successor."""
        steps = dict(self._database.rows("SELECT old_id, new_id FROM moved_ids"))
        return {old: _follow(steps.get, old) for old in steps}

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes mappings older than `grace` seconds whose sessions are both gone; returns the number. A mapping whose
        old transcript exists stays: without it the old id would mean the conversation from before it was cleared.
        Checks a limited number each time and continues from there."""
        before = time.time() - grace
        old, self._checked = _old_ids(self._database, "moved_ids", "old_id", self._config_dir, self._checked, before)
        gone = [(each,) for each in old if not has_transcript(each) and not has_transcript(self.resolve(each))]
        if gone:
            self._database.write(lambda db: db.executemany("DELETE FROM moved_ids WHERE old_id = ?", gone))
        return len(gone)


def _old_ids(
    database: Database, table: str, key: str, config_dir: str, checked: str, before: float
) -> tuple[list[str], str]:
    """Some ids after the last checked one that were last written before a given time, and where to continue; empty when
    all were checked. All names are ours."""
    query = (
        f"SELECT {key} FROM {table} WHERE config_dir = ? AND {key} > ? AND written_at < ?"  # noqa: S608
        f" ORDER BY {key} LIMIT ?"
    )
    old = [found for (found,) in database.rows(query, config_dir, checked, before, _CHECKED_AT_ONCE)]
    return old, old[-1] if len(old) == _CHECKED_AT_ONCE else ""


# -- rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A record as a row of the table, without its change number."""

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
    """Raises ValueError or TypeError for a record with values that are not JSON."""
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
    """Raises ValueError if it is damaged, of another version or of another session."""
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
    """Writes a row within a transaction. Raises StateFault if there is a later revision: another server has continued
    the session, and its data must not be overwritten."""
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
    """Maps one id to another, within a transaction."""
    db.execute("INSERT OR REPLACE INTO moved_ids VALUES (?, ?, ?, ?)", (old, new, config_dir, written_at))


def _remove_records(db: "sqlite3.Connection", session_ids: Sequence[str], before: float = float("inf")) -> None:
    """Removes those records that were last written before a given time: a record written since the check is in use."""
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
    # Bounded: a cycle of pointers must not block a thread forever.
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
    # Includes the id, so that the body of one session is not accepted for another.
    return hashlib.blake2b(f"{session_id.lower()}\n{body}".encode(), digest_size=16).digest()


def _storable_path(path: str) -> str:
    """A directory name, which may not be valid UTF-8, as text that every database accepts; equal for equal names."""
    return os.path.realpath(path).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    """A description of a record's fault without its contents, which may be secret."""
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
