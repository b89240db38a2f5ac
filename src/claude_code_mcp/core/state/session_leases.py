"""Leases on sessions: one writer for each.

The CLI has no lock, and two writers would fork the transcript. A lease is an operating-system lock on a small file, not
a row of the database: it ends with the process that holds it, however that process ends. The empty files stay, because
removing one could split two servers over an old and a new file of the same name. A session has one lease per state
directory, however its files are reached.

Servers of versions before the database lock another file, below a directory named after the CLI's configuration
directory: if that directory exists, both files are locked.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ProcessFailed, SessionBusy
from ..private_files import private_directory

if TYPE_CHECKING:
    from filelock import FileLock
from .server_life import file_lock_at


def directory_name(config_dir: str) -> str:
    """A name for data that belongs to one configuration directory of the CLI."""
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
            lock = file_lock_at(self._directory / f"{session_id}.lock")
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
        """Whether a server runs the session now. Takes the lock for an instant, because there is no other test. Raises
        ProcessFailed if that cannot be determined."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        return False

    def may_be_held(self, session_id: str) -> bool:
        """Like `held`, but True if that cannot be determined: a running session must never be reported as free."""
        try:
            return self.held(session_id)
        except ProcessFailed:
            return True

    def was_ever_leased(self, session_id: str) -> bool:
        """Whether a server of this user has ever run a session with this id: the lease's file stays. True if that
        cannot be determined."""
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
        """Releases the session to other writers. May be repeated."""
        self._lock.release()
