"""Marks of sessions, such as pinned and archived, for all servers of the user. All methods and functions block on the
disk: call them from a thread."""

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ..model.session_id import is_session_id
from .database import Database

if TYPE_CHECKING:
    import sqlite3


class Mark(StrEnum):
    PINNED = "pinned"
    ARCHIVED = "archived"
    ORPHANED_COPY = "orphaned_copy"
    """Deleted on this disk, but a fleet still has a copy: `OrphanedCopies` of `plugins/fleet/session_copy.py` removes
    it."""
    RENAMED = "renamed"
    """Title, tag, pin or archive changed on this disk, and the fleet's copy must be updated."""


@dataclass(frozen=True, slots=True)
class MarkedSessions:
    """The ids of the sessions with each mark; the same object until the marks change."""

    pinned: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    orphaned_copy: frozenset[str] = frozenset()
    renamed: frozenset[str] = frozenset()


class Marks:
    """The marks in a state directory. Without one there are none, and none can be set."""

    def __init__(self, database: Database | None) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._change = -1
        self._marked = MarkedSessions()

    def read(self) -> MarkedSessions:
        """All marks, reloaded if they changed. Raises OSError."""
        if self._database is None:
            return self._marked
        # The marks and the number of the change they belong to must fit together for the next reader.
        with self._lock:
            change, rows = self._database.read(self._read_changes)
            if change != self._change:
                named = {mark.value: frozenset(each for each, name in rows if name == mark) for mark in Mark}
                self._marked = MarkedSessions(**named)
                self._change = change
            return self._marked

    def _read_changes(self, db: "sqlite3.Connection") -> tuple[int, list[Any]]:
        (change,) = db.execute("SELECT change FROM changes WHERE topic = 'marks'").fetchone()
        return change, [] if change == self._change else db.execute("SELECT session_id, mark FROM marks").fetchall()

    def set(self, session_id: str, mark: Mark, on: bool) -> None:
        """Sets or removes a session's mark; on disk on return. Raises OSError."""
        if self._database is None or not is_session_id(session_id):
            raise ValueError("there is nothing to mark")
        self._database.write(lambda db: _put_mark(db, session_id, mark, on), durable=True)


def _put_mark(db: "sqlite3.Connection", session_id: str, mark: str, on: bool) -> None:
    """Sets or removes a mark within a transaction."""
    if on:
        db.execute("INSERT OR IGNORE INTO marks VALUES (?, ?)", (session_id, mark))
    else:
        db.execute("DELETE FROM marks WHERE session_id = ? AND mark = ?", (session_id, mark))
    db.execute("UPDATE changes SET change = change + 1 WHERE topic = 'marks'")
