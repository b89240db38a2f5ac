"""A copy of each session elsewhere, from which another machine can go on with it: what the copy is told, and what is
believed of the frames that feed it. Without a fleet there is none, and nothing here is called.

Claude Code reports what it has just written to its transcripts (`--session-mirror`): frames of the type
`transcript_mirror` with a file and its new entries. A command of the session can write such a frame too. So a frame
says nothing of which session it is about: that is the one whose process it came from. Of the file it names only
whether it is the transcript itself or that of a subagent is taken, as a name that cannot lead anywhere. What it says
otherwise goes into the copy of this very session, which the session's own transcript would as well.
"""

import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Protocol, TypeGuard

from ..claude.protocol import Frame, Other, Raw
from ..private_files import entries_at, is_absence
from ..state.session_records import SessionRecord
from ..store.transcripts import EXTENSION, Transcripts, read_lines

_MIRROR = "transcript_mirror"
_SUBAGENT = re.compile(r"subagents/(?:[A-Za-z0-9_-]{1,80}/){0,2}agent-[A-Za-z0-9_-]{1,80}")
_NEVER_REPORTED = frozenset({"api-request", "api-request-shape", "api-request-blob"})
"""What Claude Code notes of its requests to the model in its transcript. It reports none of it, and resumes without."""
_DEEPEST = 3
_MOST_FILES = 10_000

LocalFiles = Callable[[], Iterable[tuple[str, Iterator[Raw]]]]
"""Reads the files of a conversation from this machine's disk, each with its entries: "" is the transcript itself.
Blocks."""


class SessionReplica(Protocol):
    """Takes everything that another machine needs to go on with a session. Only `admit` and `caught_up` wait."""

    async def admit(self, session_id: str, owner: str) -> None:
        """Before a session is given a message: raises ClaudeCodeError unless this machine may write the session."""

    def check_held(self, session_id: str) -> None:
        """With the acceptance of a message, nothing awaited in between: raises SessionBusy if the session was given
        away since `admit`, while the message waited."""

    def process_started(self, session_id: str, files: LocalFiles) -> None:
        """A process writes the session from now on; `files` reads all that it has written, whenever it is called."""

    def entries_written(self, session_id: str, path: str, entries: list[Raw], size: int) -> None:
        """These entries, of so many bytes, were added to a file of the conversation."""

    def process_gone(self, session_id: str) -> None:
        """The process has ended. It may have written more than it has reported."""

    def record_written(self, record: SessionRecord) -> None:
        """The record of a session has changed on this machine's disk."""

    def behind(self, session_id: str) -> bool:
        """Whether the copy lacks something that was reported."""

    def elsewhere(self) -> Collection[str]:
        """Sessions with files on this machine that another one goes on with: what they cost is counted there."""

    async def caught_up(self, session_id: str) -> None:
        """Waits until it does not, or until it is certain that it will get the rest later: a turn ends after this.
        Never raises."""


def mirrored_entries(frame: Other, session_id: str) -> tuple[str, list[Raw]] | None:
    """The file and the entries that such a frame adds to this session's conversation; None for one that is not of this
    session or not well-formed: nothing of that is kept."""
    path = _path_of(frame.raw.get("filePath"), session_id)
    entries = frame.raw.get("entries")
    if path is None or not isinstance(entries, list):
        return None
    return path, [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("type"), str)]


def is_mirror(frame: Frame) -> TypeGuard[Other]:
    return isinstance(frame, Other) and frame.raw.get("type") == _MIRROR


def _path_of(file: object, session_id: str) -> str | None:
    if not isinstance(file, str) or not file.endswith(EXTENSION) or len(file) > 8192:
        return None
    parts = file.removesuffix(EXTENSION).replace("\\", "/").split("/")
    if parts[-1] == session_id:
        return ""
    if session_id not in parts:
        return None
    below = "/".join(parts[parts.index(session_id) + 1 :])
    return below if is_subagent(below) else None


def is_subagent(path: str) -> bool:
    """Whether this names the transcript of a subagent, relative to the directory of its session and without ending."""
    return _SUBAGENT.fullmatch(path) is not None


def local_files(transcripts: Transcripts, session_id: str, cwd: str) -> Iterator[tuple[str, Iterator[Raw]]]:
    """The files of a conversation with their entries, as they are on disk, without those that are never reported. No
    link is followed.

    TranscriptUnreadable if one of them cannot be read; no file if there is none. Blocks.
    """
    main = transcripts.path_of(session_id, cwd)
    if main is None:
        return
    yield "", _reported(main)
    below = str(main).removesuffix(EXTENSION)
    for path in itertools.islice(_subagents(below, "subagents", _DEEPEST), _MOST_FILES):
        yield path, _reported(main.parent / session_id / (path + EXTENSION))


def _reported(path: Path) -> Iterator[Raw]:
    return (line for line in read_lines(path) if line.get("type") not in _NEVER_REPORTED)


def _subagents(directory: str, relative: str, depth: int) -> Iterator[str]:
    try:
        found = entries_at(os.path.join(directory, relative))
    except OSError as error:
        if not is_absence(error):
            raise
        return
    for item in sorted(found, key=lambda item: item.name):
        path = f"{relative}/{item.name}"
        if is_subagent(path.removesuffix(EXTENSION)) and path.endswith(EXTENSION):
            yield path.removesuffix(EXTENSION)
        elif depth > 1 and re.fullmatch(r"[A-Za-z0-9_-]{1,80}", item.name):
            yield from _subagents(directory, path, depth - 1)
