"""Claude Code's own transcripts on disk: the truth about every session, ours or not. Read, never written.

`projects/<directory with everything but letters and digits made ->/<id>.jsonl` below the CLI's configuration
directory. All functions block on the disk: call them from a thread.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from ..model.usage import Usage, read_usage

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_MESSAGES = ("user", "assistant")


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a transcript tells about its session."""

    session_id: str
    path: Path
    cwd: str | None = None
    """The directory it works in."""
    usage: Usage = field(default_factory=Usage)
    """The consumption that the CLI wrote down at its last clean exit."""


def is_session_id(text: str) -> bool:
    """Whether this can name a session at all; anything else must not come near a path."""
    return _SESSION_ID.fullmatch(text) is not None


class Transcripts:
    """The transcripts below one configuration directory of the CLI."""

    def __init__(self, config_dir: str) -> None:
        self._projects = Path(config_dir) / "projects"

    def path_of(self, session_id: str, cwd: str | None = None) -> Path | None:
        """Where the transcript of a session lies; None if there is none. A known `cwd` saves the search.

        A session that was moved to another directory may have left one behind: the newest counts.
        """
        if not is_session_id(session_id):
            return None
        expected = self._projects / _folder_of(cwd) / f"{session_id}.jsonl" if cwd is not None else None
        if expected is not None and expected.is_file():
            return expected
        return max(self._projects.glob(f"*/{session_id}.jsonl"), key=_last_written, default=None)

    def resumable(self, session_id: str, cwd: str | None = None) -> bool:
        """Whether the CLI can resume it: a transcript with a message in it. Reads no further than that."""
        path = self.path_of(session_id, cwd)
        return path is not None and any(line.get("type") in _MESSAGES for line in read_lines(path))

    def read(self, session_id: str) -> Transcript | None:
        """What the transcript tells; None if there is none that can be resumed."""
        path = self.path_of(session_id)
        return _read(session_id, path) if path is not None and self.resumable(session_id) else None


def _folder_of(cwd: str) -> str:
    return re.sub("[^a-zA-Z0-9]", "-", cwd)


def _last_written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _read(session_id: str, path: Path) -> Transcript:
    """One pass over the whole file, since the last cost may be anywhere; only telling lines are parsed."""
    directories: dict[str, None] = {}
    usage = Usage()
    for line in read_lines(path, containing=(b'"cwd"', b'"cost-state"')):
        if line.get("type") == "cost-state":
            usage = read_usage(line.get("modelUsage"))
        elif isinstance(line.get("cwd"), str):
            directories[line["cwd"]] = None
    # A fork begins with lines of the session it comes from: the folder tells which directory is its own.
    own = (cwd for cwd in directories if _folder_of(cwd) == path.parent.name)
    return Transcript(session_id, path, next(own, next(iter(directories), None)), usage)
