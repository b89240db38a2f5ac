"""The state database: its tables, opening, migrating and checking the file, and transactions on it.

The version of a database is the number of steps that were applied to it (`PRAGMA user_version`). Until the first
release there is one step, and a change of the schema changes it. A released step never changes: after that, a change of
the schema is a new step at the end. A database of a later version than ours is refused and left unchanged.

Every server and command of a user works on the same file, `state.sqlite3` in the state directory, in SQLite's WAL mode.
Readers never wait for a writer, writers take turns, and a transaction is applied completely or not at all, even if a
process is killed. A commit survives the end of every process. A commit with `durable=True`, and everything committed
before it, also survives a failure of the machine.

An error is never treated as absence. A file that cannot be opened, is damaged, has a later version or is on a file
system without locks raises StateUnavailable and stays unchanged. A transaction that fails raises StateFault, an
OSError, and changes nothing.

All methods block on the disk: call them from a thread. Any number of threads may call them at once.
"""

import contextlib
import errno
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ... import __version__
from ..errors import StateUnavailable
from ..private_files import open_private, private_directory

if TYPE_CHECKING:
    import sqlite3
from .interrupted_restore import undo_interrupted_restore

APPLICATION_ID = 0x43434D53
"""In the file's header, so that a database of another program is recognized."""

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

    -- `change` is taken from `changes` at every write, so that a reader finds what is new since it last looked;
    -- a removal gives all readers a new `epoch` instead, after which they read everything again.
    CREATE TABLE changes (topic TEXT PRIMARY KEY, change INTEGER NOT NULL, epoch INTEGER NOT NULL) STRICT;
    INSERT INTO changes VALUES ('sessions', 0, 0), ('marks', 0, 0), ('durable', 0, 0);

    -- What a listing shows stands before `body`: a long body lies on pages of its own, which a listing passes over.
    CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        revision INTEGER NOT NULL,
        change INTEGER NOT NULL,
        principal TEXT NOT NULL,
        config_dir TEXT NOT NULL,
        written_at REAL NOT NULL,
        running INTEGER NOT NULL,
        cancelled INTEGER NOT NULL,
        state TEXT NOT NULL,
        usage TEXT NOT NULL,
        checksum BLOB NOT NULL,
        body TEXT NOT NULL,
        continues_at REAL  -- when it continues automatically after a usage limit
    ) STRICT;
    CREATE INDEX sessions_by_change ON sessions (change);
    CREATE INDEX sessions_that_continue ON sessions (config_dir, continues_at, session_id, principal)
        WHERE continues_at IS NOT NULL;

    CREATE TABLE holders (
        session_id TEXT PRIMARY KEY, server TEXT NOT NULL, token TEXT NOT NULL, description TEXT NOT NULL,
        wanted INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE open_questions (
        question_id TEXT PRIMARY KEY, session_id TEXT NOT NULL, server TEXT NOT NULL, line TEXT NOT NULL,
        asked_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE moved_ids (
        old_id TEXT PRIMARY KEY, new_id TEXT NOT NULL, config_dir TEXT NOT NULL, written_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE marks (
        session_id TEXT NOT NULL, mark TEXT NOT NULL, PRIMARY KEY (session_id, mark)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE spending (
        day TEXT NOT NULL, principal TEXT NOT NULL, session_id TEXT NOT NULL, usd REAL NOT NULL,
        PRIMARY KEY (day, principal, session_id)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE reservations (
        session_id TEXT PRIMARY KEY, principal TEXT NOT NULL, server TEXT NOT NULL, remaining REAL NOT NULL,
        groups TEXT NOT NULL DEFAULT '[]'
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE tasks (
        task_id TEXT PRIMARY KEY, principal TEXT NOT NULL, updated_at REAL NOT NULL, body TEXT NOT NULL
    ) STRICT;

    CREATE TABLE tickets (
        hash TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, expires_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE sign_ins (
        id TEXT PRIMARY KEY, principal TEXT NOT NULL, credential TEXT NOT NULL, device TEXT NOT NULL,
        csrf_hash TEXT NOT NULL, created_at REAL NOT NULL, used_at REAL NOT NULL
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE documents (
        kind TEXT NOT NULL, key TEXT NOT NULL, written_at REAL NOT NULL, body TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) STRICT;

    -- `target` is the session that a message went to, which for one that begins a session is not the one it named.
    CREATE TABLE message_keys (
        principal TEXT NOT NULL, session_id TEXT NOT NULL, key TEXT NOT NULL, message_id TEXT NOT NULL,
        digest TEXT NOT NULL, target TEXT NOT NULL, accepted INTEGER NOT NULL, server TEXT NOT NULL, at REAL NOT NULL,
        PRIMARY KEY (principal, session_id, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX message_keys_by_age ON message_keys (principal, at);

    -- What was spent by people while they were in a group; `groups` are those that a reservation counts for, as JSON.
    CREATE TABLE group_spending (
        day TEXT NOT NULL, group_name TEXT NOT NULL, principal TEXT NOT NULL, usd REAL NOT NULL,
        PRIMARY KEY (day, group_name, principal)
    ) STRICT, WITHOUT ROWID;
    """,
)

VERSION = len(STEPS)


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a plug-in. Their version is the number of `steps` that were applied; like ours, a released step
    never changes."""

    owner: str
    """The name of the plug-in."""
    steps: tuple[str, ...]

    @property
    def fact(self) -> str:
        """The name of the row in `facts` with the version."""
        return f"tables:{self.owner}"


ResultT = TypeVar("ResultT")
FILE_NAME = "state.sqlite3"
_MIN_SQLITE = (3, 37, 0)
"""The first version with STRICT tables."""
_BUSY_SECONDS = 20.0
"""Seconds that a transaction waits for other processes before it fails."""
_BUSY_PAUSE = 0.01
"""Seconds between attempts in cases where SQLite itself does not wait."""
_WAL_BYTES = 8 << 20
"""The size to which the write-ahead log is truncated when it has grown longer."""


class StateFault(OSError):
    """A transaction failed and changed nothing: the disk is full, the file is damaged, or another process held it too
    long."""


class Database:
    """One state database. It is opened, and created if missing, on first use or by `open`."""

    def __init__(self, state_dir: Path, *, vfs: str | None = None) -> None:
        """`vfs` names an SQLite VFS to use instead of the platform's default."""
        self.directory = state_dir
        self.path = state_dir / FILE_NAME
        self._vfs = vfs
        # Separate locks: a reader in one thread must not wait for a writer in another, which may wait for the disk.
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._opening = threading.Lock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._ready = self._closed = False
        self._listing = threading.Lock()
        self._tables: dict[str, Tables] = {}
        """The plug-in tables to create, by plug-in."""
        self._made: set[Tables] = set()
        """The plug-in tables that exist."""

    def use(self, tables: Tables) -> None:
        """Creates this plug-in's tables in the next transaction. Does not wait for the disk."""
        with self._listing:
            if self._tables.get(tables.owner) != tables:
                self._tables[tables.owner] = tables
                self._ready = False

    # -- transactions -----------------------------------------------------------------------------------------

    def read(self, work: Callable[["sqlite3.Connection"], ResultT]) -> ResultT:
        """The result of `work`, which reads a consistent snapshot. Raises StateFault if it cannot be read."""
        self.open()
        with self._reading, _faults(self.path):
            connection = self._usable(self._reader)
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                _end(connection, "ROLLBACK")

    def write(self, work: Callable[["sqlite3.Connection"], ResultT], *, durable: bool = False) -> ResultT:
        """Runs `work` as one transaction: no other writer is active from its first statement on, and an exception rolls
        everything back. Raises StateFault. `durable` waits for the disk."""
        self.open()
        with self._writing, _faults(self.path):
            connection = self._usable(self._writer)
            if durable:
                # Outside of the transaction: within one SQLite refuses the change.
                connection.execute("PRAGMA synchronous = FULL")
            try:
                # Immediate: a transaction that reads before it writes fails if another process has written in between.
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = work(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    _end(connection, "ROLLBACK")
                    raise
                return result
            finally:
                if durable:
                    connection.execute("PRAGMA synchronous = NORMAL")

    def row(self, query: str, *values: Any) -> Any:
        """The first row of a query; None if there is none. Raises StateFault."""
        return self.read(lambda db: db.execute(query, values).fetchone())

    def rows(self, query: str, *values: Any) -> list[Any]:
        """All rows of a query. Raises StateFault."""
        return self.read(lambda db: db.execute(query, values).fetchall())

    def execute(self, statement: str, *values: Any, durable: bool = False) -> int:
        """Runs one statement as a transaction; returns the number of changed rows. Raises StateFault."""
        return self.write(lambda db: db.execute(statement, values).rowcount, durable=durable)

    def make_durable(self) -> None:
        """Waits until everything committed so far would survive a crash of the machine."""
        # A commit in SQLite's FULL mode syncs the whole log with all earlier commits. A commit without changes would
        # not be written at all.
        self.write(
            lambda db: db.execute("UPDATE changes SET change = change + 1 WHERE topic = 'durable'"), durable=True
        )

    def _usable(self, connection: "sqlite3.Connection | None") -> "sqlite3.Connection":
        if connection is None:
            raise StateFault(errno.EBADF, "the state is closed", str(self.path))
        return connection

    # -- opening ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Opens the database, creates it or migrates it to our version. Raises StateUnavailable if it must not be used.
        May be repeated."""
        # Without the lock, because every call passes here. It changes when the database is closed or a plug-in adds
        # tables.
        if self._ready:
            return
        with self._opening:
            if self._closed:
                raise StateFault(errno.EBADF, "the state is closed", str(self.path))
            with _refusals(self.path):
                if self._writer is None:
                    self._open_file()
                while not self._is_complete():
                    with self._writing:
                        for tables in [each for each in self._tables.values() if each not in self._made]:
                            _migrate_tables(self._usable(self._writer), self.path, tables)
                            self._made.add(tables)

    def _is_complete(self) -> bool:
        """Whether all tables exist. From then on other threads use the database without waiting for the opening."""
        with self._listing:
            self._ready = self._made.issuperset(self._tables.values())
        return self._ready

    def _open_file(self) -> None:
        self._prepare_file()
        writer = self._connect()
        try:
            # In one transaction: another server may be creating the tables right now, and its partial result would look
            # like the file of another program.
            writer.execute("BEGIN")
            _check_header(writer, self.path)
            writer.execute("COMMIT")
            _migrate(writer, self.path)
            self._reader = self._connect()
        except BaseException:
            writer.close()
            raise
        self._writer = writer

    def _prepare_file(self) -> None:
        """Creates the file, private to its owner: SQLite gives the files next to it the same mode. It is opened here
        only to create it, because closing a file releases all of the process's locks on it, including those of other
        connections."""
        undo_interrupted_restore(self.path.parent)
        private_directory(self.path.parent)
        if os.path.islink(self.path):
            raise StateUnavailable(f"{self.path} is a link. Remove it: the state of the server must be a file there.")
        with contextlib.suppress(FileExistsError):
            os.close(open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def _connect(self) -> "sqlite3.Connection":
        import sqlite3  # noqa: PLC0415 - takes a while, and the first answers on stdio need no state

        if sqlite3.sqlite_version_info < _MIN_SQLITE:
            needed = ".".join(map(str, _MIN_SQLITE))
            raise StateUnavailable(f"This Python has SQLite {sqlite3.sqlite_version}; the state needs {needed}.")
        address = self.path.absolute().as_uri() + (f"?vfs={self._vfs}" if self._vfs else "")
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            # SQLite does not fail if it cannot use this mode; it returns the current mode.
            if _journal_mode(connection) != "wal":
                raise StateUnavailable(
                    f"The state cannot be kept in {self.path.parent}: SQLite cannot share and lock files there, as on "
                    "some network file systems. Set CLAUDE_CODE_MCP_STATE_DIR to a directory on a local disk."
                )
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        except BaseException:
            connection.close()
            raise
        return connection

    def check(self) -> None:
        """Reads the whole file and compares its structure. Raises StateUnavailable if it is damaged; this object then
        refuses all reads and writes."""
        self.open()
        with _refusals(self.path):
            connection = self._connect()
            try:
                findings = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
            finally:
                connection.close()
        if findings != ["ok"]:
            self.close()  # its contents cannot be trusted, and must not be damaged further
            raise _damaged(self.path, "; ".join(findings)[:300])

    def copy_to(self, path: Path) -> None:
        """Writes a consistent copy to a new file, whatever is written meanwhile. Raises StateUnavailable if it cannot
        be read or written."""
        self.open()
        import sqlite3  # noqa: PLC0415

        with (
            _refusals(self.path),
            contextlib.closing(self._connect()) as connection,
            contextlib.closing(sqlite3.connect(path)) as copy,
        ):
            connection.backup(copy)

    def close(self) -> None:
        """Closes the file; every later call fails. May be repeated."""
        # All three, so that no transaction of another thread is cut off in the middle.
        with self._opening, self._reading, self._writing:
            self._closed, self._ready = True, False
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None


def _journal_mode(connection: "sqlite3.Connection") -> str:
    """Enables the write-ahead log; returns the database's journal mode. Retries here while other processes do the same,
    as when servers start together on a new directory: SQLite reports the lock without the wait that every other
    statement has, because two that wait for each other while changing the mode would wait forever."""
    import sqlite3  # noqa: PLC0415

    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(_BUSY_PAUSE)


def _check_header(connection: "sqlite3.Connection", path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise StateUnavailable(f"{path} is the database of another program. Move it away, or choose another directory.")
    if version > VERSION:
        (writer,) = connection.execute("SELECT value FROM facts WHERE name = 'written_by'").fetchone() or (
            "a later version",
        )
        raise StateUnavailable(
            f"The state in {path} was written by claude-code-mcp {writer} and has version {version}; this is "
            f"{__version__}, which supports versions up to {VERSION}. Use that release or a later one; nothing was "
            "changed."
        )


def _migrate(connection: "sqlite3.Connection", path: Path) -> None:
    """Applies the missing steps, all or none."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    # Another process may have been faster; from here on no other process writes.
    connection.execute("BEGIN IMMEDIATE")
    try:
        _check_header(connection, path)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in STEPS[version:]:
            for statement in filter(None, map(str.strip, _statements(step))):
                connection.execute(statement)
        # The header is changed within the same transaction as the tables:
        # one without the other would be refused or migrated twice.
        connection.execute("INSERT OR REPLACE INTO facts VALUES ('written_by', ?)", (__version__,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        _end(connection, "ROLLBACK")
        raise


def _migrate_tables(connection: "sqlite3.Connection", path: Path, tables: Tables) -> None:
    """Applies a plug-in's missing steps, all or none."""

    def applied() -> int:
        row = connection.execute("SELECT value FROM facts WHERE name = ?", (tables.fact,)).fetchone()
        return int(row[0]) if row is not None else 0

    if applied() == len(tables.steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = applied()
        if version > len(tables.steps):
            raise StateUnavailable(
                f"The tables of the plug-in {tables.owner} in {path} have version {version}; the installed one "
                f"supports versions up to {len(tables.steps)}. Update the plug-in; nothing was changed."
            )
        for step in tables.steps[version:]:
            for statement in filter(None, map(str.strip, _statements(step))):
                connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (tables.fact, str(len(tables.steps))))
        connection.execute("COMMIT")
    except BaseException:
        _end(connection, "ROLLBACK")
        raise


def _statements(step: str) -> Iterator[str]:
    """One by one, because `executescript` would commit before each."""
    import sqlite3  # noqa: PLC0415

    statement = ""
    for line in step.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def hash_of(secret: str) -> str:
    """The hash that represents a secret in the database."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def drop_oldest(
    db: "sqlite3.Connection", table: str, key: str, age: str, owner_column: str, owner: str, most: int
) -> None:
    """Keeps at most this many rows of an owner, the newest; within a transaction. All names are ours."""
    db.execute(
        f"DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE {owner_column} = ?"  # noqa: S608
        f" ORDER BY {age} DESC LIMIT -1 OFFSET ?)",
        (owner, most),
    )


def _end(connection: "sqlite3.Connection", statement: str) -> None:
    """Ends a transaction, unless SQLite has ended it already, for example on a full disk."""
    if connection.in_transaction:
        connection.execute(statement)


def _damaged(path: Path, finding: str) -> StateUnavailable:
    return StateUnavailable(
        f"The state in {path} is damaged ({finding}). Nothing was changed. Restore the file from a backup, or move it "
        "away to start with an empty state: limits, spending and session owners are then lost."
    )


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turns every failure to open the file into StateUnavailable."""
    import sqlite3  # noqa: PLC0415

    try:
        yield
    except sqlite3.OperationalError as error:
        raise StateUnavailable(f"The state in {path} cannot be opened: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise StateUnavailable(f"The state in {path} cannot be opened: {error.strerror or error}.") from error


@contextlib.contextmanager
def _faults(path: Path) -> Iterator[None]:
    import sqlite3  # noqa: PLC0415

    try:
        yield
    except sqlite3.Error as error:
        # A full disk has a separate code, because a person can fix it.
        code = errno.ENOSPC if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL else errno.EIO
        text = os.strerror(code) if code == errno.ENOSPC else str(error)
        raise StateFault(code, text, str(path)) from error
