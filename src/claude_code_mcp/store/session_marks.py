"""Which sessions a person has pinned or archived, and which were deleted although the CLI's prompt history names them.

One JSON file per configuration directory of the CLI, shared by all servers of the user: it is read again when it has
changed, and replaced as a whole under a lock. A file that cannot be read counts as no marks, and is not overwritten.
All functions block on the disk.
"""

import json
import os
import threading
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..errors import ClaudeCodeError
from ..private_files import FILE, private_directory, replace_file
from .file_changes import File, look_at
from .session_records import shared_name
from .transcripts import is_session_id

_LARGEST = 64 << 20
_LOCK_SECONDS = 10.0


class Mark(StrEnum):
    PINNED = "pinned"
    ARCHIVED = "archived"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class MarkedSessions:
    """The ids of the sessions that have each mark; the same object until the marks change."""

    pinned: frozenset[str] = frozenset()
    archived: frozenset[str] = frozenset()
    deleted: frozenset[str] = frozenset()


class Marks:
    """The marks below one configuration directory. Without a state directory there are none, and none can be set."""

    def __init__(self, state_dir: Path | None, config_dir: str) -> None:
        place = Path(os.path.realpath(state_dir)) if state_dir is not None else None
        self._path = place / "marks" / f"{shared_name(config_dir)}.json" if place is not None else None
        self._lock = threading.Lock()
        self._read_as: File | None = None
        self._marked = MarkedSessions()

    def read(self) -> MarkedSessions:
        """All marks, read anew if the file has changed."""
        file = look_at(str(self._path)) if self._path is not None else None
        with self._lock:
            if file != self._read_as:
                known = (_readable(self._path) if file is not None else None) or {}
                self._read_as = file
                self._marked = MarkedSessions(**{mark: known.get(mark, frozenset()) for mark in Mark})
            return self._marked

    def set(self, session_id: str, mark: Mark, on: bool) -> None:
        """Marks a session, or takes the mark away; on disk when this returns. OSError if that cannot be done."""
        if self._path is None or not is_session_id(session_id):
            raise ValueError("there is nothing to mark")
        private_directory(self._path.parent)
        from filelock import FileLock  # noqa: PLC0415 - takes a while, and a first call needs none

        with FileLock(self._path.with_suffix(".lock"), timeout=_LOCK_SECONDS, mode=FILE):
            marks = _readable(self._path)
            if marks is None:
                raise ClaudeCodeError(f"{self._path} cannot be read, so that nothing is changed in it.")
            before = marks.get(mark, frozenset())
            marks[mark] = before | {session_id} if on else before - {session_id}
            content = {name: sorted(ids) for name, ids in marks.items()}
            replace_file(self._path, json.dumps(content, separators=(",", ":")).encode())


def _readable(path: Path | None) -> dict[str, frozenset[str]] | None:
    """None for a file that is there and cannot be read."""
    try:
        assert path is not None
        with path.open("rb") as file:
            content = json.loads(file.read(_LARGEST))
        return {str(name): frozenset(filter(is_session_id, ids)) for name, ids in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
