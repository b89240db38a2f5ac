"""What is known of files, kept in an SQLite file between runs: by path, with the time and the size it was known at.

`cost_table.py` keeps what sessions cost in the same file.

It is a cache and nothing else, which may be deleted at any time. Each version of its contents has a file of its own
(`file_name`), so that servers of several versions do not spoil each other's; one that no server has written to for a
month is removed. One that is damaged is removed and built anew; where none can be written, everything is known for this
process alone. One that another process keeps locked knows nothing for a moment, and notes nothing: callers read the
files instead. Several threads and several processes may use one file. It has the beginnings of prompts in it, so it is
for its owner alone. All functions block on the disk.
"""

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..private_files import open_private, private_directory
from .file_changes import File

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)
VERSION = 2
"""To be raised whenever the tables, or the fields of a summary, are others."""
_ABANDONED_SECONDS = 30 * 86_400
_BUSY_SECONDS = 2.0
_REST_SECONDS = 2.0
"""For how long one that was locked is left alone, so that nobody waits for it once for every file."""
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Failures that pass, unlike those of a directory that cannot be written to."""
_AT_ONCE = 500
"""Values in one statement: SQLite takes no more than 999 everywhere."""
SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS files (
        path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, facts TEXT NOT NULL,
        searched TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS spent_sessions (
        session_id TEXT PRIMARY KEY, basis TEXT NOT NULL, owner TEXT NOT NULL, project TEXT NOT NULL,
        title TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS costs (
        session_id TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL, usd REAL NOT NULL, input REAL NOT NULL,
        output REAL NOT NULL, unpriced REAL NOT NULL, PRIMARY KEY (session_id, day, model)
    ) WITHOUT ROWID
    """,
)
_TABLES = ("files", "spent_sessions", "costs")
_Result = TypeVar("_Result")


def file_name(name: str) -> str:
    """The name of the file for an index of this name."""
    return f"{name}.{VERSION}.sqlite3"


def storable(text: str) -> str:
    """Without what no database takes: parts of a name that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


class FileIndex:
    """Facts about files, as texts. `path` is None for an index that is kept in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._rests_until = 0.0
        self.generation = 0
        """Another one whenever the file was opened anew: then nothing can be said of what is in it."""

    def known(self, files: Iterable[File]) -> dict[str, str]:
        """The facts of those files that are still as they were when the facts were noted, by path."""
        by_path = {file.path: file for file in files}
        return {
            path: facts
            for path, mtime_ns, size, facts in self._rows("path, mtime_ns, size, facts", by_path)
            if (by_path[path].mtime_ns, by_path[path].size) == (mtime_ns, size)
        }

    def earlier(self, files: Iterable[File]) -> dict[str, tuple[int, str]]:
        """Size and facts as they were last noted, by path, whatever has become of the files since."""
        paths = [file.path for file in files]
        return {path: (size, facts) for path, size, facts in self._rows("path, size, facts", paths)}

    def current(self, files: Mapping[str, File]) -> set[str]:
        """The paths of those files that need not be read again."""
        rows = self._run("SELECT path, mtime_ns, size FROM files", ())
        return {
            path
            for path, mtime_ns, size in rows or ()
            if (file := files.get(path)) is not None and (file.mtime_ns, file.size) == (mtime_ns, size)
        }

    def containing(self, text: str) -> set[str] | None:
        """The paths whose searched text contains this, which must be casefolded; None if that cannot be told now."""
        rows = self._run("SELECT path FROM files WHERE instr(searched, ?) > 0", (storable(text),))
        return None if rows is None else {path for (path,) in rows}

    def note(self, known: Iterable[tuple[File, str, str]]) -> bool:
        """Notes facts and the text to be searched, all or none of them; returns whether it has. Names that are not
        UTF-8 are passed over."""
        rows = [
            (file.path, file.mtime_ns, file.size, facts, storable(searched))
            for file, facts, searched in known
            if storable(file.path) == file.path
        ]
        return not rows or self._run("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows, many=True) is not None

    def forget(self, paths: Iterable[str]) -> None:
        """Removes what is known of files that are gone."""
        self._run("DELETE FROM files WHERE path = ?", [(path,) for path in paths], many=True)

    def paths(self) -> set[str]:
        return {path for (path,) in self._run("SELECT path FROM files", ()) or ()}

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _rows(self, columns: str, paths: Iterable[str]) -> list[tuple]:  # type: ignore[type-arg]  # as SQLite has them
        wanted = [path for path in paths if storable(path) == path]
        rows: list[tuple] = []  # type: ignore[type-arg]
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            rows += self._run(f"SELECT {columns} FROM files WHERE path IN ({marks})", some) or ()  # noqa: S608 - no values
        return rows

    def _run(self, statement: str, values: object, *, many: bool = False) -> list[tuple] | None:  # type: ignore[type-arg]
        """The rows; None if the index cannot be used now."""

        def work(connection: "sqlite3.Connection") -> list[tuple]:  # type: ignore[type-arg]
            if many:
                connection.executemany(statement, values)  # type: ignore[arg-type]
                return []
            return connection.execute(statement, values).fetchall()  # type: ignore[arg-type]

        return self.run(work)

    def run(self, work: "Callable[[sqlite3.Connection], _Result]") -> _Result | None:
        """What `work` returns, which is called within a transaction and may be called twice; None if the index cannot
        be used now."""
        import sqlite3  # noqa: PLC0415 - not before an index is used

        with self._lock:
            if time.monotonic() < self._rests_until:
                return None
            for _ in range(2):
                try:
                    connection = self._connection = self._connection or self._open()
                    with connection:
                        return work(connection)
                except sqlite3.OperationalError as error:  # locked by another process, or a disk that is full
                    log.debug("the index is not used: %s", error)
                    self._drop()
                    self._rests_until = time.monotonic() + _REST_SECONDS
                    return None
                except sqlite3.DatabaseError as error:
                    log.warning("the index is damaged and built anew: %s", error)
                    self._remove()
            return None

    def _open(self) -> "sqlite3.Connection":
        self.generation += 1
        try:
            connection = self._connect(str(self._prepared())) if self._path is not None else None
        except OSError as error:
            if error.errno in _PASSING:
                import sqlite3  # noqa: PLC0415

                raise sqlite3.OperationalError(str(error)) from error
            log.warning("the index is kept in memory: %s", error)
            connection = None
        return connection or self._connect(":memory:")

    def _prepared(self) -> Path:
        """The file, made for its owner alone: SQLite gives those beside it the same mode."""
        assert self._path is not None
        private_directory(self._path.parent)
        _remove_abandoned(self._path)
        os.close(open_private(self._path, os.O_RDWR | os.O_CREAT))
        return self._path

    def _connect(self, path: str) -> "sqlite3.Connection":
        import sqlite3  # noqa: PLC0415 - not before an index is used

        connection = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")  # what a crash costs is read again
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version not in (0, VERSION):
                for table in _TABLES:
                    connection.execute(f"DROP TABLE IF EXISTS {table}")
            for table in SCHEMA:
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is given up, whatever is wrong with it
                connection.close()

    def _remove(self) -> None:
        self._drop()
        for beside in ("", "-wal", "-shm"):
            if self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._path}{beside}")


def _remove_abandoned(path: Path) -> None:
    """Removes indexes of the same files that other versions made and have not written to for a month."""
    name = path.name.removesuffix(f".{VERSION}.sqlite3")
    with contextlib.suppress(OSError):
        for other in path.parent.glob("*.sqlite3*"):
            belongs = other.name.startswith(f"{name}.") and not other.name.startswith(path.name)
            if belongs and time.time() - other.stat().st_mtime > _ABANDONED_SECONDS:
                other.unlink()
