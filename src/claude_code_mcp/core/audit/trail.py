"""The audit trail: a line for each act that matters to security, with the caller, act, session, decision and cost.

Every entry is redacted before long texts are shortened. A separate thread appends to the file and rotates it, so
`write` never waits. Its queue is bounded: entries that find no room, or cannot be written, are counted as lost, and the
count is written as soon as the file can be written again. An incomplete line stays, and the next entry starts a new
line. `close` writes all accepted entries. Lines also go to other sinks (`LineSink`).

Lines are chained by their hashes (`audit_chain.py`).

The trail has a limited size, and callers can repeat some acts at will. The essential lines (`quota.py`) are therefore
also written to a separate file with its own chain and its own limit: `essential_path`.
"""

import contextlib
import hashlib
import json
import logging
import os
import queue
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from .. import json_text
from ..model.events import (
    AuditEvent,
    AuditKind,
    Event,
    ProcessChanged,
    QuestionOpened,
    QuestionSettled,
    Spent,
    TurnEnded,
)
from ..model.question import Answer, Question
from ..model.text import cut, iso
from ..private_files import open_private, private_directory
from ..questions.presentation import describe
from ..redaction import Redactor
from .quota import QUOTAS, AuditQuotas, EssentialQuota

if TYPE_CHECKING:
    from filelock import FileLock
from .audit_chain import BEGIN, FILES_KEPT, last_chain, linked

log = logging.getLogger(__name__)
_BATCH = 500
_LINK_LENGTH = 78
"""Characters that the chain adds to a line."""


class LineSink(Protocol):
    """Another destination for the lines of the trail."""

    def put(self, line: str) -> None:
        """Accept a line from any thread, without waiting."""

    def close(self) -> None:
        """Deliver the remaining lines; may block for a few seconds."""


class RotatingJsonl:
    """A file of JSON lines that several servers may write to. When it is full it is renamed to `name.1`, and so on up
    to `name.5`."""

    def __init__(self, path: Path, max_bytes: int, capacity: int = 10_000, sinks: Sequence[LineSink] = ()) -> None:
        """The file's lines also go to the `sinks`. Raises OSError if the file cannot be written."""
        self.path = path
        self._sinks = sinks
        self._chained: tuple[object, str] | None = None
        """The chain value of the last line, and the file's state after that line was written."""
        self._max_bytes = max_bytes
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._lock_file: FileLock | None = None
        self._lockable = True
        self._lost = 0
        self._failing = False
        private_directory(path.parent)
        self._unfinished = _ends_within_line(path)
        """Whether the next entry must first end a line that a failure or crash cut off."""
        self._file = self._open()
        self._thread = threading.Thread(target=self._write_batches, name="audit", daemon=True)
        self._thread.start()

    def write(self, entry: Mapping[str, Any], *, important: bool = True) -> None:
        """Accept an entry from any thread, without waiting. The last fifth of the queue is reserved for `important`
        ones."""
        if not important and self._queue.qsize() > self._queue.maxsize * 4 // 5:
            self._lose(1)
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lose(1)

    def close(self) -> None:
        """Block until all accepted entries are on disk."""
        self._queue.put(None)
        self._thread.join()
        for sink in self._sinks:
            sink.close()

    # -- the thread -------------------------------------------------------------------------------------------

    def _write_batches(self) -> None:
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            ended = None in batch
            self._write_batch([entry for entry in batch if entry is not None])
        if self._lost:
            self._write_batch([])
        with contextlib.suppress(OSError):  # a pipe cannot be synced
            os.fsync(self._file)
        os.close(self._file)

    def _write_batch(self, entries: list[Mapping[str, Any]]) -> None:
        with self._lock:
            # Reset before writing: entries that are lost in the meantime count for the next batch.
            lost, self._lost = self._lost, 0
        if lost:
            entries = [{"at": timestamp(), "act": "audit_lost", "entries": lost}, *entries]
        try:
            # Several servers may write to one file, and each line continues the chain of the last one.
            with self._alone():
                self._append(entries, lost)
        except OSError as error:
            self._lose(len(entries) + (lost - 1 if lost else 0))
            self._note_failure(error)

    def _append(self, entries: list[Mapping[str, Any]], lost: int) -> None:
        texts = [_line(entry) for entry in entries]
        self._rotate_if_full(sum(map(len, texts)) + _LINK_LENGTH * len(texts))
        chains, texts = self._link(texts)
        lines = "".join(texts).encode("utf-8", "replace")
        data, end, whole = lines, 0, len(entries)
        try:
            if self._unfinished:
                data = b"\n" + lines
            while end < len(data):
                end += os.write(self._file, data[end:])
            self._failing = False
        except OSError as error:
            whole = lines[: max(0, end - (len(data) - len(lines)))].count(b"\n")
            # Entries without a complete line are lost. The note about earlier losses is not an entry.
            self._lose(len(entries) - whole + (lost - 1 if lost and not whole else 0))
            self._note_failure(error)
        if end:
            self._unfinished = data[end - 1 : end] != b"\n"
        if whole:
            self._chained = self._file_facts(), chains[whole - 1]
        for text in texts[:whole]:
            for sink in self._sinks:
                sink.put(text)

    def _link(self, texts: list[str]) -> tuple[list[str], list[str]]:
        """The chain value of each line, and the lines with their chain values."""
        chain = self._last_chain()
        chains, found = [], []
        for text in texts:
            line, chain = linked(text, chain)
            chains.append(chain)
            found.append(line)
        return chains, found

    def _last_chain(self) -> str:
        """The chain value of the last complete line, from the rotated file if this one has none yet."""
        if self._chained is not None and (self._chained[0] == self._file_facts() or not self._is_file()):
            return self._chained[1]
        if not self._is_file():
            return BEGIN
        return last_chain(self.path) or last_chain(self._numbered(1)) or BEGIN

    def _file_facts(self) -> object:
        found = os.fstat(self._file)
        return found.st_dev, found.st_ino, found.st_size

    def _is_file(self) -> bool:
        """Whether it is a regular file: a pipe has no lines that could be read back."""
        return stat.S_ISREG(os.fstat(self._file).st_mode)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Context in which no other server writes to the file. If the file cannot be locked, concurrent writers break
        the chain, but lose no lines."""
        if self._lock_file is None and self._lockable and self._is_file():
            from filelock import FileLock  # noqa: PLC0415 - a server without an audit trail does not pay for it

            self._lock_file = FileLock(f"{self.path}.lock", mode=0o600)
        try:
            if self._lock_file is not None:
                self._lock_file.acquire()
        except (OSError, NotImplementedError) as error:
            log.error("the audit trail cannot be locked; no other server may write to it: %s", error)
            self._lock_file, self._lockable = None, False
            yield
            return
        try:
            yield
        finally:
            if self._lock_file is not None:
                self._lock_file.release()

    def _note_failure(self, error: OSError) -> None:
        if not self._failing:
            log.error("the audit trail cannot be written: %s", error)
        self._failing = True

    def _lose(self, entries: int) -> None:
        with self._lock:
            self._lost += entries

    def _rotate_if_full(self, length: int) -> None:
        """Rotate the file unless this many characters fit, and follow a rotation by another server. Call it within
        `_alone`."""
        if self._is_moved():
            self._reopen()
        if os.fstat(self._file).st_size + length > self._max_bytes and os.fstat(self._file).st_size:
            self._rotate()
            self._reopen()

    def _rotate(self) -> None:
        # The oldest first, so that each new name is free or belongs to the file to be dropped.
        for number in range(FILES_KEPT - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _is_moved(self) -> bool:
        try:
            there, here = os.stat(self.path, follow_symlinks=False), os.fstat(self._file)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _reopen(self) -> None:
        # Before the old file is closed: if opening fails, there is still a file to write to.
        opened = self._open()
        os.close(self._file)
        self._file, self._unfinished = opened, False

    def _open(self) -> int:
        return open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _line(entry: Mapping[str, Any]) -> str:
    """An entry as a line. An entry that JSON cannot represent is replaced by a note, so that the thread survives."""
    try:
        return json.dumps(json_text.sound(entry), ensure_ascii=False, default=str, allow_nan=False) + "\n"
    except (ValueError, TypeError, RecursionError) as error:
        note = {"at": timestamp(), "act": str(entry.get("act")), "unwritable": str(error)}
        return json.dumps(json_text.sound(note), ensure_ascii=False) + "\n"


def _ends_within_line(path: Path) -> bool:
    """Whether a file ends in an unfinished line. Raises OSError if that cannot be determined."""
    if not path.is_file():  # the end of a pipe cannot be read
        return False
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def timestamp() -> str:
    """Now, in UTC, to the millisecond."""
    return iso(time.time())


_MAX_TEXT = 2000
_MAX_REPEATED_TEXT = 500
"""Maximum characters of a text in an act that a caller can repeat at will; `_MAX_TEXT` for descriptions and
arguments."""
_OF_CALL = ("description", "arguments")


def essential_path(path: Path) -> Path:
    """The file of the essential lines of the trail at a path: `audit.essential.jsonl` for `audit.jsonl`."""
    return path.with_name(f"{path.stem}.essential{path.suffix}")


class Audit:
    """An observer that writes the trail, and its essential lines also to `essential`. Prompts are written as hashes, or
    in full with `prompts`; arguments of calls to MCP servers only with `arguments`. On a machine of a fleet every line
    names the `machine`."""

    def __init__(
        self,
        trail: RotatingJsonl,
        redactor: Redactor,
        *,
        essential: RotatingJsonl | None = None,
        prompts: bool = False,
        arguments: bool = False,
        machine: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trail = trail
        self._essential = essential
        self._quotas = AuditQuotas(clock)
        self._essential_quota = EssentialQuota(clock)
        self._redactor = redactor
        self._prompts = prompts
        self._arguments = arguments
        self._machine = machine

    def close(self) -> None:
        """Block until everything is written."""
        self._write_counted(at_end=True)
        self._trail.close()
        if self._essential is not None:
            self._essential.close()

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.FAILED:
            return  # a refusal has its own event; other failures do not concern security
        self._write_counted()
        if self._quotas.has_line(act):
            self._write_act(act)

    def _write_act(self, act: AuditEvent) -> None:
        details = dict(act.details)
        prompt = details.pop("prompt", None)
        if prompt is not None:
            digest = hashlib.sha256(str(prompt).encode("utf-8", "replace")).hexdigest()[:16]
            details |= {"prompt_sha256": digest, **({"prompt": str(prompt)} if self._prompts else {})}
        if not self._arguments:
            details.pop("arguments", None)
        self._write(str(act.kind), act.who, act.session_id, details, important=act.kind not in QUOTAS)

    def event(self, session_id: str, owner: str, event: Event) -> None:
        self._write_counted()
        match event:
            case QuestionOpened(question=question):
                self._write("question_opened", owner, session_id, _question(question))
            case QuestionSettled(question=question, resolution=resolution):
                answer = resolution.answer
                decision = None if answer is None else "allow" if answer.allow else "deny"
                scope = str(answer.scope) if answer is not None and answer.allow else None
                details = {
                    **_question(question),
                    "by": resolution.by,
                    **({"client": resolution.client} if resolution.client else {}),
                    "decision": decision,
                    "changed_to": _changed_to(question, answer),
                    "scope": scope,
                    "reason": resolution.detail or None,
                    "waited_ms": round(max(0.0, event.at - question.opened_at) * 1000) if question.opened_at else None,
                }
                self._write(f"question_{resolution.closure}", owner, session_id, details)
            case TurnEnded(number=number, outcome=outcome):
                cost = round(outcome.usage.cost_usd, 6)
                details = {"turn": number, "outcome": str(outcome.code), "cost_usd": cost}
                self._write("turn_ended", owner, session_id, details)
            case Spent(usage=usage):
                self._write("turn_cost", owner, session_id, {"cost_usd": round(usage.cost_usd, 6)})
            case ProcessChanged(change="protocol_violation", detail=reason):
                self._write("protocol_violation", owner, session_id, {"reason": reason})

    def _write_counted(self, *, at_end: bool = False) -> None:
        for act in self._quotas.due(at_end=at_end):
            self._write_act(act)

    def _write(
        self, act: str, who: str, session_id: str | None, details: Mapping[str, Any], *, important: bool = True
    ) -> None:
        entry = {"at": timestamp(), "act": act, "who": who, **({"session": session_id} if session_id else {})}
        entry |= {"machine": self._machine} if self._machine is not None else {}
        entry |= {name: value for name, value in details.items() if value is not None}
        # Before shortening: half of a secret would not be recognized.
        clean = self._redactor.data(entry)
        if "arguments" in clean:
            clean["arguments"] = json.dumps(clean["arguments"], ensure_ascii=False, default=str)
        longest = _MAX_TEXT if important else _MAX_REPEATED_TEXT
        shortened = {
            name: cut(value, _MAX_TEXT if name in _OF_CALL else longest)
            if isinstance(value, str) and name != "prompt"
            else value
            for name, value in clean.items()
        }
        self._trail.write(shortened, important=important)
        if self._essential is not None and self._essential_quota.has_line(act, who):
            self._essential.write(shortened)


def _changed_to(question: Question, answer: Answer | None) -> str | None:
    """A description of the edited input; None if the answer did not change the input."""
    if answer is None or answer.updated_input is None or answer.updated_input == question.tool_input:
        return None
    return describe(question.tool_name, answer.updated_input)


def _question(question: Question) -> dict[str, Any]:
    return {
        "question": question.id,
        "kind": str(question.kind),
        "tool": question.tool_name,
        "description": question.description,
        "call": question.tool_use_id,
    }
