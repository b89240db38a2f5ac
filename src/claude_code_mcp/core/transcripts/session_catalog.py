"""All sessions on this machine, ours or not, for listings and searches, from transcripts and the prompt history.

Only files are read; no server needs to run. The facts read from a transcript are kept in an index on disk until the
file changes; of a transcript that has grown, only the new part is read. A listing opens only the transcripts that it
shows; the first search opens all. `history.jsonl` contains the prompts that people typed into Claude Code, in all
projects (`-p` runs do not appear in it). A session that is only in the history no longer has a transcript: it cannot be
resumed and is not listed.

A session was last used when its last message was written. The file may be newer: Claude Code appends the costs when its
process ends, and a copied file has the time of the copy.

Files with other contents are skipped. A file that cannot be read now (no free descriptor, a disk error) is not such a
file: nothing is stored about it, it is listed with the previously known facts, `unread` reports it, and the next call
reads it again. All functions block on the disk; any thread may call them.
"""

import heapq
import itertools
import logging
import os
import re
import threading
import unicodedata
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, MutableSequence, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..model.session_id import is_session_id
from ..model.text import clip_line
from ..state.session_leases import directory_name
from ..state.session_marks import MarkedSessions, Marks
from ..state.state_directory import database_in
from .index import File, FileIndex, FileTable, file_name, stat_file
from .transcript_lines import (
    clean,
    clean_line,
    in_folder,
    is_bare_command,
    last_lines,
    parse_all,
    seconds_of,
    unwrapped,
)
from .transcript_reader import first_mention, readable_lines
from .transcript_summary import MAX_TITLE, TranscriptSummary, dump, load, summarize
from .transcripts import EXTENSION, ProjectFolders, is_transcript, unreadable_refused

log = logging.getLogger(__name__)

_EXTENSION = len(EXTENSION)
_NAME = 36 + _EXTENSION
_MAX_CACHED = 4096
_WRITTEN_AT_ONCE = 200
_SORTED_AFTER = 500
"""The list is sorted again when this many more transcripts have been opened."""
_HISTORY_BYTES = 1 << 20
"""How much of the end of the history is read."""
_LATEST_MS = 10**14
"""Later timestamps are invalid."""
_NAMES_SESSION = re.compile(rb'"session(?:Id|_id)"')


@dataclass(frozen=True, slots=True)
class Entry:
    """One session in a list."""

    session_id: str
    project: str
    """The session's directory."""
    title: str | None
    first_prompt: str | None
    last_used: float
    """Unix seconds."""
    branch: str | None
    size: int
    """The transcript's size in bytes; 0 if it has none yet."""
    created: float | None = None
    messages: int | None = None
    """The number of prompts and answers; None if a huge transcript was not read completely."""
    model: str | None = None
    """The model of the last answer."""
    cost_usd: float | None = None
    """The total that its processes reported when they ended; None without a report."""
    estimated_usd: float | None = None
    """A lower bound at list prices, if answers are not in that total yet."""
    tag: str | None = None
    pinned: bool = False
    archived: bool = False
    mention: str | None = None
    """Where a searched text occurs in the conversation."""


# `Catalog.list` hides the built-in within its class.
CatalogEntries = list[Entry]
CatalogOrder = list[tuple[float, str]]
IndexRow = tuple[File, str, str]
"""A file, its facts and its searchable text."""


@dataclass(slots=True)
class HistoryEntry:
    """The history's data about one session."""

    project: str
    first_prompt: str | None
    last_used: float


@dataclass(frozen=True, slots=True)
class _Order:
    """All sessions, sorted, and what they were sorted by."""

    files: object
    history: object
    marked: object
    opened: int
    """The number of transcripts that had been opened."""
    sessions: "CatalogOrder"


_NO_HISTORY: dict[str, HistoryEntry] = {}


class Catalog:
    """The sessions of one configuration directory of the CLI."""

    def __init__(self, config_dir: str, state_dir: Path | None = None, projects: ProjectFolders | None = None) -> None:
        """The index and the marks are below `state_dir`; without it, nothing is kept between runs. `projects` defaults
        to the user's own."""
        self._projects = projects or ProjectFolders.below(config_dir, linked=True)
        self._history_path = os.path.join(os.path.realpath(config_dir), "history.jsonl")
        name = file_name(directory_name(config_dir))
        self.index = FileIndex(state_dir / "index" / name if state_dir is not None else None)
        self.marks = Marks(database_in(state_dir) if state_dir is not None else None)
        self._table = FileTable(self._projects.path, is_transcript, below=True, linked=self._projects.linked)
        self._summaries: OrderedDict[str, tuple[File, TranscriptSummary]] = OrderedDict()
        self._lock = threading.Lock()
        # Separate from the other index: the first search reads all transcripts, and listings must not wait for that.
        self._indexing = threading.Lock()
        self._indexed: object = None
        """The files at the time when all of them were last in the index."""
        self._order = _Order(None, None, None, 0, [])
        self._last_uses: dict[str, tuple[File, float]] = {}
        """When the sessions of the transcripts that were opened were last used, by path."""
        self._newest: tuple[object, dict[str, File]] = (None, {})
        self._unread: dict[str, str] = {}
        """The transcripts, and the history, that could not be read when last needed, with the reason."""
        self._last_history: dict[str, HistoryEntry] = _NO_HISTORY
        self._history_as_of = lru_cache(maxsize=1)(lambda file: read_history(file.path))

    def find(self, session_id: str) -> Entry | None:
        """One session; None if it has no transcript. Raises TranscriptUnreadable if that cannot be determined."""
        if not is_session_id(session_id):
            return None
        path = self.path_of(session_id)
        with unreadable_refused(session_id):
            file = stat_file(path) if path is not None else None
        return self._entry(session_id, file, self._history().get(session_id), self.marks.read())

    def path_of(self, session_id: str) -> str | None:
        """The path of its transcript; None if it has none."""
        return self._projects.locate(session_id)

    def ids(self) -> list[str]:
        """All sessions with a transcript, in no particular order."""
        return [*self._files()]

    def with_transcript(self, session_ids: Iterable[str]) -> frozenset[str]:
        """The given sessions that have a transcript."""
        files = self._files()
        return frozenset(session_id for session_id in session_ids if session_id in files)

    def transcript_lines(self, session_id: str, limit: int = 1000) -> Iterator[str]:
        """The end of a session's conversation, human-readable; empty without a transcript."""
        path = self.path_of(session_id)
        return iter(deque(readable_lines(path), max(0, limit)) if path else ())

    def list(
        self,
        *,
        project: str | None = None,
        limit: int = 50,
        offset: int = 0,
        text: str | None = None,
        whole: bool = False,
        only: frozenset[str] | None = None,
        archived: bool = False,
        by_name: bool = False,
    ) -> CatalogEntries:
        """At most `limit` sessions after the first `offset`, pinned ones first, then the newest. Filters: directory
        `project`, ids in `only`, and `text` in title, prompts, directory, branch, tag or id or, with `whole`, anywhere
        in the conversation. Archived sessions are listed only on request, and then alone. With `by_name`, directories
        are compared without reading the disk: a session could have written any path into its transcript and must not
        learn what exists."""
        directory = _Directory(project, by_name=by_name) if project is not None else None
        found = self._found(directory, text.casefold() if text else None, whole, only, archived)
        return [*itertools.islice(found, max(0, offset), max(0, offset) + max(0, limit))]

    def count(self, *, only: frozenset[str] | None = None, archived: bool = False) -> int:
        """The number of listed sessions, without opening transcripts: files that turn out to have no conversation count
        too."""
        files, history, marked = self._files(), self._history(), self.marks.read()
        return sum(
            (only is None or session_id in only) and (session_id in marked.archived) is archived
            for _, session_id in self._by_latest_use(files, history, marked)
        )

    def transcripts(self) -> dict[str, File]:
        """The transcript of every session that has one, by id; the same object while nothing changes."""
        return self._files()

    def summaries(self, files: Iterable[File]) -> dict[File, TranscriptSummary]:
        """The summaries of these transcripts, without those that cannot be read now. Reads what has changed."""
        files = [*files]
        known = self.index.known(files)
        found = {file: load(known.get(file.path, "")) for file in files}
        unknown = [file for file, summary in found.items() if summary is None]
        fresh = {file: summary for file in unknown if (summary := self._fresh(file)) is not None}
        self.index.note([_row(file, summary) for file, summary in fresh.items()])
        return {file: summary for file, summary in {**found, **fresh}.items() if summary is not None}

    def unread(self) -> str | None:
        """Why not everything could be read, in a sentence without names; None if it could. First retries what failed
        before."""
        self._history()
        files = self._table.files()
        for path in [*self._unread]:
            file = files.get(path)
            if file is not None:
                self._summary(file)
            elif path != self._history_path:
                self._unread.pop(path, None)
        failures = [*self._table.unread.values(), *self._unread.values()]
        if not failures:
            return None
        parts = (
            (len(self._table.unread), "transcript directories"),
            (len(self._unread.keys() - {self._history_path}), "transcripts"),
            (self._history_path in self._unread, "the prompt history"),
        )
        things = ", ".join(what if number is True else f"{number} {what}" for number, what in parts if number)
        return f"Could not read {things} ({failures[0]}). Earlier data is shown. Try again."

    # -- listing --------------------------------------------------------------------------------------------------

    def _found(
        self,
        directory: "_Directory | None",
        text: str | None,
        whole: bool,
        only: frozenset[str] | None,
        archived: bool,
    ) -> Iterator[Entry]:
        """A generator, so that no more files are opened than the caller takes entries."""
        files, history, marked = self._files(), self._history(), self.marks.read()
        named = self._named(text, history) if text is not None else None
        # First the checks that do not need the transcript: most transcripts are never opened.
        wanted = (
            (latest, session_id)
            for latest, session_id in self._by_latest_use(files, history, marked)
            if (only is None or session_id in only)
            and (session_id in marked.archived) is archived
            and (directory is None or directory.may_be(files[session_id]))
            and (named is None or whole or session_id in named)
        )
        for session_id in self._by_last_use(wanted, files, history, marked):
            file, past = files[session_id], history.get(session_id)
            mention = None
            if named is not None and session_id not in named:
                mention = self._mention(file, text or "")
                if mention is None:
                    continue
            entry = self._entry(session_id, file, past, marked)
            # The directory of an unreadable transcript may be unknown: then only its folder is compared.
            if entry is not None and (directory is None or not entry.project or directory.is_same(entry.project)):
                yield replace(entry, mention=mention) if mention is not None else entry

    def _mention(self, file: File, text: str) -> str | None:
        try:
            return first_mention(file.path, text)
        except OSError as error:
            self._note_unread(file.path, error)
            return None

    def _named(self, text: str, history: dict[str, HistoryEntry]) -> set[str]:
        """The sessions with a text in their names or prompts."""
        unnoted, found = self._index_all(), self.index.containing(text)
        if found is None:
            unnoted, found = (*self._table.files().values(),), set()
        summaries = {file: self._summary(file) for file in unnoted}
        found |= {file.path for file, summary in summaries.items() if summary and text in _row(file, summary)[2]}
        named = {_session_of(path) for path in found}
        for session_id, past in history.items():
            if any(text in part.casefold() for part in (past.first_prompt, past.project, session_id) if part):
                named.add(session_id)
        return named

    def _by_last_use(
        self,
        wanted: Iterable[tuple[float, str]],
        files: dict[str, File],
        history: dict[str, HistoryEntry],
        marked: MarkedSessions,
    ) -> Iterator[str]:
        """Turns the order of `_by_latest_use` into the order of last use. An opened session is known to be next once
        none remains that could have been used later. Opens no more files than necessary."""
        opened: list[tuple[bool, float, str]] = []
        for latest, session_id in wanted:
            not_pinned = session_id not in marked.pinned
            # Strictly later: sessions with equal times are ordered by id, whichever were opened before.
            while opened and opened[0][:2] < (not_pinned, -latest):
                yield heapq.heappop(opened)[2]
            file = files[session_id]
            used = _last_used(file, self._summary(file), history.get(session_id))
            heapq.heappush(opened, (not_pinned, -used, session_id))
        while opened:
            yield heapq.heappop(opened)[2]

    def _by_latest_use(
        self, files: dict[str, File], history: dict[str, HistoryEntry], marked: MarkedSessions
    ) -> Iterable[tuple[float, str]]:
        """Pinned sessions first, then by the latest possible time of last use: the time of the last message if the
        transcript was opened, otherwise the file's time, which is never earlier. (In a copied home directory all files
        are newer.) Cached while all three inputs are the same objects. Does not check for changes: files added since
        would be sorted into an order without them."""
        with self._lock:
            order = self._order
            unchanged = order.files is files and order.history is history and order.marked is marked
            if unchanged and len(self._last_uses) - order.opened < _SORTED_AFTER:
                return order.sessions
            if order.files is not files and len(self._last_uses) > len(files):
                paths = {file.path for file in files.values()}
                self._last_uses = {path: known for path, known in self._last_uses.items() if path in paths}
            latest: dict[str, float] = {}
            for session_id, file in files.items():
                known = self._last_uses.get(file.path)
                latest[session_id] = known[1] if known is not None and known[0] == file else file.mtime_ns / 1e9
            for session_id in latest.keys() & history.keys():
                latest[session_id] = max(history[session_id].last_used, latest[session_id])
            ids = sorted(latest, key=latest.__getitem__, reverse=True)
            pinned = marked.pinned
            ids = [*filter(pinned.__contains__, ids), *(other for other in ids if other not in pinned)]
            sessions = [(latest[session_id], session_id) for session_id in ids]
            self._order = _Order(files, history, marked, len(self._last_uses), sessions)
            return sessions

    def _entry(
        self, session_id: str, file: File | None, past: HistoryEntry | None, marked: MarkedSessions
    ) -> Entry | None:
        """The entry of a transcript; None if it is missing or has no conversation. If the transcript cannot be read
        now, the data of the directory and the history."""
        if file is None:
            return None
        summary = self._summary(file)
        if summary is None:
            summary = TranscriptSummary("", cwd=past.project if past is not None else "", whole=False)
        if not summary.is_session:
            return None
        return Entry(
            session_id=session_id,
            project=summary.cwd or "",
            title=summary.title,
            first_prompt=summary.first_prompt or (past.first_prompt if past else None),
            last_used=_last_used(file, summary, past),
            branch=summary.branch,
            size=file.size,
            created=seconds_of(summary.first_at),
            messages=summary.messages if summary.whole else None,
            model=summary.model,
            cost_usd=summary.cost_usd,
            estimated_usd=summary.estimated_usd,
            tag=summary.tag,
            pinned=session_id in marked.pinned,
            archived=session_id in marked.archived,
        )

    def _files(self) -> dict[str, File]:
        """By session; for a session that was moved and left another transcript behind, the newest."""
        with self._lock:
            files = self._table.files()
            if self._newest[0] is not files:
                newest: dict[str, File] = {}
                for file in files.values():
                    session_id = _session_of(file.path)
                    if session_id not in newest or file.mtime_ns > newest[session_id].mtime_ns:
                        newest[session_id] = file
                self._newest = files, newest
            return self._newest[1]

    def _history(self) -> dict[str, HistoryEntry]:
        """By session; the same object while nothing changes."""
        try:
            file = stat_file(self._history_path)
            history = self._history_as_of(file) if file is not None else _NO_HISTORY
        except OSError as error:
            self._note_unread(self._history_path, error)
            return self._last_history
        self._unread.pop(self._history_path, None)
        self._last_history = history
        return history

    # -- the facts about transcripts ------------------------------------------------------------------------------

    def _summary(self, file: File) -> TranscriptSummary | None:
        """From memory, the index or the file, of which only the changed part is read. If it cannot be read, the facts
        of an earlier version, or None; that result is not cached."""
        with self._lock:
            cached = self._summaries.get(file.path)
            if cached is not None and cached[0] == file:
                self._summaries.move_to_end(file.path)
                return cached[1]
        # Not under the lock: a large transcript would block all other callers. Two threads may read the same file and
        # get the same result.
        summary = load(self.index.known((file,)).get(file.path, ""))
        if summary is None:
            summary = self._fresh(file)
            if summary is None:
                return load(self.index.earlier((file,)).get(file.path, (0, ""))[1])
            self.index.note([_row(file, summary)])
        self._unread.pop(file.path, None)
        with self._lock:
            self._last_uses[file.path] = file, _last_used(file, summary, None)
            self._summaries[file.path] = file, summary
            if len(self._summaries) > _MAX_CACHED:
                self._summaries.popitem(last=False)
        return summary

    def _note_unread(self, path: str, error: OSError) -> None:
        if path not in self._unread:
            log.warning("%s cannot be read: %s", path, error.strerror or error)
        self._unread[path] = error.strerror or str(error)

    def _read(self, file: File) -> TranscriptSummary:
        """Raises OSError if it cannot be read."""
        size, facts = self.index.earlier((file,)).get(file.path, (0, ""))
        earlier = load(facts)
        # Transcripts only grow: one that is not longer than before was rewritten, and its known facts are invalid.
        return summarize(file.path, file.size, earlier if 0 < size < file.size else None)

    def _index_all(self) -> Sequence[File]:
        """Updates the index for every transcript, a few hundred at a time; returns those that could not be read or
        stored."""
        with self._indexing:
            files = self._table.files()
            if self._indexed is files:
                return []
            current = self.index.current(files)
            unnoted: MutableSequence[File] = []
            missing = [file for file in files.values() if file.path not in current]
            for start in range(0, len(missing), _WRITTEN_AT_ONCE):
                some = missing[start : start + _WRITTEN_AT_ONCE]
                rows = [_row(file, summary) for file in some if (summary := self._fresh(file)) is not None]
                noted = self.index.note(rows)
                if not noted or len(rows) < len(some):
                    unnoted += some
            if not self._table.unread:  # files that could not be listed may still exist
                self.index.forget(self.index.paths() - files.keys())
            # Not if something is missing: the next search tries again although no file has changed.
            self._indexed = None if unnoted else files
            return unnoted

    def _fresh(self, file: File) -> TranscriptSummary | None:
        """The summary read from the file, without caches; None if it cannot be read now."""
        try:
            summary = self._read(file)
        except OSError as error:
            self._note_unread(file.path, error)
            return None
        self._unread.pop(file.path, None)
        return summary


def _last_used(file: File, summary: TranscriptSummary | None, past: HistoryEntry | None) -> float:
    """When the last message was written or typed; the file's time if neither is known."""
    written = seconds_of(summary.last_at) if summary is not None else None
    typed = past.last_used if past is not None else None
    return max((at for at in (written, typed) if at is not None), default=file.mtime_ns / 1e9)


def _session_of(path: str) -> str:
    return path[-_NAME:-_EXTENSION]


def _row(file: File, summary: TranscriptSummary) -> IndexRow:
    parts = (summary.title, summary.prompts, summary.cwd, summary.branch, summary.tag, os.path.basename(file.path))
    searched = "\n".join(part for part in parts if part) if summary.is_session else ""
    return file, dump(summary), searched.casefold()


class _Directory:
    """A requested directory, in any spelling; with `by_name`, only its name."""

    def __init__(self, path: str, *, by_name: bool = False) -> None:
        identity: Callable[[str], object] = normalized if by_name else _identity
        self._spellings = (normalized(path),) if by_name else (_resolved(path), os.path.abspath(path))
        self._identity_of = lru_cache(maxsize=_MAX_CACHED)(identity)
        self._may_have: Callable[[str], bool] = lru_cache(maxsize=_MAX_CACHED)(
            lambda folder: any(in_folder(spelling, folder) for spelling in self._spellings)
        )
        self._identity = identity(path)
        # A line break in a name is shown as a space, and no directory has that name.
        self._as_shown = {shown for path in self._spellings if (shown := clean_line(path)) != path}

    def may_be(self, file: File) -> bool:
        """Whether a session may belong to this directory, by its transcript's folder, which several directories may
        share."""
        return self._may_have(os.path.basename(os.path.dirname(file.path)))

    def is_same(self, path: str) -> bool:
        return self._identity_of(path) == self._identity or path in self._as_shown


def _identity(directory: str) -> object:
    """Equal for every spelling of a directory; for one that no longer exists, only its name is compared."""
    try:
        status = os.stat(directory)
    except (OSError, ValueError):
        return _resolved(directory)
    return status.st_dev, status.st_ino


def normalized(directory: str) -> str:
    """Equal for spellings of a directory that differ only in letters; does not read the disk."""
    return unicodedata.normalize("NFC", os.path.abspath(directory))


def _resolved(directory: str) -> str:
    """The path as Claude Code writes it into transcripts."""
    try:
        return unicodedata.normalize("NFC", os.path.realpath(directory))
    except (OSError, ValueError):
        return directory


# -- the history ------------------------------------------------------------------------------------------------


def read_history(path: str) -> dict[str, HistoryEntry]:
    """The sessions in the last part of the history, by id."""
    history: dict[str, HistoryEntry] = {}
    # Sorted out by bytes first, which is much cheaper than parsing.
    for line in parse_all([raw for raw in last_lines(path, _HISTORY_BYTES)[0] if _NAMES_SESSION.search(raw)]):
        _add_line(history, line)
    return history


def _add_line(history: dict[str, HistoryEntry], line: dict[str, Any]) -> None:
    session_id, project = line.get("sessionId") or line.get("session_id"), line.get("project")
    used = _seconds(line.get("timestamp"))
    if not (isinstance(session_id, str) and isinstance(project, str) and used):
        return
    entry = history.get(session_id)
    if entry is None:
        if not is_session_id(session_id):
            return
        entry = history[session_id] = HistoryEntry(clean(project), None, used)
    entry.last_used = max(entry.last_used, used)
    if entry.first_prompt is None or is_bare_command(entry.first_prompt):
        display = line.get("display")
        prompt = unwrapped(display) if isinstance(display, str) else None
        entry.first_prompt = clip_line(prompt, MAX_TITLE) if prompt else entry.first_prompt


def _seconds(timestamp: Any) -> float | None:
    return timestamp / 1000 if isinstance(timestamp, int | float) and 0 < timestamp < _LATEST_MS else None
