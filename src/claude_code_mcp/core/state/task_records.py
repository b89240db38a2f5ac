"""The last reported state of tasks, for later queries, also after a restart. All methods and functions block on the
disk: call them from a thread. A task is found by its unguessable id; another owner's task counts as absent."""

import json
import re
import time
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from .database import Database

if TYPE_CHECKING:
    import sqlite3

ENDED = frozenset({"completed", "failed", "cancelled"})
_ID = re.compile(r"[A-Za-z0-9_-]{20,64}")


class TaskRecord(BaseModel):
    """The last reported state of a task. `result` and `error` are in their wire format, redacted."""

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
    """The task records in a state directory."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, record: TaskRecord) -> None:
        """Replaces the record; on disk on return. Raises OSError; then the old one is unchanged."""
        self._database.write(lambda db: _put_task(db, record), durable=True)

    def read(self, task_id: str, principal: str) -> TaskRecord | None:
        """A principal's task; None if there is none or it has expired. Raises OSError."""
        if not _ID.fullmatch(task_id):
            return None
        query = "SELECT body FROM tasks WHERE task_id = ? AND principal = ?"
        row = self._database.row(query, task_id, principal)
        record = TaskRecord.model_validate_json(row[0]) if row is not None else None
        return None if record is None or record.expires_at < time.time() else record

    def clean_up(self, ttl_ms: int) -> int:
        """Removes expired tasks; returns the number."""
        oldest = time.time() - ttl_ms / 1000
        return self._database.execute("DELETE FROM tasks WHERE updated_at < ?", oldest)


def _put_task(db: "sqlite3.Connection", record: TaskRecord) -> None:
    """Writes a task within a transaction."""
    body = json.dumps(record.model_dump(exclude_none=True), separators=(",", ":"))
    values = (record.task_id, record.owner, record.updated_at, body)
    db.execute("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?, ?)", values)
