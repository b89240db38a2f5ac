"""Claude Code's own transcripts on disk: the truth about every session, ours or not. Read, never written.

`projects/<directory with everything but letters and digits made ->/<id>.jsonl` below the CLI's configuration
directory. All functions block on the disk: call them from a thread.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..model.usage import Usage, read_usage

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_TAIL = 1 << 20


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a transcript tells about its session."""

    session_id: str
    path: Path
    cwd: str | None = None
    usage: Usage = field(default_factory=Usage)
    """The consumption that the CLI wrote down at its last clean exit."""


def is_session_id(text: str) -> bool:
    """Whether this can name a session at all; anything else must not come near a path."""
    return _SESSION_ID.fullmatch(text) is not None


class Transcripts:
    """The transcripts below one configuration directory of the CLI."""

    def __init__(self, config_dir: str) -> None:
        self._projects = Path(config_dir) / "projects"

    def path_of(self, session_id: str) -> Path | None:
        """Where the transcript of a session lies; None if there is none."""
        if not is_session_id(session_id):
            return None
        return next(iter(self._projects.glob(f"*/{session_id}.jsonl")), None)

    def resumable(self, session_id: str) -> bool:
        """Whether the CLI can resume it: a transcript with a message in it."""
        path = self.path_of(session_id)
        return path is not None and any(line.get("type") in ("user", "assistant") for line in read_lines(path))

    def read(self, session_id: str) -> Transcript | None:
        """What the transcript tells; None if there is none that can be resumed."""
        path = self.path_of(session_id)
        if path is None:
            return None
        cwd = next((line["cwd"] for line in read_lines(path) if isinstance(line.get("cwd"), str)), None)
        return Transcript(session_id, path, cwd, _last_usage(path)) if cwd is not None else None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, without the lines that are none."""
    try:
        with path.open("rb") as file:
            for line in file:
                parsed = _parse(line)
                if parsed is not None:
                    yield parsed
    except OSError:
        return


def _last_usage(path: Path) -> Usage:
    with path.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().split(b"\n")
    costs = (_parse(line) for line in reversed(lines) if b'"cost-state"' in line)
    last = next((cost for cost in costs if cost and cost.get("type") == "cost-state"), {})
    return read_usage(last.get("modelUsage"))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
