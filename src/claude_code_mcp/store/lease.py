"""One writer per session id among all servers of this user: the CLI has no lock of its own.

A lease is an operating-system lock on a small file, so it ends with the process that holds it, however that ends.
The empty files stay: to remove one could split two servers over an old and a new file of the same name.
"""

import hashlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import ProcessFailed, SessionBusy
from ..private_files import FILE, private_directory


def shared_name(config_dir: str) -> str:
    """The name under which all servers keep what belongs to one configuration directory of the CLI."""
    return hashlib.sha256(os.path.realpath(config_dir).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Leases:
    """The leases of one server. Servers that share transcripts share the directory."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        self._directory = state_dir / "locks" / shared_name(config_dir)

    def take(self, session_id: str) -> "Lease":
        """The lease on a session. SessionBusy if it is held, be it by another `Leases` of this process; ProcessFailed
        if the lock file cannot be used."""
        lock = FileLock(self._directory / f"{session_id}.lock", timeout=0, mode=FILE, thread_local=False)
        try:
            private_directory(self._directory)
            lock.acquire()
        except Timeout:
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        except OSError as error:
            # Without the lock two servers could write to one transcript, so nothing is started.
            raise ProcessFailed(f"The lock of session {session_id} cannot be taken: {error}") from None
        return Lease(lock)

    def held(self, session_id: str) -> bool:
        """Whether some server runs the session just now. Takes the lock for an instant: there is no other test."""
        try:
            self.take(session_id).release()
        except SessionBusy:
            return True
        except ProcessFailed:
            return False
        return False


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock

    def release(self) -> None:
        """Lets others write to the session. Releasing twice is harmless."""
        self._lock.release()
