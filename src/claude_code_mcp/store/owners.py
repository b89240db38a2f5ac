"""Who made which session, for servers with several callers: transcripts do not say, and outlive the server.

Only sessions of named callers are written down, one small file each. The one local user owns the machine and with it
every session on it.
"""

import os
from pathlib import Path

from ..private_files import open_private, private_directory
from .transcripts import is_session_id

LOCAL = "local"
"""The owner of sessions where there is only one user."""


class Owners:
    """The names beside the sessions. Functions block on the disk."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "owners"

    def claim(self, session_id: str, owner: str) -> None:
        """Writes down that the session is this caller's."""
        if owner == LOCAL:
            return
        private_directory(self._directory)
        descriptor = open_private(self._directory / session_id, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(owner)

    def may_use(self, session_id: str, caller: str) -> bool:
        """Whether a session that is only on disk is this caller's to use."""
        return caller == LOCAL or self._owner(session_id) == caller

    def of(self, owner: str) -> frozenset[str]:
        """The sessions of a named caller."""
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return frozenset()
        return frozenset(name for name in names if self._owner(name) == owner)

    def _owner(self, session_id: str) -> str | None:
        if not is_session_id(session_id):
            return None
        try:
            return (self._directory / session_id).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
