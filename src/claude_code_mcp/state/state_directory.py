"""The databases of this process, one for each state directory, and what earlier versions kept in files.

The directories of those versions are first moved aside, to `before-database` in the state directory, and a file with a
note is put in the place of each. A server of such a version finds no directory there and refuses to run anything, with
an error instead of an empty state: two kinds of servers never both write. Then everything is read in one transaction,
which also notes that it was done; a crash at any point has it done again by the next start. The files stay where they
were moved for as long as this version is in use: to go back to the earlier version, stop all servers, remove the notes
and the database, and move the directories back.

A record that is damaged is taken over as one that cannot be read: its session is refused, not freed of its limits. An
error of the disk stops the start instead.
"""

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ..errors import StateUnavailable
from ..model.options import is_session_id
from ..private_files import FILE, private_directory
from .database import Database
from .deliveries import PendingDelivery, put_delivery
from .known_people import Identity, SignIn, put_sign_in
from .session_marks import put_mark
from .session_records import SessionRecord, encode_record, point_id, put_record, unreadable_row
from .task_records import TaskRecord, put_task

if TYPE_CHECKING:
    import sqlite3


log = logging.getLogger(__name__)

ASIDE = "before-database"
_MOVED = ("sessions", "moved", "marks", "spending", "tasks", "web/tickets", "web/sign-ins", "web/push", "mcp/servers")
_ALWAYS_NOTED = "sessions"
"""Without this directory an earlier version runs nothing, also where it has never run."""
_DONE = "earlier_files"
_NOTE = b"What was here is in the database of a later version of claude-code-mcp, beside this file.\n"
_LARGEST = 64 << 20
_GONE_SERVER = "0" * 16
"""Whose deliveries count as those of a server that has ended."""


def import_earlier_files(database: Database) -> int:
    """Reads the files of earlier versions into the database, if there are any that were not read yet; returns how many
    entries were read. Blocks on the disk; several servers may call at once. StateUnavailable if it cannot be done."""
    if database.read(_is_done):
        return 0
    state_dir = database.directory
    from filelock import FileLock  # noqa: PLC0415 - takes a while, and only a first start needs it

    try:
        with FileLock(state_dir / "import.lock", mode=FILE):  # the others wait until it is done
            # Another server may have done it while this one waited for the lock.
            if database.read(_is_done):
                return 0
            aside = state_dir / ASIDE
            for name in _MOVED:
                _move_aside(state_dir / name, aside / name)
            # After all directories are aside: nothing that an earlier
            # version still writes can be missed by the reading.
            count = database.write(lambda db: _read_all(db, aside), durable=True)
    except OSError as error:
        raise StateUnavailable(f"What earlier versions kept in {state_dir} cannot be read: {error}") from error
    if count:
        log.warning("what earlier versions kept in files is in the database now (%d entries); see %s", count, aside)
    return count


def _is_done(db: "sqlite3.Connection") -> bool:
    return db.execute("SELECT 1 FROM facts WHERE name = ?", (_DONE,)).fetchone() is not None


def _move_aside(directory: Path, target: Path) -> None:
    """Moves a directory out of the way of earlier versions, and puts a note in its place. A second one that such a
    version has made meanwhile is moved beside the first."""
    for attempt in range(1000):
        with contextlib.suppress(FileNotFoundError):
            if directory.is_dir() and not directory.is_symlink():
                private_directory(target.parent)
                while target.exists():
                    target = target.with_name(f"{target.name}.{attempt}")
                directory.rename(target)
        if not target.exists() and directory.name != _ALWAYS_NOTED:
            return
        try:
            descriptor = os.open(directory, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
        except FileExistsError:
            # Otherwise a server of an earlier version has made the directory
            # again between the two steps: once more from the start.
            if directory.is_file():
                return
            continue
        with open(descriptor, "wb") as file:
            file.write(_NOTE)
        return
    raise OSError(f"{directory} comes back again and again: stop the servers of earlier versions")


def _read_all(db: "sqlite3.Connection", aside: Path) -> int:
    count = 0
    for name, read in _READERS.items():
        for directory in sorted(aside.glob(f"{name}*")):  # with those that were moved later
            count += sum(1 for _ in read(db, directory))
    # In the transaction of the import itself: it is noted as done exactly if it is there.
    db.execute("INSERT INTO facts VALUES (?, ?)", (_DONE, str(count)))
    return count


# -- one kind each --------------------------------------------------------------------------------------------


def _sessions(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`sessions/<configuration directory>/<id>.json`: lines, each a record, of which the last whole one counts."""
    for path in sorted(directory.glob("*/*.json")):
        if not is_session_id(path.stem):
            continue
        session_id, written_at = path.stem.lower(), path.stat().st_mtime
        try:
            record = SessionRecord.model_validate(_last_line(path))
            row = encode_record(record, path.parent.name, written_at)
        except (ValueError, RecursionError, TypeError):
            log.error("the record of session %s is damaged: the session will be refused", session_id)
            row = unreadable_row(session_id, path.parent.name, written_at)
        if row.session_id == session_id:
            _put_stricter(db, row)
            yield path


def _put_stricter(db: "sqlite3.Connection", row: Any) -> None:
    """Of two records with one id, from two configuration directories, the one that was written last, unless the other
    one cannot be read or is cancelled: what is in doubt is refused."""
    query = "SELECT checksum = x'', cancelled, written_at FROM sessions WHERE session_id = ?"
    known = db.execute(query, (row.session_id,)).fetchone()
    if known is not None:
        if known > (not row.checksum, row.cancelled, row.written_at):
            return
        db.execute("DELETE FROM sessions WHERE session_id = ?", (row.session_id,))
    put_record(db, row)


def _moved_ids(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`moved/<configuration directory>/<old id>` and, before that, `moved/<old id>`: the new id."""
    for path in sorted([*directory.glob("*"), *directory.glob("*/*")]):
        if is_session_id(path.name) and path.is_file():
            new = _content(path).decode("ascii", "replace")
            if is_session_id(new):
                point_id(db, path.name, new, path.parent.name, path.stat().st_mtime)
                yield path


def _marks(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`marks/<configuration directory>.json`: lists of ids by mark. One that is damaged is left out as a whole: marks
    limit nothing, and the file stays where it was moved."""
    form = TypeAdapter(dict[str, list[str]])
    for path in sorted(directory.glob("*.json")):
        try:
            marks = form.validate_json(_content(path))
        except ValidationError:
            log.error("%s is damaged: the sessions that it marked have lost their marks", path)
            continue
        for mark, ids in marks.items():
            for session_id in filter(is_session_id, ids):
                put_mark(db, session_id, mark, True)
                yield path


def _spending(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`spending/<day>.jsonl`: a line for each amount. Reservations end with the servers that made them."""
    for path in sorted(directory.glob("????-??-??.jsonl")):
        for line in _content(path).splitlines():
            try:
                entry = json.loads(line)
                values = (path.stem, str(entry["who"]), str(entry.get("session", "")), float(entry["usd"]))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue  # half a line, from a server that was killed
            if values[3] > 0:
                db.execute(
                    "INSERT INTO spending VALUES (?, ?, ?, ?)"
                    " ON CONFLICT (day, principal, session_id) DO UPDATE SET usd = usd + excluded.usd",
                    values,
                )
                yield path


def _tasks(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`tasks/<id>.json`."""
    for path in sorted(directory.glob("*.json")):
        with contextlib.suppress(ValidationError):
            put_task(db, TaskRecord.model_validate(_json(path)))
            yield path


def _tickets(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`web/tickets/<hash>`; they live for minutes."""
    for path, fields in _objects(directory):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            values = (path.name, str(fields["principal"]), str(fields["credential"]), float(fields["expires_at"]))
            db.execute("INSERT OR REPLACE INTO tickets VALUES (?, ?, ?, ?)", values)
            yield path


def _sign_ins(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`web/sign-ins/<hash>`, last used when the file was last touched."""
    for path, fields in _objects(directory):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            identity = Identity(str(fields["principal"]), str(fields["credential"]))
            created_at, used_at = float(fields["created_at"]), path.stat().st_mtime
            sign_in = SignIn(path.name, identity, str(fields.get("device", "")), created_at, used_at)
            put_sign_in(db, sign_in, str(fields["csrf"]))
            yield path


def _push(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`web/push/<hash>.json`, the preferences of a principal, and `web/push/waiting/<server>/<delivery>`."""
    for path, fields in _objects(directory):
        if isinstance(fields.get("principal"), str):
            _put_document(db, "push", fields["principal"], fields)
            yield path
    for path, fields in (found for folder in directory.glob("waiting/*/") for found in _objects(folder)):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            notice = fields["notice"]
            values = str(fields["principal"]), str(fields["receiver_id"]), float(notice["at"])
            put_delivery(db, _GONE_SERVER, PendingDelivery(path.name, *values, notice=dict(notice)))
            yield path


def _servers(db: "sqlite3.Connection", directory: Path) -> Iterator[Path]:
    """`mcp/servers/<fingerprint>.json`: what an MCP server has shown of itself."""
    for path, fields in _objects(directory):
        _put_document(db, "server", path.stem, fields)
        yield path


_READERS: dict[str, Callable[["sqlite3.Connection", Path], Iterator[Path]]] = {
    "sessions": _sessions,
    "moved": _moved_ids,
    "marks": _marks,
    "spending": _spending,
    "tasks": _tasks,
    "web/tickets": _tickets,
    "web/sign-ins": _sign_ins,
    "web/push": _push,
    "mcp/servers": _servers,
}
"""What takes each directory over; yields the file of every entry as it is written."""


def _put_document(db: "sqlite3.Connection", kind: str, key: str, fields: dict[str, Any]) -> None:
    values = (kind, key, time.time(), json.dumps(fields, separators=(",", ":")))
    db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", values)


# -- files ----------------------------------------------------------------------------------------------------


def _objects(directory: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files of a directory that are JSON objects. OSError for those that cannot be read."""
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            fields = _json(path)
            if isinstance(fields, dict):
                yield path, fields


def _json(path: Path) -> Any:
    """None for what is not JSON."""
    try:
        return json.loads(_content(path))
    except (ValueError, RecursionError):
        return None


def _last_line(path: Path) -> Any:
    """The last line that is whole; ValueError if there is none."""
    for line in reversed(_content(path).split(b"\n")):
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(line.decode("utf-8", "surrogatepass"))
    raise ValueError("there is no whole line in it")


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_LARGEST)


# -- state directory --------------------------------------------------------------------------------------------------


_databases: "weakref.WeakValueDictionary[str, Database]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def database_in(state_dir: Path) -> Database:
    """The database of a state directory, the same one in this process for as long as anybody uses it. It is opened when
    it is first used; what earlier versions kept in files is read into it then."""
    key = os.path.abspath(state_dir)
    with _lock:
        found = _databases.get(key)
        if found is None:
            found = _databases[key] = Database(Path(key), on_open=import_earlier_files)
        return found


def check_quietly(database: Database) -> None:
    """Reads the whole database once. Damage is logged, and a database that is damaged is not used any more."""
    try:
        database.check()
    except StateUnavailable as error:
        log.error("%s", error.message)
