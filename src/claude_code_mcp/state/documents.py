"""What has no module of its own: documents by kind and key, notices to be delivered, marks of sessions, tasks.

All methods and functions block on the disk: call them from a thread.

A delivery belongs to the server that makes it for as long as that server lives. There is nothing in one that is not
sent anyway, and of the receiver no more than its id.

Marks of sessions are shared by all servers of the user.

A task is known by its id, which nobody can guess; that of another owner counts as absent.
"""

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from ..model.options import is_session_id
from .database import Database
from .session_holders import ServerLife

if TYPE_CHECKING:
    import sqlite3


JsonObject = dict[str, Any]


class Documents:
    """The documents of one kind."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._kind = kind

    def read(self, key: str) -> JsonObject | None:
        """The document; None if there is none. OSError if it cannot be read."""
        query = "SELECT body FROM documents WHERE kind = ? AND key = ?"
        row = self._database.row(query, self._kind, key)
        return None if row is None else json.loads(row[0])

    def keys(self) -> list[str]:
        """Under which there are documents. OSError if that cannot be read."""
        return [key for (key,) in self._database.rows("SELECT key FROM documents WHERE kind = ?", self._kind)]

    def write(self, key: str, document: JsonObject) -> None:
        """Replaces the document. OSError if that cannot be done; then the old one is untouched."""
        self.update(key, lambda _: document)

    def update(
        self, key: str, change: Callable[[JsonObject | None], JsonObject | None], *, durable: bool = False
    ) -> None:
        """Replaces the document by what `change` makes of it, with nobody writing in between; None removes it. What
        `change` raises changes nothing. OSError if it cannot be done."""

        def replace(db: Any) -> None:
            query = "SELECT body FROM documents WHERE kind = ? AND key = ?"
            row = db.execute(query, (self._kind, key)).fetchone()
            document = change(None if row is None else json.loads(row[0]))
            if document is None:
                db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (self._kind, key))
                return
            body = json.dumps(document, separators=(",", ":"))
            db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (self._kind, key, time.time(), body))

        self._database.write(replace, durable=durable)


# -- deliveries -------------------------------------------------------------------------------------------------------


_MOST_TAKEN = 1000
"""Deliveries of servers that have ended which are taken over at once."""


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A notice on its way to one receiver."""

    delivery_id: str
    """The same for every try, also after a restart: receivers know by it what they have already."""
    principal: str
    receiver_id: str
    at: float
    notice: dict[str, Any]


class Deliveries:
    """The deliveries of one server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._life = ServerLife(database.directory)

    def add(self, delivery: PendingDelivery) -> None:
        """Writes a delivery; it is on the disk when this returns. OSError if it cannot be written, or if this server
        has stopped."""
        # First: what belongs to a server that does not seem to live would be taken over by another at once.
        self._life.begin()
        self._database.write(lambda db: put_delivery(db, self._life.id, delivery), durable=True)

    def remove(self, delivery_id: str) -> None:
        """A no-op for one that is not there. OSError if it cannot be removed: it may then be delivered again."""
        self._database.execute("DELETE FROM deliveries WHERE delivery_id = ?", delivery_id)

    def take_over(self) -> list[PendingDelivery]:
        """What servers that have ended did not deliver, oldest first; it is ours from now on. Raises OSError."""
        self._life.begin()
        return self._database.write(self._take)

    def _take(self, db: "sqlite3.Connection") -> list[PendingDelivery]:
        servers = [server for (server,) in db.execute("SELECT DISTINCT server FROM deliveries").fetchall()]
        # Within the transaction: of two servers that look at the same time only one takes what is left.
        gone = [server for server in servers if not self._life.lives(server)]
        taken: list[PendingDelivery] = []
        for server in gone:
            found = db.execute(
                "UPDATE deliveries SET server = ? WHERE delivery_id IN ("
                "SELECT delivery_id FROM deliveries WHERE server = ? ORDER BY at LIMIT ?)"
                " RETURNING delivery_id, principal, receiver_id, at, notice",
                (self._life.id, server, _MOST_TAKEN - len(taken)),
            ).fetchall()
            taken += [
                PendingDelivery(delivery_id, principal, receiver_id, at, json.loads(notice))
                for delivery_id, principal, receiver_id, at, notice in found
            ]
        return sorted(taken, key=lambda delivery: delivery.at)

    def close(self) -> None:
        """Ends the life of this server; pending deliveries are left for the next one."""
        self._life.end()


def put_delivery(db: "sqlite3.Connection", server: str, delivery: PendingDelivery) -> None:
    """Writes a delivery within a transaction."""
    notice = json.dumps(delivery.notice, separators=(",", ":"))
    values = (delivery.delivery_id, server, delivery.principal, delivery.receiver_id, delivery.at, notice)
    db.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?, ?)", values)


# -- session marks ----------------------------------------------------------------------------------------------------


class Mark(StrEnum):
    PINNED = "pinned"
    ARCHIVED = "archived"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class MarkedSessions:
    """The ids of the sessions that have each mark; the same object until the marks change."""

    pinned: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class Marks:
    """The marks in a state directory. Without one there are none, and none can be set."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._change = -1
        self._marked = MarkedSessions()

    def read(self) -> MarkedSessions:
        """All marks, read anew if they have changed. OSError if they cannot be read."""
        if self._database is None:
            return self._marked
        # The marks and the number of the change they belong to must fit together for the next reader.
        with self._lock:
            change, rows = self._database.read(self._news)
            if change != self._change:
                named = {mark.value: frozenset(each for each, name in rows if name == mark) for mark in Mark}
                self._marked = MarkedSessions(**named)
                self._change = change
            return self._marked

    def _news(self, db: "sqlite3.Connection") -> tuple[int, list[Any]]:
        (change,) = db.execute("SELECT change FROM changes WHERE topic = 'marks'").fetchone()
        return change, [] if change == self._change else db.execute("SELECT session_id, mark FROM marks").fetchall()

    def set(self, session_id: str, mark: Mark, on: bool) -> None:
        """Marks a session, or takes the mark away; on disk when this returns. OSError if that cannot be done."""
        if self._database is None or not is_session_id(session_id):
            raise ValueError("there is nothing to mark")
        self._database.write(lambda db: put_mark(db, session_id, mark, on), durable=True)


def put_mark(db: "sqlite3.Connection", session_id: str, mark: str, on: bool) -> None:
    """Sets a mark or removes it, within a transaction."""
    if on:
        db.execute("INSERT OR IGNORE INTO marks VALUES (?, ?)", (session_id, mark))
    else:
        db.execute("DELETE FROM marks WHERE session_id = ? AND mark = ?", (session_id, mark))
    db.execute("UPDATE changes SET change = change + 1 WHERE topic = 'marks'")


# -- task records -----------------------------------------------------------------------------------------------------


ENDED = frozenset({"completed", "failed", "cancelled"})
_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")


class TaskRecord(BaseModel):
    """The last reported state of a task. `result` and `error` are as they go on the wire, without secrets."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    task_id: str
    owner: str
    tool: str
    session_id: str | None = None
    message_id: str | None = None
    created_at: float
    updated_at: float
    ttl_ms: int
    status: str = "working"
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def expires_at(self) -> float:
        return self.updated_at + self.ttl_ms / 1000


class TaskRecords:
    """The records of all tasks in a state directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, record: TaskRecord) -> None:
        """Replaces the record; it is on the disk when this returns. OSError if that cannot be done; then the old one
        is untouched."""
        self._database.write(lambda db: put_task(db, record), durable=True)

    def read(self, task_id: str, principal: str) -> TaskRecord | None:
        """A principal's task; None if there is none that has not expired. OSError if it cannot be read."""
        if not _ID.fullmatch(task_id):
            return None
        query = "SELECT body FROM tasks WHERE task_id = ? AND principal = ?"
        row = self._database.row(query, task_id, principal)
        record = TaskRecord.model_validate_json(row[0]) if row is not None else None
        return None if record is None or record.expires_at < time.time() else record

    def clean_up(self, ttl_ms: int) -> int:
        """Removes what has not been written for longer than a task is kept; returns how many tasks that were."""
        oldest = time.time() - ttl_ms / 1000
        return self._database.execute("DELETE FROM tasks WHERE updated_at < ?", oldest)


def put_task(db: "sqlite3.Connection", record: TaskRecord) -> None:
    """Writes a task within a transaction."""
    body = json.dumps(record.model_dump(exclude_none=True), separators=(",", ":"))
    values = (record.task_id, record.owner, record.updated_at, body)
    db.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?)", values)
