"""Leases: one server is the only writer of a session id among all servers of this user.

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
from ..private_files import FILE, private_directory

if TYPE_CHECKING:
    from filelock import FileLock


def directory_name(config_dir: str) -> str:
    """The name of what belongs to one configuration directory of the CLI."""
    return hashlib.sha256(os.path.realpath(config_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Leases:
    """The leases of one server. All methods block on the disk."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "locks"
        self._earlier = self._directory / directory_name(config_dir)

    def take(self, session_id: str) -> "Lease":
        """The lease on a session.

        Raises:
            SessionBusy: it is held, be it by another `Leases` of this process.
            ProcessFailed: the lock file cannot be used. Without it two servers could write to one transcript.
        """
        directories = [self._directory, *([self._earlier] if self._earlier.is_dir() else [])]
        lease = Lease([])
        try:
            private_directory(self._directory)
            for directory in directories:
                lease.add(directory / f"{session_id}.lock")
        except TimeoutError:
            lease.release()
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        except OSError as error:
            lease.release()
            raise ProcessFailed(f"The lock of session {session_id} cannot be taken: {error}") from None
        return lease

    def held(self, session_id: str) -> bool:
        """Whether some server runs the session just now. Takes the lock for an instant: there is no other test."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        except ProcessFailed:
            return False
        return False

    def ever_taken(self, session_id: str) -> bool:
        """Whether any server of this user has ever run a session with this id: the file of its lease stays."""
        names = (self._directory, *self._directory.glob("*/"))
        return any(os.path.lexists(directory / f"{session_id}.lock") for directory in names)


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, locks: "list[FileLock]") -> None:
        self._locks = locks

    def add(self, path: Path) -> None:
        """Locks one more file; TimeoutError if somebody else has."""
        from filelock import FileLock  # noqa: PLC0415 - takes a while, and a first call needs none

        lock = FileLock(path, timeout=0, mode=FILE, thread_local=False)
        lock.acquire()
        self._locks.append(lock)

    def release(self) -> None:
        """Lets others write to the session. Releasing twice is harmless."""
        for lock in self._locks:
            lock.release()
