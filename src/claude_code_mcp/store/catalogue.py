"""`history.jsonl`: what was typed into Claude Code by hand, in all projects. `-p` runs do not appear in it."""

import itertools
import os
import stat
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .jsonl import clean, last_lines, parse_all
from .transcript_reader import grown_lines, readable_lines
from .transcript_summary import Heading, in_folder, is_bare_command, read_heading, shortened, unwrapped
from .transcripts import is_session_id

_READ = 1 << 20


_LATEST = 10**14


@dataclass(slots=True)
class Memory:
    """What the history remembers of one session."""

    project: str
    first_prompt: str | None
    last_used: float


def read_history(path: str) -> dict[str, Memory]:
    """The sessions in the latest part of the history, by id."""
    memories: dict[str, Memory] = {}
    for line in parse_all([raw for raw in last_lines(path, _READ)[0] if b'"sessionId"' in raw]):
        _remember(memories, line)
    return memories


def _remember(memories: dict[str, Memory], line: dict[str, Any]) -> None:
    session_id, project, used = line.get("sessionId"), line.get("project"), _seconds(line.get("timestamp"))
    if not (isinstance(session_id, str) and isinstance(project, str) and used):
        return
    memory = memories.get(session_id)
    if memory is None:
        if not is_session_id(session_id):
            return
        memory = memories[session_id] = Memory(clean(project), None, used)
    memory.last_used = max(memory.last_used, used)
    if memory.first_prompt is None or is_bare_command(memory.first_prompt):
        memory.first_prompt = _prompt(line.get("display")) or memory.first_prompt


def _prompt(display: Any) -> str | None:
    prompt = unwrapped(display) if isinstance(display, str) else None
    return shortened(prompt) if prompt else None


def _seconds(timestamp: Any) -> float | None:
    return timestamp / 1000 if isinstance(timestamp, int | float) and 0 < timestamp < _LATEST else None


_REMEMBERED = 4096


_EXTENSION = ".jsonl"


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


CatalogueEntries = list[Entry]


TranscriptLines = list[str]


@dataclass(frozen=True, slots=True)
class _File:
    """A transcript as the directory shows it, unopened."""

    path: str
    mtime_ns: int
    size: int


class Catalogue:
    """The sessions below one configuration directory of the CLI. What was read is remembered until it changes."""

    def __init__(self, config_dir: str) -> None:
        self._projects = os.path.join(config_dir, "projects")
        self._history_path = os.path.join(config_dir, "history.jsonl")
        self._heading = lru_cache(maxsize=_REMEMBERED)(_read_heading)
        self._history_as_of = lru_cache(maxsize=1)(_read_history)

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
        """Newest first; of one directory, with a text in title, first prompt, directory, branch or id, and `only`
        those with these ids."""
        directory = _Directory(project) if project is not None else None
        entries = self._entries(directory, only)
        if directory is not None:
            entries = (entry for entry in entries if directory.is_same(entry.project))
        if text:
            entries = (entry for entry in entries if _mentions(entry, text.casefold()))
        return [*itertools.islice(entries, max(0, limit))]

    def _entries(self, directory: "_Directory | None", only: frozenset[str] | None) -> Iterator[Entry]:
        """Those that may be of a directory. Lazily, so that no more files are opened than are asked for."""
        files = _newest_by_session(self._scan(directory))
        memories = self._history()
        if directory is not None:
            memories = {one: memory for one, memory in memories.items() if directory.is_same(memory.project)}
        used = {session_id: memory.last_used for session_id, memory in memories.items()}
        for session_id, transcript in files.items():
            used[session_id] = max(transcript.mtime_ns / 1e9, used.get(session_id, 0))
        for session_id in sorted(used if only is None else used.keys() & only, key=used.__getitem__, reverse=True):
            file = files.get(session_id)
            if file is None and directory is not None:
                file = self._locate(session_id)  # it may have moved: then its new place counts
            entry = self._entry(session_id, file, memories.get(session_id))
            if entry is not None:
                yield entry

    def _entry(self, session_id: str, file: _File | None, memory: Memory | None) -> Entry | None:
        heading = self._heading(file) if file is not None else None
        if heading is None or file is None:
            return _remembered(session_id, memory) if memory is not None else None
        return Entry(
            session_id=session_id,
            project=heading.cwd,
            title=heading.title,
            first_prompt=heading.first_prompt or (memory.first_prompt if memory else None),
            last_used=max(file.mtime_ns / 1e9, memory.last_used if memory else 0),
            branch=heading.branch,
            size=file.size,
        )

    def _scan(self, directory: "_Directory | None") -> Iterator[tuple[str, _File]]:
        for folder in _scandir(self._projects):
            if directory is None or directory.may_have(folder.name):
                yield from _transcripts_in(folder.path)

    def _locate(self, session_id: str) -> _File | None:
        name = session_id + _EXTENSION
        paths = (os.path.join(folder.path, name) for folder in _scandir(self._projects))
        files = [file for path in paths if (file := _file(path)) is not None]
        return max(files, key=lambda file: file.mtime_ns, default=None)

    def _history(self) -> dict[str, Memory]:
        file = _file(self._history_path)
        return self._history_as_of(file) if file is not None else {}


def _read_heading(file: _File) -> Heading | None:
    return read_heading(file.path, os.path.basename(os.path.dirname(file.path)))


def _read_history(file: _File) -> dict[str, Memory]:
    return read_history(file.path)


def _remembered(session_id: str, memory: Memory) -> Entry:
    return Entry(session_id, memory.project, None, memory.first_prompt, memory.last_used, None, 0)


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
    try:
        facts = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
        return None
    return _File(path, facts.st_mtime_ns, facts.st_size)


def _newest_by_session(found: Iterable[tuple[str, _File]]) -> dict[str, _File]:
    newest: dict[str, _File] = {}
    for session_id, file in found:
        if session_id not in newest or file.mtime_ns > newest[session_id].mtime_ns:
            newest[session_id] = file
    return newest


def _mentions(entry: Entry, text: str) -> bool:
    told = (entry.title, entry.first_prompt, entry.project, entry.branch, entry.session_id)
    return any(text in part.casefold() for part in told if part)


class _Directory:
    """A directory that is asked for, however it is spelled."""

    def __init__(self, path: str) -> None:
        self._spellings = (_resolved(path), os.path.abspath(path))
        self._identity = lru_cache(maxsize=_REMEMBERED)(_identity)
        self._own = _identity(path)

    def may_have(self, folder: str) -> bool:
        """Whether its transcripts can lie in a folder of this name; those of others can, too."""
        return any(in_folder(spelling, folder) for spelling in self._spellings)

    def is_same(self, path: str) -> bool:
        return self._identity(path) == self._own


def _identity(directory: str) -> object:
    """The same for every spelling of a directory; one that is gone is known by its name alone."""
    try:
        facts = os.stat(directory)
    except (OSError, ValueError):
        return _resolved(directory)
    return facts.st_dev, facts.st_ino


def _resolved(directory: str) -> str:
    """As Claude Code writes it."""
    try:
        return unicodedata.normalize("NFC", os.path.realpath(directory))
    except (OSError, ValueError):
        return directory
