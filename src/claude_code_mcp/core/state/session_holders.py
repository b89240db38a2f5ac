"""Which server holds a session, and which servers request it.

A lease (`session_leases.py`) says that some server is the only writer of a session; a holder says which, so that it can
be asked to release an idle process, or be named if it is busy. Rows of dead servers are ignored. All methods block on
the disk and raise OSError.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..private_files import private_directory
from .database import Database

if TYPE_CHECKING:
    import sqlite3

from .server_life import ServerLife

_WANTED, _REFUSED = 1, -1


@dataclass(frozen=True, slots=True)
class Holder:
    """A server with a process of a session."""

    description: str
    """A human-readable description of it."""
    refuses: bool
    """Whether it was asked for the session and is busy with it."""
    server: str
    """The server's id."""


@dataclass(frozen=True, slots=True)
class QuestionElsewhere:
    """A question that is open in another server."""

    question_id: str
    line: str
    """Its text on one line, without secrets."""
    asked_at: float


class SessionHolders:
    """The holders of sessions, as one server sees and publishes them."""

    def __init__(self, database: Database, description: str) -> None:
        self._database = database
        self._life = ServerLife(database.directory)
        self._description = description

    def announce(self, session_id: str, token: str) -> None:
        """This server has a process of the session; `token` is unique for each."""
        # Before the row exists: a row of a server that does not seem to live is ignored.
        self._life.begin()
        statement = "INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?, 0)"
        self._database.execute(statement, session_id, self._life.id, token, self._description)

    def withdraw(self, token: str) -> None:
        """The process is gone. Does nothing if another one was announced since."""
        self._database.execute("DELETE FROM holders WHERE token = ?", token)

    def want(self, session_id: str) -> Holder | None:
        """Asks the session's server to release it. None if no living server has announced it."""

        def change(db: "sqlite3.Connection") -> Holder | None:
            holder = self._holder(db, session_id)
            if holder is not None:
                db.execute("UPDATE holders SET wanted = ? WHERE session_id = ?", (_WANTED, session_id))
            return holder

        holder = self._database.write(change)
        if holder is not None:
            self._life.wake(holder.server)  # after the commit: the woken server must find the request
        return holder

    def requests_file(self) -> Path:
        """The file that changes when another server requests a session of this one; its directory exists. Writes to the
        database itself would wake every follower, including the writer."""
        self._database.open()  # first: a running restore replaces this directory
        private_directory(self._life.file.parent)
        return self._life.file

    def holder(self, session_id: str) -> Holder | None:
        """The living server that holds the session; None if it is this one, or if none has announced it."""
        return self._database.read(lambda db: self._holder(db, session_id))

    def _holder(self, db: "sqlite3.Connection", session_id: str) -> Holder | None:
        query = "SELECT server, description, wanted FROM holders WHERE session_id = ?"
        row = db.execute(query, (session_id,)).fetchone()
        if row is None or row[0] == self._life.id or not self._life.lives(row[0]):
            return None
        return Holder(row[1], row[2] == _REFUSED, row[0])

    def wanted(self) -> list[str]:
        """The sessions of this server that others request."""
        query = "SELECT session_id FROM holders WHERE server = ? AND wanted = ?"
        rows = self._database.rows(query, self._life.id, _WANTED)
        return [session_id for (session_id,) in rows]

    def refuse(self, session_id: str) -> None:
        """Tells requesters of the session that this server is busy with it."""
        statement = "UPDATE holders SET wanted = ? WHERE session_id = ? AND server = ?"
        self._database.execute(statement, _REFUSED, session_id, self._life.id)

    # -- questions --------------------------------------------------------------------------------------------

    def question_opened(self, session_id: str, question_id: str, line: str, asked_at: float) -> None:
        """A question of the session is open in this server."""
        self._life.begin()
        statement = "INSERT OR REPLACE INTO open_questions VALUES (?, ?, ?, ?, ?)"
        self._database.execute(statement, question_id, session_id, self._life.id, line, asked_at)

    def question_closed(self, question_id: str) -> None:
        self._database.execute("DELETE FROM open_questions WHERE question_id = ?", question_id)

    def questions_elsewhere(self, session_id: str) -> list[QuestionElsewhere]:
        """The session's questions that are open in other living servers, oldest first."""
        query = "SELECT server, question_id, line, asked_at FROM open_questions WHERE session_id = ? ORDER BY asked_at"
        rows = self._database.rows(query, session_id)
        return [
            QuestionElsewhere(question_id, line, asked_at)
            for server, question_id, line, asked_at in rows
            if server != self._life.id and self._life.lives(server)
        ]

    def close(self) -> None:
        """This server no longer has processes or questions."""

        def change(db: "sqlite3.Connection") -> None:
            db.execute("DELETE FROM holders WHERE server = ?", (self._life.id,))
            db.execute("DELETE FROM open_questions WHERE server = ?", (self._life.id,))

        try:
            if self._life.begun:
                self._database.write(change)
        finally:
            # Even if the rows could not be removed: once the life has ended, they no longer count.
            self._life.end()
