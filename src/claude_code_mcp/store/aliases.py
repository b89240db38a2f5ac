"""Where a session went on whose conversation was cleared: its old id points to the new one, also after a restart.

One small file per old id, replaced as a whole. Functions block on the disk.
"""

import os
from pathlib import Path

from .transcripts import is_session_id

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
