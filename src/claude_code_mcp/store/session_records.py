"""What is known of each session that this product ran: whose it is, what it may do, what it has spent, how it stands.

One JSON file per session id in the state directory, apart by the CLI's configuration directory as the transcripts
are. Transcripts have the conversation and nothing of this, and outlive the server.

A record holds the session's options as they were admitted, with the secrets that its caller put into `env`, into
headers of MCP servers or into prompts: without them the session could not be resumed as it was. So the files are
0600 in directories of 0700. Nothing from the server's own environment is in them. A session that is not to be
persisted has no record.

A record that is there and cannot be read grants nothing: `read` refuses, it never falls back to "no record".

All functions block on the disk; call them from a thread. Several may call at once.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError

from ..errors import PermissionDenied
from ..model.options import SessionOptions
from ..model.outcome import Outcome, OutcomeCode
from ..model.states import State
from ..model.usage import Usage
from ..private_files import TEMPORARY, private_directory, replace_file
from .lease import shared_name
from .transcripts import is_session_id

LOCAL = "local"


"""The owner of sessions where there is only one user, who owns the machine and with it every session on it."""


VERSION: Final = 1


LONGEST_RESULT = 256 << 10


"""Characters of a result that a record keeps; a longer one is read from the transcript."""


_LARGEST = 16 << 20


Time = Annotated[float, Field(ge=0, lt=1e11)]


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_SUFFIX = ".json"


_TRUSTED_AFTER = 2.0


"""Seconds after which a directory's time is sure to change with the next change in it."""


_CHECKED_AT_ONCE = 100


_CRASH_LEFT = 3600.0


def _any_text(value: object) -> str:
    """Text that need not be UTF-8, as names of directories need not."""
    if not isinstance(value, str):
        raise ValueError("must be a text")
    return value


DirectoryName = Annotated[str, PlainValidator(_any_text)]


class RecordUnreadable(PermissionDenied):
    """A session of ours whose limits are not known any more, so that it must not be resumed."""


class SessionRecord(BaseModel):
    """All that a session needs beside its transcript to go on as it was. Times are Unix seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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
    """When the turn began that is running; still there when nobody runs the session, the turn was cut short."""
    spent_usd: Amount = 0.0
    """What counts against the session's budget."""
    usage: Usage = Usage()
    model_turns: int = Field(0, ge=0)
    outcome: Outcome | None = None
    """Of the last turn that came to one."""
    result_cut: bool = False
    """Whether the result in `outcome` is too long to be kept here."""
    grants: tuple[Mapping[str, Any], ...] = ()
    """Permission updates that a person gave for the whole session, as the CLI was told them."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a listing tells of a record."""

    owner: str
    cancelled: bool
    running: bool
    state: State
    """Where the last turn that came to an outcome left the session."""


class SessionRecords:
    """The records of the sessions below one configuration directory of the CLI."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "sessions" / shared_name(config_dir)
        self._lock = threading.Lock()
        self._index: dict[str, tuple[tuple[int, int], Summary | None]] = {}
        self._indexed_at: int | None = None
        self._checked = ""

    def read(self, session_id: str) -> SessionRecord | None:
        """The record; None if there is none. RecordUnreadable if there is one that says nothing certain."""
        try:
            with self._path(session_id).open("rb") as file:
                content = file.read(_LARGEST + 1)
            record = _parse(content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise _unreadable(session_id, _reason(error)) from None
        if record.session_id != session_id.lower():
            raise _unreadable(session_id, "it is that of another session")
        return record

    def write(self, record: SessionRecord) -> None:
        """Replaces the record, durably and as a whole. OSError if that cannot be done; then the old one stands."""
        private_directory(self._directory)
        content = json.dumps(record.model_dump(), ensure_ascii=False, separators=(",", ":"))
        replace_file(self._path(record.session_id), content.encode("utf-8", "surrogatepass"))

    def remove(self, session_id: str) -> None:
        """Forgets a session. Harmless where there is nothing."""
        self._path(session_id).unlink(missing_ok=True)

    def owned_by(self, caller: str, session_id: str) -> bool:
        """Whether a session that is only on disk is this caller's to use; what cannot be read is nobody's."""
        if caller == LOCAL:
            return True
        try:
            record = self.read(session_id) if is_session_id(session_id) else None
        except RecordUnreadable:
            return False
        return record is not None and record.owner == caller

    def summaries(self) -> dict[str, Summary]:
        """Every record in short, by session id. Reads only what has changed since the last time."""
        with self._lock:
            try:
                changed = os.stat(self._directory).st_mtime_ns
            except OSError:
                return {}
            if changed != self._indexed_at:
                self._index = dict(self._scan())
                settled = time.time() - changed / 1e9 > _TRUSTED_AFTER
                self._indexed_at = changed if settled else None
            return {session_id: told for session_id, (_, told) in self._index.items() if told is not None}

    def _scan(self) -> "list[tuple[str, tuple[tuple[int, int], Summary | None]]]":
        found = []
        for session_id, entry in self._files():
            try:
                facts = entry.stat()
            except OSError:
                continue
            state = (facts.st_mtime_ns, facts.st_size)
            known = self._index.get(session_id)
            told = known[1] if known is not None and known[0] == state else _summary(entry.path)
            found.append((session_id, (state, told)))
        return found

    def _files(self) -> "list[tuple[str, os.DirEntry[str]]]":
        try:
            with os.scandir(self._directory) as entries:
                named = [(entry.name.removesuffix(_SUFFIX), entry) for entry in entries if entry.name.endswith(_SUFFIX)]
        except OSError:
            return []
        return sorted(((name, entry) for name, entry in named if is_session_id(name)), key=lambda one: one[0])

    def clean_up(self, has_transcript: Callable[[str], bool], grace: float) -> int:
        """Removes records that nobody has written for `grace` seconds and whose transcript is gone; tells how many.

        Looks at a bounded number each time and goes on from there the next time.
        """
        files = [one for one in self._files() if one[0] > self._checked][:_CHECKED_AT_ONCE]
        self._checked = files[-1][0] if len(files) == _CHECKED_AT_ONCE else ""
        removed = 0
        for session_id, entry in files:
            if _older(entry.path, grace) and not has_transcript(session_id):
                self.remove(session_id)
                removed += 1
        self._remove_left_over()
        return removed

    def _remove_left_over(self) -> None:
        """What a crash left half written."""
        try:
            with os.scandir(self._directory) as entries:
                left = [entry.path for entry in entries if entry.name.endswith(TEMPORARY)]
        except OSError:
            return
        for path in left:
            if _older(path, _CRASH_LEFT):
                Path(path).unlink(missing_ok=True)

    def _path(self, session_id: str) -> Path:
        if not is_session_id(session_id):
            raise ValueError("not a session id")
        return self._directory / f"{session_id.lower()}{_SUFFIX}"


def _parse(content: bytes) -> SessionRecord:
    if len(content) > _LARGEST:
        raise ValueError("it is too large")
    raw = json.loads(content.decode("utf-8", "surrogatepass"))
    if not isinstance(raw, dict) or raw.get("version") != VERSION:
        raise ValueError("it was written by another version")
    return SessionRecord.model_validate(raw)


def _reason(error: Exception) -> str:
    """Without the contents, which may be secret."""
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


def _summary(path: str) -> Summary | None:
    try:
        with open(path, "rb") as file:
            raw = json.loads(file.read(_LARGEST).decode("utf-8", "surrogatepass"))
        if raw["version"] != VERSION or not isinstance(raw["owner"], str):
            return None
        ended = Outcome(OutcomeCode(raw["outcome"]["code"])).state if raw["outcome"] is not None else State.IDLE
        cancelled = raw["cancelled"] is True
        state = State.CANCELLED if cancelled else ended
        return Summary(raw["owner"], cancelled, raw["running_since"] is not None, state)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _older(path: str, seconds: float) -> bool:
    try:
        return time.time() - os.stat(path).st_mtime > seconds
    except OSError:
        return False


_LONGEST_WAY = 1000


class Aliases:
    """The pointers from old ids to new ones."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "moved"

    def point(self, old: str, new: str) -> None:
        """From now on the old id means the session with the new one."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = self._directory / f"{old}.{os.getpid()}.new"
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
            file.write(new)
        os.replace(fresh, self._directory / old)

    def resolve(self, session_id: str) -> str:
        """The id under which the session goes on; its own if it was never cleared."""
        for _ in range(_LONGEST_WAY):
            following = self._next(session_id)
            if following is None:
                break
            session_id = following
        return session_id

    def _next(self, session_id: str) -> str | None:
        if not is_session_id(session_id):
            return None
        try:
            new = (self._directory / session_id).read_text(encoding="ascii")
        except (OSError, ValueError):
            return None
        return new if is_session_id(new) else None
