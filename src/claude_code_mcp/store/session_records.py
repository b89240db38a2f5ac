"""What is kept on disk of each session that this product ran, beside its transcript.

A record (`SessionRecords`) holds whose the session is, what it may do, what it has spent and how its last turn ended:
one JSON file per session id in the state directory, apart by the CLI's configuration directory as the transcripts
are. It has the session's options as they were admitted, with the secrets that its caller put into `env`, into headers
of MCP servers or into prompts: without them the session could not be resumed as it was. So the files are 0600 in
directories of 0700. Nothing from the server's own environment is in them. A session that is not to be persisted has
no record. A record that exists but cannot be read grants nothing: `read` refuses instead of reporting no record.

A pointer (`Aliases`) leads from the id of a session that was cleared to the id under which it goes on.

A lease (`Leases`) makes one server the only writer of a session id among all servers of this user: the CLI has no lock
of its own. It is an operating-system lock on a small file, so it ends with the process that holds it, however that
ends. The empty files stay: to remove one could split two servers over an old and a new file of the same name.

A record's file may have several lines, each a whole record, of which the last one counts: to add a line is many times
cheaper than to replace a file, and a turn waits for it. Now and then the file is replaced, durably, by one with the
newest alone. So a reader has the old or the new content, after a crash too. All functions block on the disk; call them
from a thread. Several threads and several servers may call at once.
"""

import contextlib
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from ..errors import ProcessFailed, RecordUnreadable, SessionBusy
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.states import State
from ..model.usage import Usage
from ..private_files import (
    FILE,
    TEMPORARY,
    append_line,
    make_durable,
    private_directory,
    replace_file,
)
from .file_changes import File, FileTable
from .index import FileIndex
from .transcripts import is_session_id

if TYPE_CHECKING:
    from filelock import FileLock


def shared_name(config_dir: str) -> str:
    """The name under which all servers keep what belongs to one configuration directory of the CLI."""
    return hashlib.sha256(os.path.realpath(config_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def id_is_known(state_dir: Path, session_id: str) -> bool:
    """Whether any server of this user has ever run a session with this id or noted anything of it, below whichever
    configuration directory of the CLI: the empty file of its lease stays."""
    for kind, suffix in (("locks", ".lock"), ("sessions", _SUFFIX), ("moved", "")):
        place = state_dir / kind
        try:
            directories = [str(place), *(entry.path for entry in os.scandir(place))]
        except OSError:
            continue
        if any(os.path.lexists(os.path.join(directory, session_id + suffix)) for directory in directories):
            return True
    return False


class Leases:
    """The leases of one server. Servers that share transcripts share the directory."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "locks" / shared_name(config_dir)

    def take(self, session_id: str) -> "Lease":
        """The lease on a session. SessionBusy if it is held, be it by another `Leases` of this process; ProcessFailed
        if the lock file cannot be used."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - takes a while, and a first call needs none

        lock = FileLock(self._directory / f"{session_id}.lock", timeout=0, mode=FILE, thread_local=False)
        try:
            private_directory(self._directory)
            lock.acquire()
        except Timeout:
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        except OSError as error:
            # Without the lock two servers could write to one transcript, so nothing is started.
            raise ProcessFailed(f"The lock of session {session_id} cannot be taken: {error}") from None
        return Lease(lock)

    def held(self, session_id: str) -> bool:
        """Whether some server runs the session just now. Takes the lock for an instant: there is no other test."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        except ProcessFailed:
            return False
        return False


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, lock: "FileLock") -> None:
        self._lock = lock

    def release(self) -> None:
        """Lets others write to the session. Releasing twice is harmless."""
        self._lock.release()


LOCAL = "local"
"""The owner of sessions where there is only one user, who owns the machine and with it every session on it."""
VERSION: Final = 1
LONGEST_RESULT = 256 << 10
"""Characters of a result that a record keeps; a longer one is read from the transcript."""
_LARGEST_FILE = 16 << 20
_LONGEST_JOURNAL = 64 << 10
"""Bytes of a file in which a new record is added to the older ones; in a longer one it replaces them."""
_SUFFIX = ".json"
_CHECKED_AT_ONCE = 100
_LEFT_BY_CRASH_AFTER = 3600.0
_MOST_HOPS = 1000


def _any_text(value: object) -> str:
    """Text that need not be UTF-8, as names of directories need not."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


Time = Annotated[float, Field(ge=0, lt=1e11)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
DirectoryName = Annotated[str, PlainValidator(_any_text)]


class SessionRecord(BaseModel):
    """All that a session needs beside its transcript to be resumed as it was. Times are Unix seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    version: Literal[1] = VERSION
    revision: int = 0
    """Grows with every write, so that a server knows when another one has gone on with the session."""
    session_id: str
    owner: str
    created_at: Time
    used_at: Time
    cwd: DirectoryName
    options: SessionOptions
    """Without the directory, which `cwd` has."""
    first_prompt: str | None = None
    origin: tuple[str, str | None] | None = None
    """The session and the message that a fork begins with, until it has a transcript of its own."""
    cancelled: bool = False
    running_since: Time | None = None
    """When the turn began that is running. If it is set and no server runs the session, that turn was cut short."""
    spent_usd: Amount = 0.0
    """What counts against the session's budget."""
    usage: Usage = Usage()
    model_turns: int = Field(0, ge=0)
    outcome: Outcome | None = None
    """Of the last turn that ended."""
    result_cut: bool = False
    """Whether the result in `outcome` was too long and is only its beginning."""
    grants: tuple[Mapping[str, Any], ...] = ()
    """Permission updates that a person granted for the whole session, in the form that the CLI takes them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a listing shows of a record."""

    owner: str
    cancelled: bool
    running: bool
    state: State
    """The state in which the last turn that ended left the session."""
    usage: Mapping[str, Sequence[float]]
    """By model: input, output, cache read and cache creation tokens, and dollars."""


class SessionRecords:
    """The records of the sessions below one configuration directory of the CLI."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "sessions" / shared_name(config_dir)
        self._lock = threading.Lock()
        self._table = FileTable(os.path.realpath(self._directory), _is_record)
        self._index = FileIndex(state_dir / "index" / f"{shared_name(config_dir)}-records.sqlite3")
        self._known: dict[str, tuple[File, Summary | None]] = {}
        self._summaries: dict[str, Summary] = {}
        self._summarized: object = None
        """The files as they were when `_summaries` was made."""
        self._checked = ""

    def read(self, session_id: str) -> SessionRecord | None:
        """The record; None if there is none. RecordUnreadable if there is one that is damaged or of another session."""
        try:
            raw = _newest(self._path(session_id))
            if not isinstance(raw, dict) or raw.get("version") != VERSION:
                raise ValueError("it was written by another version")
            record = SessionRecord.model_validate(raw)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(session_id, _reason(error)) from None
        if record.session_id != session_id.lower():
            raise _unreadable(session_id, "it is that of another session")
        return record

    def write(self, record: SessionRecord) -> None:
        """Replaces the record, durably. OSError if that cannot be done; then the old one is untouched."""
        private_directory(self._directory)
        replace_file(self._path(record.session_id), _encoded(record))

    def write_at_once(self, record: SessionRecord) -> None:
        """The same without waiting for the disk, as a rule: a killed server has it written, a failing machine may go
        back to the record of before until `make_durable` is called."""
        encoded = _encoded(record)
        if not append_line(self._path(record.session_id), encoded, _LONGEST_JOURNAL):
            private_directory(self._directory)
            replace_file(self._path(record.session_id), encoded)

    def make_durable(self, session_id: str) -> None:
        """Waits until the record is on the disk. Harmless where there is none; OSError if it cannot be written."""
        with contextlib.suppress(FileNotFoundError):
            make_durable(self._path(session_id))

    def remove(self, session_id: str) -> None:
        """Forgets a session. Harmless where there is nothing."""
        self._path(session_id).unlink(missing_ok=True)

    def owned_by(self, caller: str, session_id: str) -> bool:
        """Whether this caller may use a session that is only on disk. One whose record cannot be read has no owner."""
        if caller == LOCAL:
            return True
        try:
            record = self.read(session_id) if is_session_id(session_id) else None
        except RecordUnreadable:
            return False
        return record is not None and record.owner == caller

    def summaries(self) -> dict[str, Summary]:
        """Every record in short, by session id; not to be changed. Reads only the files that have changed since the
        last call, or since an earlier process noted what is in them."""
        with self._lock:
            files = self._table.files()
            if files is not self._summarized:
                self._summaries = self._summarize(files)
                self._summarized = files
            return self._summaries

    def _summarize(self, files: Mapping[str, File]) -> dict[str, Summary]:
        changed = [file for file in files.values() if self._known.get(file.path, (None,))[0] != file]
        noted = self._index.known(changed)
        read = [(file, _summary(file.path)) for file in changed if file.path not in noted]
        self._index.note([(file, _noted(summary), "") for file, summary in read])
        self._known.update({file.path: (file, summary) for file, summary in read})
        self._known.update({file.path: (file, _from_note(noted[file.path])) for file in changed if file.path in noted})
        gone = self._known.keys() - files.keys()
        for path in gone:
            del self._known[path]
        self._index.forget(gone)
        named = ((os.path.basename(path).removesuffix(_SUFFIX), known[1]) for path, known in self._known.items())
        return {session_id: summary for session_id, summary in named if summary is not None}

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes records that nobody has written for `grace` seconds and whose transcript is gone; returns how many.

        Looks at a bounded number each time and goes on from there the next time.
        """
        files = _after(self._checked, _files(self._directory, _SUFFIX))
        self._checked = files[-1][0] if len(files) == _CHECKED_AT_ONCE else ""
        removed = 0
        for session_id, entry in files:
            if _older(entry.path, grace) and not has_transcript(session_id):
                self.remove(session_id)
                removed += 1
        _remove_unfinished(self._directory)
        return removed

    def _path(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise ValueError("not a session id")
        return self._directory / f"{session_id.lower()}{_SUFFIX}"


class Aliases:
    """The pointers from ids of cleared sessions to those under which they go on, below one configuration directory."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "moved" / shared_name(config_dir)
        self._checked = ""

    def point(self, old: str, new: str) -> None:
        """From now on the old id means the session with the new one. OSError if that cannot be written down."""
        private_directory(self._directory)
        replace_file(self._directory / old, new.encode("ascii"))

    def resolve(self, session_id: str) -> str:
        """The id under which the session goes on; its own if it was never cleared."""
        for _ in range(_MOST_HOPS):
            following = self._next(session_id)
            if following is None:
                break
            session_id = following
        return session_id

    def all(self) -> dict[str, str]:
        """Every id that moved, and the id that it leads to."""
        return {old: self.resolve(old) for old, _ in _files(self._directory)}

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes pointers older than `grace` seconds that lead from nowhere to nowhere; returns how many.

        One whose old transcript is still there stays: without it the old id would mean the conversation from before
        it was cleared. Looks at a bounded number each time and goes on from there the next time.
        """
        files = _after(self._checked, _files(self._directory))
        self._checked = files[-1][0] if len(files) == _CHECKED_AT_ONCE else ""
        removed = 0
        for old, entry in files:
            if _older(entry.path, grace) and not has_transcript(old) and not has_transcript(self.resolve(old)):
                Path(entry.path).unlink(missing_ok=True)
                removed += 1
        _remove_unfinished(self._directory)
        return removed

    def _next(self, session_id: str) -> str | None:
        if not is_session_id(session_id):
            return None
        # Earlier versions kept the pointers of all configuration directories together, in the directory above.
        for directory in (self._directory, self._directory.parent):
            try:
                new = (directory / session_id).read_text(encoding="ascii")
            except (OSError, ValueError):
                continue
            if is_session_id(new):
                return new
        return None


def _encoded(record: SessionRecord) -> bytes:
    text = json.dumps(record.model_dump(), ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "surrogatepass")


def _newest(path: str | Path) -> Any:
    """The content of the last line that is whole: one that is not was being written when the machine failed, or is
    being written just now. ValueError if there is none."""
    with open(path, "rb") as file:
        content = file.read(_LARGEST_FILE + 1)
    if len(content) > _LARGEST_FILE:
        raise ValueError("it is too large")
    *older, last = content.split(b"\n")
    try:
        return _decoded(last)
    except (ValueError, RecursionError):
        for line in reversed(older):
            with contextlib.suppress(ValueError, RecursionError):
                return _decoded(line)
        raise


def _decoded(line: bytes) -> Any:
    return json.loads(line.decode("utf-8", "surrogatepass"))


def _reason(error: Exception) -> str:
    """What is wrong with a record, without its contents, which may be secret."""
    if isinstance(error, ValidationError):
        return f"{len(error.errors(include_input=False))} of its fields are not as they must be"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return "it is not JSON"
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)


def _unreadable(session_id: str, why: str) -> RecordUnreadable:
    return RecordUnreadable(
        f"Session {session_id} is not resumed: the record of what it may do cannot be read ({why}). "
        "Start a new session instead, or have the operator repair or remove the record.",
        session_id=session_id,
    )


def _is_record(name: str) -> bool:
    return name.endswith(_SUFFIX) and is_session_id(name.removesuffix(_SUFFIX))


def _noted(summary: Summary | None) -> str:
    return json.dumps(None if summary is None else astuple(summary))


def _from_note(note: str) -> Summary | None:
    values = json.loads(note)
    if values is None:
        return None
    owner, cancelled, running, state, usage = values
    return Summary(owner, cancelled, running, State(state), usage)


def _summary(path: str) -> Summary | None:
    try:
        raw = _newest(path)
        if raw["version"] != VERSION or not isinstance(raw["owner"], str):
            return None
        ended = Outcome(OutcomeCode(raw["outcome"]["code"])).state if raw["outcome"] is not None else State.IDLE
        cancelled = raw["cancelled"] is True
        state = State.CANCELLED if cancelled else ended
        usage = {model: [*used.values()] for model, used in raw["usage"]["models"].items()}
        return Summary(raw["owner"], cancelled, raw["running_since"] is not None, state, usage)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _files(directory: Path, suffix: str = "") -> list[tuple[str, os.DirEntry[str]]]:
    """The files that are named after a session id, by that id."""
    try:
        with os.scandir(directory) as entries:
            named = [(entry.name.removesuffix(suffix), entry) for entry in entries if entry.name.endswith(suffix)]
    except OSError:
        return []
    return sorted(((name, entry) for name, entry in named if is_session_id(name)), key=lambda pair: pair[0])


def _after(checked: str, files: list[tuple[str, os.DirEntry[str]]]) -> list[tuple[str, os.DirEntry[str]]]:
    """The next files to look at in a clean-up that came as far as `checked`."""
    return [file for file in files if file[0] > checked][:_CHECKED_AT_ONCE]


def _remove_unfinished(directory: Path) -> None:
    """Removes what a crash left half written."""
    try:
        with os.scandir(directory) as entries:
            unfinished = [entry.path for entry in entries if entry.name.endswith(TEMPORARY)]
    except OSError:
        return
    for path in unfinished:
        if _older(path, _LEFT_BY_CRASH_AFTER):
            Path(path).unlink(missing_ok=True)


def _older(path: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime > seconds
    except OSError:
        return False
