"""Facts about files that are kept between runs, and which files have changed since they were last read.

`FileTable` scans its directories once. On Linux the kernel then reports every change (inotify), and the next call
handles only the reported changes. It misses no earlier change, because the kernel queues the report before the write
returns. If the kernel's reports are not available, or some were lost, everything is scanned again; this also happens
once a minute, because a network file system does not report the changes of other machines. A directory that cannot be
read now (no free descriptor, a disk error) keeps its previous files, is named in `unread`, and is scanned again at the
next call. All functions block on the disk and may be called from any thread.

`cost_table.py` stores the costs of sessions in the same file.

`FileIndex` is only a cache and may be deleted at any time. Each version of its contents has a separate file
(`file_name`), so that servers of different versions do not overwrite each other's; a file that no server has written to
for a month is removed. A damaged file is removed and rebuilt. If no file can be written, the facts are kept in this
process only. While another process keeps the file locked, the index returns and stores nothing: callers read the files
instead. Several threads and several processes may use one file. It contains the beginnings of prompts, so only its
owner can read it. All functions block on the disk.
"""

import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..private_files import (
    entry_status,
    folders_at,
    is_absence,
    open_private,
    private_directory,
    scanned,
    stat_at,
    unless_absent,
)
from .watched_files import DirectoryWatch

if TYPE_CHECKING:
    import sqlite3


_RESCAN_AFTER = 60.0


class File(NamedTuple):
    """A file as listed in its directory, not opened. Equal while the file is unchanged."""

    path: str
    mtime_ns: int
    size: int


def stat_file(path: str) -> File | None:
    """The file at a path; None if it is missing, not a regular file, or behind a link. Raises OSError if that cannot be
    determined."""
    try:
        status = unless_absent(lambda: stat_at(path))
    except ValueError:  # no file can have such a name
        return None
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    return File(path, status.st_mtime_ns, status.st_size)


def list_files(directory: str, wanted: Callable[[str], bool]) -> list[File]:
    """The files in a directory with a wanted name, without links; none if the directory does not exist. Raises OSError
    if it cannot be read."""
    return unless_absent(lambda: _read_files(directory, wanted)) or []


def _read_files(directory: str, wanted: Callable[[str], bool]) -> list[File]:
    """In one pass, because a first listing spends most of its time here: creates only the entry of each file."""
    prefix = f"{directory}{os.sep}"
    with scanned(directory) as entries:
        return [
            File(prefix + entry.name, status.st_mtime_ns, status.st_size)
            for entry in entries
            if wanted(entry.name) and (status := entry_status(entry)) is not None and stat.S_ISREG(status.st_mode)
        ]


def list_folders(directory: str, *, linked: bool = False) -> list[str]:
    """The directories in a directory; none if it does not exist. With `linked`, links to directories are included,
    resolved. Raises OSError if it cannot be read."""
    names, links = unless_absent(lambda: folders_at(directory)) or ([], [])
    folders = [os.path.join(directory, name) for name in names]
    if linked and links:
        leads = dict.fromkeys(os.path.realpath(os.path.join(directory, link)) for link in links)
        folders += [folder for folder in leads if folder not in {*folders} and _may_be_directory(folder)]
    return folders


def _may_be_directory(path: str) -> bool:
    """Whether a path is a directory. True if it cannot be checked now: reading it then raises the error."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return not is_absence(error)


class FileTable:
    """The files with a wanted name in a directory or, with `below`, in its direct subdirectories. Links are ignored;
    with `linked`, subdirectories may be links."""

    def __init__(self, root: str, wanted: Callable[[str], bool], *, below: bool = False, linked: bool = False) -> None:
        """`root` must be resolved: no part of it is a link."""
        self._root = root
        self._wanted = wanted
        self._below = below
        self._linked = linked
        self._lock = threading.Lock()
        self._files: dict[str, File] = {}
        self._snapshot: dict[str, File] = {}
        self._snapshot_version = 0
        self._watch: DirectoryWatch | None = None
        self._scanned_at = -_RESCAN_AFTER
        self.version = 0
        """Changes whenever a file is added, removed or changed."""
        self.unread: dict[str, str] = {}
        """The directories that could not be read last time, with the reason; their files are as before."""

    def files(self) -> dict[str, File]:
        """By path; a snapshot, the same object while nothing changes. Do not modify it."""
        with self._lock:
            changed = None
            if self._watch is not None and time.monotonic() - self._scanned_at < _RESCAN_AFTER:
                changed = self._watch.take()
            # If the root itself was moved or removed, the watched directory is no longer the one at the path.
            if changed is None or (self._root, "") in changed or not self._apply(changed):
                self._scan()
            if self._snapshot_version != self.version:
                self._snapshot, self._snapshot_version = dict(self._files), self.version
            return self._snapshot

    def _apply(self, changed: set[tuple[str, str]]) -> bool:
        """Applies reported changes. Returns False if a directory was added, removed or renamed, which is rare and
        easier to handle by a scan, or if a file could not be checked."""
        if self._below and any(directory == self._root for directory, _ in changed):
            return False
        try:
            for directory, name in changed:
                if self._wanted(name):
                    self._update(os.path.join(directory, name))
        except OSError:
            return False  # the reports have left the kernel's queue: a scan finds the changes
        return True

    def _update(self, path: str) -> None:
        file = stat_file(path)
        if file == self._files.get(path):
            return
        self.version += 1
        if file is None:
            del self._files[path]
        else:
            self._files[path] = file

    def _scan(self) -> None:
        """Directories are watched before they are read, so that no change in between is missed."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        with contextlib.suppress(OSError):
            self._watch = DirectoryWatch()
        before, self._files, self.unread = self._files, {}, {}
        watched = self._watch_directory(self._root)
        for folder in self._folders(before):
            watched = (folder == self._root or self._watch_directory(folder)) and watched
            try:
                self._files.update({file.path: file for file in list_files(folder, self._wanted)})
            except OSError as error:
                self.unread[folder] = error.strerror or str(error)
                self._files.update({path: file for path, file in before.items() if os.path.dirname(path) == folder})
        if (self.unread or not watched) and self._watch is not None:
            # Without a watch, the next call scans again.
            self._watch.close()
            self._watch = None
        self._scanned_at = time.monotonic()
        if self._files != before:
            self.version += 1

    def _folders(self, before: dict[str, File]) -> list[str]:
        """The directories with files; the previous ones if they cannot be determined now."""
        if not self._below:
            return [self._root]
        try:
            return list_folders(self._root, linked=self._linked)
        except OSError as error:
            self.unread[self._root] = error.strerror or str(error)
            return [*dict.fromkeys(os.path.dirname(path) for path in before)]

    def _watch_directory(self, path: str) -> bool:
        """False if its changes will not be reported. A path that is not a directory has no changes."""
        if self._watch is None:
            return False
        try:
            self._watch.add(path)
        except OSError as error:
            return error.errno == errno.ENOTDIR or (error.errno == errno.ENOENT and path != self._root)
        return True


log = logging.getLogger(__name__)
VERSION = 3
"""Increase it whenever the tables or the fields of a summary change."""
_ABANDONED_SECONDS = 30 * 86_400
_BUSY_SECONDS = 2.0
_REST_SECONDS = 2.0
"""How long a locked index is left alone, so that not every file waits for it."""
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Temporary failures, unlike a directory that is not writable."""
_AT_ONCE = 500
"""Values per statement: SQLite guarantees only 999."""
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
    """The file name of an index with this name."""
    return f"{name}.{VERSION}.sqlite3"


def storable(text: str) -> str:
    """The text without parts that no database accepts, such as names that are not UTF-8."""
    return text.encode("utf-8", "replace").decode()


class FileIndex:
    """Facts about files, as strings. `path` is None for an index in memory."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._rests_until = 0.0
        self.generation = 0
        """Changes whenever the file is reopened: then its content is unknown."""

    def known(self, files: Iterable[File]) -> dict[str, str]:
        """The facts, by path, of files that are unchanged since the facts were stored."""
        by_path = {file.path: file for file in files}
        return {
            path: facts
            for path, mtime_ns, size, facts in self._rows("path, mtime_ns, size, facts", by_path)
            if (by_path[path].mtime_ns, by_path[path].size) == (mtime_ns, size)
        }

    def earlier(self, files: Iterable[File]) -> dict[str, tuple[int, str]]:
        """Size and facts as last stored, by path, even if the files have changed."""
        paths = [file.path for file in files]
        return {path: (size, facts) for path, size, facts in self._rows("path, size, facts", paths)}

    def current(self, files: Mapping[str, File]) -> set[str]:
        """The paths of files that need not be read again."""
        rows = self._run("SELECT path, mtime_ns, size FROM files", ())
        return {
            path
            for path, mtime_ns, size in rows or ()
            if (file := files.get(path)) is not None and (file.mtime_ns, file.size) == (mtime_ns, size)
        }

    def containing(self, text: str) -> set[str] | None:
        """The paths whose searchable text contains `text`, which must be casefolded; None if that cannot be determined
        now."""
        rows = self._run("SELECT path FROM files WHERE instr(searched, ?) > 0", (storable(text),))
        return None if rows is None else {path for (path,) in rows}

    def note(self, known: Iterable[tuple[File, str, str]]) -> bool:
        """Stores facts and searchable text, all or nothing; returns whether it did. Names that are not UTF-8 are
        skipped."""
        rows = [
            (file.path, file.mtime_ns, file.size, storable(facts), storable(searched))
            for file, facts, searched in known
            if storable(file.path) == file.path
        ]
        return not rows or self._run("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows, many=True) is not None

    def forget(self, paths: Iterable[str]) -> None:
        """Removes the facts of files that are gone."""
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
        """The result of `work`, which runs in a transaction and may be called twice; None if the index cannot be used
        now."""
        import sqlite3  # noqa: PLC0415 - not before an index is used

        with self._lock:
            if time.monotonic() < self._rests_until:
                return None
            # Two attempts: the first removes a damaged file, the second creates a new one.
            for _ in range(2):
                try:
                    connection = self._connection = self._connection or self._open()
                    with connection:
                        return work(connection)
                # Before its parent class below: a database that is merely locked must not be removed as damaged.
                except sqlite3.OperationalError as error:  # locked by another process, or the disk is full
                    log.debug("the index is not used: %s", error)
                    self._drop()
                    self._rests_until = time.monotonic() + _REST_SECONDS
                    return None
                except sqlite3.DatabaseError as error:
                    log.warning("the index is damaged and is being rebuilt: %s", error)
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
        """The file, readable for its owner only: SQLite gives the files next to it the same mode."""
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
            connection.execute("PRAGMA synchronous = OFF")  # data lost in a crash is read again
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
            with contextlib.suppress(Exception):  # it is abandoned, whatever is wrong with it
                connection.close()

    def _remove(self) -> None:
        self._drop()
        # Together with its log: SQLite would apply an old log to a new file of the same name.
        for beside in ("", "-wal", "-shm"):
            if self._path is not None:
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._path}{beside}")


def _remove_abandoned(path: Path) -> None:
    """Removes indexes of the same files that other versions created and have not used for a month."""
    name = path.name.removesuffix(f".{VERSION}.sqlite3")
    with contextlib.suppress(OSError):
        for other in path.parent.glob("*.sqlite3*"):
            belongs = other.name.startswith(f"{name}.") and not other.name.startswith(path.name)
            if belongs and time.time() - other.stat().st_mtime > _ABANDONED_SECONDS:
                other.unlink()
