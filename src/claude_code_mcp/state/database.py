"""The state database: opening, migrating and checking the file, and transactions on it.

Every server and command of a user works on the same file, `state.sqlite3` in the state directory, in SQLite's WAL mode:
readers never wait for a writer, writers take turns, and a transaction is there whole or not at all, whoever is killed
when. A commit survives the end of every process. One with `durable=True` survives a failure of the machine too, and so
does everything that was committed before it.

What goes wrong is never taken for an absence. A file that cannot be opened, is damaged, is of a later version or lies
where files cannot be locked raises StateUnavailable, and nothing of it is changed. A transaction that cannot be done
raises StateFault, an OSError, and leaves everything as it was.

All methods block on the disk: call them from a thread. Any number of threads may.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from .. import __version__
from ..errors import StateUnavailable
from ..private_files import open_private, private_directory
from .schema import APPLICATION_ID, STEPS, VERSION

if TYPE_CHECKING:
    import sqlite3

ResultT = TypeVar("ResultT")
FILE_NAME = "state.sqlite3"
_OLDEST_SQLITE = (3, 37, 0)
"""The first one with STRICT tables."""
_BUSY_SECONDS = 20.0
"""How long a transaction waits for those of other processes before it fails."""
_WAL_BYTES = 8 << 20
"""To which the log beside the database is cut when it has been longer."""


class StateFault(OSError):
    """A transaction failed and changed nothing: the disk is full, the file is damaged, or another process held it."""


class Database:
    """One state database. It is opened, and made if there is none, when it is first used or by `open`."""

    def __init__(
        self, state_dir: Path, *, vfs: str | None = None, on_open: "Callable[[Database], object] | None" = None
    ) -> None:
        """`vfs` names another way of SQLite's to reach files than the platform's usual one. `on_open` is called when
        the database was opened, before anything else is done with it."""
        self.directory = state_dir
        self.path = state_dir / FILE_NAME
        self._vfs = vfs
        self._on_open = on_open
        # Apart, so that a reader in one thread does not wait for a writer in another, who may wait for the disk.
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._opening = threading.RLock()
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._ready = self._in_on_open = self._closed = False

    # -- transactions -----------------------------------------------------------------------------------------

    def read(self, work: Callable[["sqlite3.Connection"], ResultT]) -> ResultT:
        """What `work` reads, all of it as it was at one moment. StateFault if it cannot be read."""
        self.open()
        with self._reading, _faults(self.path):
            connection = self._usable(self._reader)
            connection.execute("BEGIN")
            try:
                return work(connection)
            finally:
                _end(connection, "ROLLBACK")

    def write(self, work: Callable[["sqlite3.Connection"], ResultT], *, durable: bool = False) -> ResultT:
        """Does what `work` does as one transaction: nobody else writes from its first statement on, and an exception
        takes all of it back. StateFault if it cannot be done. `durable` waits for the disk."""
        self.open()
        with self._writing, _faults(self.path):
            connection = self._usable(self._writer)
            if durable:
                connection.execute("PRAGMA synchronous = FULL")
            try:
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

    def make_durable(self) -> None:
        """Waits until everything that was committed so far would survive a failure of the machine."""
        # A commit in SQLite's FULL mode syncs the whole log, with all commits before it. One that changes nothing would
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
        """Opens the database, makes it or brings it to our version. StateUnavailable if it must not be used. Harmless
        if it is open."""
        if self._ready:
            return
        with self._opening:
            if self._closed:
                raise StateFault(errno.EBADF, "the state is closed", str(self.path))
            # Another thread may have been faster; and `on_open`, in this one, uses what is not ready for others yet.
            if self._ready or self._in_on_open:
                return
            with _refusals(self.path):
                self._open_file()
            if self._on_open is not None:
                self._in_on_open = True
                try:
                    self._on_open(self)
                finally:
                    self._in_on_open = False
            self._ready = True

    def _open_file(self) -> None:
        if self._writer is not None:  # what was to be done after the opening failed the last time
            return
        self._prepare_file()
        writer = self._connect()
        try:
            _check_header(writer, self.path)
            _migrate(writer, self.path)
            self._reader = self._connect()
        except BaseException:
            writer.close()
            raise
        self._writer = writer

    def _prepare_file(self) -> None:
        """The file, for its owner alone: SQLite gives those beside it the same mode.

        It is opened here only when it is made. Whoever closes a file gives up all locks that their process has on it,
        which those of other connections of this process would be.
        """
        private_directory(self.path.parent)
        if os.path.islink(self.path):
            raise StateUnavailable(f"{self.path} is a link. Remove it: the state of the server must be a file there.")
        with contextlib.suppress(FileExistsError):
            os.close(open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def _connect(self) -> "sqlite3.Connection":
        import sqlite3  # noqa: PLC0415 - takes a while, and the first answers on stdio need no state

        if sqlite3.sqlite_version_info < _OLDEST_SQLITE:
            needed = ".".join(map(str, _OLDEST_SQLITE))
            raise StateUnavailable(f"This Python has SQLite {sqlite3.sqlite_version}; the state needs {needed}.")
        address = self.path.absolute().as_uri() + (f"?vfs={self._vfs}" if self._vfs else "")
        connection = sqlite3.connect(
            address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StateUnavailable(
                    f"The state cannot be kept in {self.path.parent}: files cannot be shared and locked there, as on "
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
        """Reads the whole file and compares its structure. StateUnavailable if it is damaged; nothing can be read or
        written by this object any more then."""
        self.open()
        with _refusals(self.path):
            connection = self._connect()
            try:
                findings = [text for (text,) in connection.execute("PRAGMA quick_check(3)")]
            finally:
                connection.close()
        if findings != ["ok"]:
            self.close()  # what is there cannot be trusted, and must not be made worse
            raise _damaged(self.path, "; ".join(findings)[:300])

    def close(self) -> None:
        """Ends the use of the file; every later call fails. Harmless when repeated."""
        with self._opening, self._reading, self._writing:
            self._closed, self._ready = True, False
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None


# -- the file's version and its damage ------------------------------------------------------------------------


def _check_header(connection: "sqlite3.Connection", path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (application or tables):
        raise StateUnavailable(f"{path} is the database of another program. Move it away, or choose another directory.")
    if version > VERSION:
        (writer,) = connection.execute("SELECT value FROM facts WHERE name = 'written_by'").fetchone() or (
            "a later one",
        )
        raise StateUnavailable(
            f"The state in {path} was written by claude-code-mcp {writer} and has version {version}; this is "
            f"{__version__}, which knows versions up to {VERSION}. Use that one or a later one; nothing was changed."
        )


def _migrate(connection: "sqlite3.Connection", path: Path) -> None:
    """Applies the steps that are missing, all or none of them."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == VERSION:
        return
    # Another process may have been faster; from here on nobody else writes.
    connection.execute("BEGIN IMMEDIATE")
    try:
        _check_header(connection, path)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for step in STEPS[version:]:
            for statement in filter(None, map(str.strip, _statements(step))):
                connection.execute(statement)
        connection.execute("INSERT OR REPLACE INTO facts VALUES ('written_by', ?)", (__version__,))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        _end(connection, "ROLLBACK")
        raise


def _statements(step: str) -> Iterator[str]:
    """One by one: `executescript` would commit before each."""
    import sqlite3  # noqa: PLC0415

    statement = ""
    for line in step.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _end(connection: "sqlite3.Connection", statement: str) -> None:
    """Ends a transaction. SQLite may have ended it already, on a full disk for one."""
    if connection.in_transaction:
        connection.execute(statement)


def _damaged(path: Path, finding: str) -> StateUnavailable:
    return StateUnavailable(
        f"The state in {path} is damaged ({finding}). Nothing was changed. Restore the file from a copy, or move it "
        "away to begin without what is in it: limits, spending and owners of sessions are then not known any more."
    )


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Every failure to open the file is told as one."""
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
        code = errno.ENOSPC if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL else errno.EIO
        text = os.strerror(code) if code == errno.ENOSPC else str(error)
        raise StateFault(code, text, str(path)) from error
