"""Leases on sessions: one writer for each.

The CLI has no lock of its own, and two writers would fork the transcript. A lease is an operating-system lock on a
small file, not a row of the database: it ends with the process that holds it, however that ends. The empty files stay:
to remove one could split two servers over an old and a new file of the same name.

A session has one lease per state directory, however its files are reached. Servers of versions before the database lock
another file, below a directory that is named after the CLI's configuration directory: where that directory exists, both
files are locked.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ProcessFailed, SessionBusy
from ..private_files import private_directory

if TYPE_CHECKING:
    from filelock import FileLock
from .server_life import lock_on


def directory_name(config_dir: str) -> str:
    """The name of what belongs to one configuration directory of the CLI."""
    return hashlib.sha256(os.path.realpath(config_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Leases:
    """The leases of one server. All methods block on the disk."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "locks"

    def take(self, session_id: str) -> "Lease":
        """The lease on a session.

        Raises:
            SessionBusy: it is held, even by another `Leases` of this process.
            ProcessFailed: the lock file cannot be used. Without it two servers could write to one transcript.
        """
        try:
            if not self._directory.is_dir():
                private_directory(self._directory)
            lock = lock_on(self._directory / f"{session_id}.lock")
            lock.acquire()
        except TimeoutError:
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        except OSError as error:
            raise ProcessFailed(f"The lock of session {session_id} cannot be taken: {error}") from None
        return Lease(lock)

    def held(self, session_id: str) -> bool:
        """Whether some server runs the session just now. Takes the lock for an instant: there is no other test.
        ProcessFailed if that cannot be told."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        return False

    def may_be_held(self, session_id: str) -> bool:
        """As `held`, and True where that cannot be told: a session that runs must never be reported as one that
        nobody has."""
        try:
            return self.held(session_id)
        except ProcessFailed:
            return True

    def ever_taken(self, session_id: str) -> bool:
        """Whether any server of this user has ever run a session with this id: the file of its lease stays. True if
        that cannot be told: an id that may be somebody's is not to be taken."""
        try:
            os.lstat(self._directory / f"{session_id}.lock")
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, lock: "FileLock") -> None:
        self._lock = lock

    def release(self) -> None:
        """Lets others write to the session. Releasing twice is harmless."""
        self._lock.release()
