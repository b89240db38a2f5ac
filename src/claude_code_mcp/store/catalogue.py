"""All sessions on this machine, ours or not, for listings: what the transcripts and the CLI's prompt history say.

Read from files alone, without a running server. A transcript is opened only for an entry that is really listed, and
what was read is kept until the file changes. `history.jsonl` holds what was typed into Claude Code by hand, in all
projects (`-p` runs do not appear in it); a session that only the history knows has no transcript any more and is
listed with size 0. Files that cannot be read, or hold something else, are passed over. All functions block on the
disk.
"""

import itertools
import os
import stat
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..model.text import clip_line
from .transcript_reader import grown_lines, readable_lines
from .transcript_summary import (
    LONGEST_TITLE,
    Heading,
    clean,
    in_folder,
    is_bare_command,
    last_lines,
    parse_all,
    read_heading,
    unwrapped,
)
from .transcripts import is_session_id

_EXTENSION = ".jsonl"
_CACHE_SIZE = 4096
_HISTORY_BYTES = 1 << 20
"""So much of the end of the history is read."""
_LATEST_MS = 10**14
"""A timestamp beyond this is none."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One session in a listing."""

    session_id: str
    project: str
    """The directory it works in."""
    title: str | None
    first_prompt: str | None
    last_used: float
    """Unix seconds."""
    branch: str | None
    size: int
    """Bytes of the transcript; 0 if only the history knows the session, which then cannot be resumed."""


# `Catalogue.list` hides the built-in within its class.
CatalogueEntries = list[Entry]
TranscriptLines = list[str]


@dataclass(slots=True)
class HistoryEntry:
    """What the history knows of one session."""

    project: str
    first_prompt: str | None
    last_used: float


@dataclass(frozen=True, slots=True)
class _File:
    """A file as its directory shows it, unopened. Equal while the file is unchanged, which makes it a cache key."""

    path: str
    mtime_ns: int
    size: int


class Catalogue:
    """The sessions below one configuration directory of the CLI."""

    def __init__(self, config_dir: str) -> None:
        self._projects = os.path.join(config_dir, "projects")
        self._history_path = os.path.join(config_dir, "history.jsonl")
        self._heading = lru_cache(maxsize=_CACHE_SIZE)(_read_heading)
        self._history_as_of = lru_cache(maxsize=1)(lambda file: read_history(file.path))

    def find(self, session_id: str) -> Entry | None:
        """One session; None if neither a transcript nor the history knows it."""
        if not is_session_id(session_id):
            return None
        return self._entry(session_id, self._locate(session_id), self._history().get(session_id))

    def transcript_lines(self, session_id: str, limit: int = 1000) -> Iterator[str]:
        """The end of a session's conversation, readable; nothing if it has no transcript."""
        file = self._locate(session_id) if is_session_id(session_id) else None
        return iter(deque(readable_lines(file.path), max(0, limit)) if file else ())

    def growth(self, session_id: str, offset: int) -> tuple[TranscriptLines, int]:
        """The readable lines that were written behind `offset`, and the offset of the next ones."""
        file = self._locate(session_id)
        return grown_lines(file.path, offset) if file is not None and file.size > offset else ([], offset)

    def list(
        self,
        *,
        project: str | None = None,
        limit: int = 50,
        text: str | None = None,
        only: frozenset[str] | None = None,
    ) -> CatalogueEntries:
        """At most `limit` sessions, newest first: those of the directory `project`, with `text` in title, first prompt,
        directory, branch or id, and with an id in `only`. What is unset does not filter."""
        directory = _Directory(project) if project is not None else None
        entries = self._entries(directory, only)
        if directory is not None:
            entries = (entry for entry in entries if directory.is_same(entry.project))
        if text:
            entries = (entry for entry in entries if _mentions(entry, text.casefold()))
        return [*itertools.islice(entries, max(0, limit))]

    def _entries(self, directory: "_Directory | None", only: frozenset[str] | None) -> Iterator[Entry]:
        """Sessions that may be of the directory, newest first. A generator, so that no more files are opened than the
        caller takes entries."""
        files = _newest_by_session(self._scan(directory))
        history = self._history()
        if directory is not None:
            history = {session_id: entry for session_id, entry in history.items() if directory.is_same(entry.project)}
        used = {session_id: past.last_used for session_id, past in history.items()}
        for session_id, transcript in files.items():
            used[session_id] = max(transcript.mtime_ns / 1e9, used.get(session_id, 0))
        for session_id in sorted(used if only is None else used.keys() & only, key=used.__getitem__, reverse=True):
            file = files.get(session_id)
            if file is None and directory is not None:
                file = self._locate(session_id)  # it may have moved: then its new place counts
            entry = self._entry(session_id, file, history.get(session_id))
            if entry is not None:
                yield entry

    def _entry(self, session_id: str, file: _File | None, past: HistoryEntry | None) -> Entry | None:
        """From the transcript, from the history alone if that cannot be read, or None if neither knows it."""
        heading = self._heading(file) if file is not None else None
        if heading is None or file is None:
            if past is None:
                return None
            return Entry(session_id, past.project, None, past.first_prompt, past.last_used, None, 0)
        return Entry(
            session_id=session_id,
            project=heading.cwd,
            title=heading.title,
            first_prompt=heading.first_prompt or (past.first_prompt if past else None),
            last_used=max(file.mtime_ns / 1e9, past.last_used if past else 0),
            branch=heading.branch,
            size=file.size,
        )

    def _scan(self, directory: "_Directory | None") -> Iterator[tuple[str, _File]]:
        for folder in _scandir(self._projects):
            if directory is None or directory.may_have(folder.name):
                yield from _transcripts_in(folder.path)

    def _locate(self, session_id: str) -> _File | None:
        """The newest transcript of a session: one that was moved may have left another behind."""
        name = session_id + _EXTENSION
        paths = (os.path.join(folder.path, name) for folder in _scandir(self._projects))
        files = [file for path in paths if (file := _file(path)) is not None]
        return max(files, key=lambda file: file.mtime_ns, default=None)

    def _history(self) -> dict[str, HistoryEntry]:
        file = _file(self._history_path)
        return self._history_as_of(file) if file is not None else {}


# -- files and directories ----------------------------------------------------------------------------------------


def _read_heading(file: _File) -> Heading | None:
    return read_heading(file.path, os.path.basename(os.path.dirname(file.path)))


def _scandir(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as found:
            return [*found]
    except OSError:
        return []


def _transcripts_in(folder: str) -> Iterator[tuple[str, _File]]:
    for found in _scandir(folder):
        session_id, extension = os.path.splitext(found.name)
        if extension == _EXTENSION and is_session_id(session_id):
            file = _file(found.path)
            if file is not None:
                yield session_id, file


def _file(path: str) -> _File | None:
    """None for what is missing, empty or no regular file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return None
    return _File(path, status.st_mtime_ns, status.st_size)


def _newest_by_session(found: Iterable[tuple[str, _File]]) -> dict[str, _File]:
    newest: dict[str, _File] = {}
    for session_id, file in found:
        if session_id not in newest or file.mtime_ns > newest[session_id].mtime_ns:
            newest[session_id] = file
    return newest


def _mentions(entry: Entry, text: str) -> bool:
    searched = (entry.title, entry.first_prompt, entry.project, entry.branch, entry.session_id)
    return any(text in part.casefold() for part in searched if part)


class _Directory:
    """A directory that is asked for, however it is spelled."""

    def __init__(self, path: str) -> None:
        self._spellings = (_resolved(path), os.path.abspath(path))
        self._identity_of = lru_cache(maxsize=_CACHE_SIZE)(_identity)
        self._identity = _identity(path)

    def may_have(self, folder: str) -> bool:
        """Whether its transcripts can lie in a folder of this name. Those of other directories may lie there, too."""
        return any(in_folder(spelling, folder) for spelling in self._spellings)

    def is_same(self, path: str) -> bool:
        return self._identity_of(path) == self._identity


def _identity(directory: str) -> object:
    """The same for every spelling of a directory; of one that is gone, only its name can be compared."""
    try:
        status = os.stat(directory)
    except (OSError, ValueError):
        return _resolved(directory)
    return status.st_dev, status.st_ino


def _resolved(directory: str) -> str:
    """The path as Claude Code writes it into transcripts."""
    try:
        return unicodedata.normalize("NFC", os.path.realpath(directory))
    except (OSError, ValueError):
        return directory


# -- the history ------------------------------------------------------------------------------------------------


def read_history(path: str) -> dict[str, HistoryEntry]:
    """The sessions in the latest part of the history, by id."""
    history: dict[str, HistoryEntry] = {}
    for line in parse_all([raw for raw in last_lines(path, _HISTORY_BYTES)[0] if b'"sessionId"' in raw]):
        _add_line(history, line)
    return history


def _add_line(history: dict[str, HistoryEntry], line: dict[str, Any]) -> None:
    session_id, project, used = line.get("sessionId"), line.get("project"), _seconds(line.get("timestamp"))
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
        entry.first_prompt = clip_line(prompt, LONGEST_TITLE) if prompt else entry.first_prompt


def _seconds(timestamp: Any) -> float | None:
    return timestamp / 1000 if isinstance(timestamp, int | float) and 0 < timestamp < _LATEST_MS else None
