"""Claude Code's transcript entries, as its process reports them and as they are in the files on disk.

With `--session-mirror` the process reports the entries that it has just written, in frames of the type
`transcript_mirror` with a file and its new entries. A command of the session can write such a frame too. Therefore the
session of a frame is determined by the process that sent it, not by its content. From the file name only one thing is
used: whether it is the transcript itself or a subagent's transcript, as a name that cannot point outside the session.
The entries go into the copy of this session only, where the session's own transcript would put them as well.
"""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ...core.claude.protocol import Other, Raw
from ...core.private_files import entries_at, is_absence
from ...core.transcripts.transcripts import EXTENSION, Transcripts, read_lines

_SUBAGENT = re.compile(r"subagents/(?:[A-Za-z0-9_-]{1,80}/){0,2}agent-[A-Za-z0-9_-]{1,80}")
_NEVER_REPORTED = frozenset({"api-request", "api-request-shape", "api-request-blob"})
"""Entries about model requests, which Claude Code writes to its transcript but neither reports nor needs to resume."""
_MAX_DEPTH = 3
_MAX_FILES = 10_000

LocalFiles = Callable[[], Iterable[tuple[str, Iterator[Raw]]]]
"""Reads the files of a conversation from this machine's disk, each with its entries: "" is the transcript. Blocks."""


def mirrored_entries(frame: Other, session_id: str) -> tuple[str, list[Raw]] | None:
    """The file and the entries that such a frame adds to this session's conversation; None if it is of another session
    or malformed."""
    path = _path_of(frame.raw.get("filePath"), session_id)
    entries = frame.raw.get("entries")
    if path is None or not isinstance(entries, list):
        return None
    return path, [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("type"), str)]


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
    """Whether this is a subagent's transcript, relative to the session's directory and without extension."""
    return _SUBAGENT.fullmatch(path) is not None


def local_files(transcripts: Transcripts, session_id: str, cwd: str) -> Iterator[tuple[str, Iterator[Raw]]]:
    """The files of a conversation with their entries on disk, without those that are never reported. Follows no links.
    Raises TranscriptUnreadable if one cannot be read; empty if there are none. Blocks."""
    main = transcripts.path_of(session_id, cwd)
    if main is None:
        return
    yield "", _reported(main)
    below = str(main).removesuffix(EXTENSION)
    for path in itertools.islice(_subagents(below, "subagents", _MAX_DEPTH), _MAX_FILES):
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
