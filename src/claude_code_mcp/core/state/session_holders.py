"""Which servers live, and which of them has a session: leases, holders, and who wants it.

What a server has in the database only while it lives, such as reservations and deliveries, carries the server's id.
Each server holds an operating-system lock on a file of its own (`ServerLife`). Once that lock can be had by somebody
else, the server is gone and what it had may be removed or taken over. All methods
block on the disk.

A lease says that some server is the only writer of a session; a holder says which, so that it can be asked to let go of
a process that does nothing, and named if it is at work. What a server that has died left here counts no more. All
methods block on the disk and raise OSError.

The CLI has no lock of its own, and two writers would fork the transcript. A lease is an operating-system lock on a
small file, not a row of the database: it ends with the process that holds it, however that ends. The empty files stay:
to remove one could split two servers over an old and a new file of the same name.

A session has one lease per state directory, however its files are reached. Servers of versions before the database lock
another file, below a directory that is named after the CLI's configuration directory: where that directory exists, both
files are locked.
"""

import contextlib
import hashlib
import os
import re
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ProcessFailed, SessionBusy
from ..private_files import FILE, private_directory
from .database import Database

if TYPE_CHECKING:
    import sqlite3

    from filelock import FileLock


_SUFFIX = ".alive"
_ID = re.compile(r"[0-9a-f]{8,64}")


class ServerLife:
    """The life of one server, which its `id` names. It begins with `begin`, and ends with `end` or the process."""

    def __init__(self, state_dir: Path) -> None:
        self.id = uuid.uuid4().hex[:16]
        self._directory = state_dir / "servers"
        self.file = self._file(self.id)
        """Exists while the server lives, and is touched by others who want something of it."""
        self._lock: FileLock | None = None
        self._beginning = threading.Lock()
        self._ended = False

    @property
    def begun(self) -> bool:
        return self._lock is not None

    def begin(self) -> None:
        """Takes the lock by which others see that this server lives. Harmless when repeated; OSError if it cannot be
        taken."""
        with self._beginning:  # several threads may need it first
            if self._ended:
                raise OSError("the server has stopped")
            if self._lock is None:
                private_directory(self._directory)
                lock = _lock_on(self.file)
                lock.acquire()
                self._lock = lock

    def lives(self, server: str) -> bool:
        """Whether the server with this id lives; this one does."""
        if server == self.id:
            return True
        if not _ID.fullmatch(server):
            return False
        path = self._file(server)
        if not path.exists():
            return False
        lock = _lock_on(path)
        try:
            lock.acquire()
        except OSError:  # a lock that somebody holds is one too
            return True
        # Whoever has the lock is the only one: its server can not come back, since every life has a new id.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()
        return False

    def end(self) -> None:
        """Others see from now on that this server is gone. Harmless when repeated."""
        with self._beginning:
            self._ended = True
            lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                # While the lock is held: after its release another server, in `lives`, may have it.
                self.file.unlink()
            lock.release()

    def wake(self, server: str) -> None:
        """Has another server look at what is wanted of it. Harmless if it is gone."""
        with contextlib.suppress(OSError):
            os.utime(self._file(server))

    def _file(self, server: str) -> Path:
        return self._directory / f"{server}{_SUFFIX}"


def _lock_on(path: Path) -> "FileLock":
    from filelock import FileLock  # noqa: PLC0415 - takes a while, and a first call needs none

    return FileLock(path, timeout=0, mode=FILE, thread_local=False)


# -- session holders --------------------------------------------------------------------------------------------------


_WANTED, _REFUSED = 1, -1


@dataclass(frozen=True, slots=True)
class Holder:
    """A server that has a process of a session."""

    description: str
    """Who it is, in the words of a message to a person."""
    refuses: bool
    """Whether it was asked for the session and is at work on it."""
    server: str
    """Its id."""


@dataclass(frozen=True, slots=True)
class QuestionElsewhere:
    """A question that is open in another server."""

    question_id: str
    line: str
    """What it asks, in one line without secrets."""
    asked_at: float


class SessionHolders:
    """The holders of sessions, as one server sees and announces them."""

    def __init__(self, database: Database, description: str) -> None:
        self._database = database
        self._life = ServerLife(database.directory)
        self._description = description

    def announce(self, session_id: str, token: str) -> None:
        """This server has a process of the session; `token` is new for each."""
        # Before the row is there: one of a server that does not seem to live counts for nothing.
        self._life.begin()
        statement = "INSERT OR REPLACE INTO holders VALUES (?, ?, ?, ?, 0)"
        self._database.execute(statement, session_id, self._life.id, token, self._description)

    def withdraw(self, token: str) -> None:
        """The process is gone. Harmless if another one was announced since."""
        self._database.execute("DELETE FROM holders WHERE token = ?", token)

    def want(self, session_id: str) -> Holder | None:
        """Asks the server that has the session to let go of it. None if no server that lives has announced it."""

        def change(db: "sqlite3.Connection") -> Holder | None:
            holder = self._holder(db, session_id)
            if holder is not None:
                db.execute("UPDATE holders SET wanted = ? WHERE session_id = ?", (_WANTED, session_id))
            return holder

        holder = self._database.write(change)
        if holder is not None:
            self._life.wake(holder.server)  # after the commit: whoever is woken must find what is wanted
        return holder

    def requests_file(self) -> Path:
        """The file that changes when somebody wants a session of this server; its directory is there. Every write to
        the database itself would wake whoever follows that, the server's own first of all."""
        self._database.open()  # first: a restore that is under way puts another directory in the place of this one
        private_directory(self._life.file.parent)
        return self._life.file

    def holder(self, session_id: str) -> Holder | None:
        """The living server that has the session; None if that is this one, or if none has announced it."""
        return self._database.read(lambda db: self._holder(db, session_id))

    def _holder(self, db: "sqlite3.Connection", session_id: str) -> Holder | None:
        query = "SELECT server, description, wanted FROM holders WHERE session_id = ?"
        row = db.execute(query, (session_id,)).fetchone()
        if row is None or row[0] == self._life.id or not self._life.lives(row[0]):
            return None
        return Holder(row[1], row[2] == _REFUSED, row[0])

    def wanted(self) -> list[str]:
        """The sessions of this server that others want."""
        query = "SELECT session_id FROM holders WHERE server = ? AND wanted = ?"
        rows = self._database.rows(query, self._life.id, _WANTED)
        return [session_id for (session_id,) in rows]

    def refuse(self, session_id: str) -> None:
        """Tells who wants the session that this server is at work on it."""
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
        """The questions of a session that are open in other servers that live, oldest first."""
        query = "SELECT server, question_id, line, asked_at FROM open_questions WHERE session_id = ? ORDER BY asked_at"
        rows = self._database.rows(query, session_id)
        return [
            QuestionElsewhere(question_id, line, asked_at)
            for server, question_id, line, asked_at in rows
            if server != self._life.id and self._life.lives(server)
        ]

    def close(self) -> None:
        """This server has no process and no question any more."""

        def change(db: "sqlite3.Connection") -> None:
            db.execute("DELETE FROM holders WHERE server = ?", (self._life.id,))
            db.execute("DELETE FROM open_questions WHERE server = ?", (self._life.id,))

        try:
            if self._life.begun:
                self._database.write(change)
        finally:
            # Even if the rows could not be removed: with the life ended they count no more.
            self._life.end()


# -- leases -----------------------------------------------------------------------------------------------------------


def directory_name(config_dir: str) -> str:
    """The name of what belongs to one configuration directory of the CLI."""
    return hashlib.sha256(os.path.realpath(config_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Leases:
    """The leases of one server. All methods block on the disk."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "locks"

    def take(self, session_id: str) -> "Lease":
        """The lease on a session.

        Raises:
            SessionBusy: it is held, even by another `Leases` of this process.
            ProcessFailed: the lock file cannot be used. Without it two servers could write to one transcript.
        """
        try:
            if not self._directory.is_dir():
                private_directory(self._directory)
            lock = _lock_on(self._directory / f"{session_id}.lock")
            lock.acquire()
        except TimeoutError:
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        except OSError as error:
            raise ProcessFailed(f"The lock of session {session_id} cannot be taken: {error}") from None
        return Lease(lock)

    def held(self, session_id: str) -> bool:
        """Whether some server runs the session just now. Takes the lock for an instant: there is no other test.
        ProcessFailed if that cannot be told."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        return False

    def may_be_held(self, session_id: str) -> bool:
        """As `held`, and True where that cannot be told: a session that runs must never be reported as one that
        nobody has."""
        try:
            return self.held(session_id)
        except ProcessFailed:
            return True

    def ever_taken(self, session_id: str) -> bool:
        """Whether any server of this user has ever run a session with this id: the file of its lease stays. True if
        that cannot be told: an id that may be somebody's is not to be taken."""
        try:
            os.lstat(self._directory / f"{session_id}.lock")
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, lock: "FileLock") -> None:
        self._lock = lock

    def release(self) -> None:
        """Lets others write to the session. Releasing twice is harmless."""
        self._lock.release()
