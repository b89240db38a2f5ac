"""One writer per session id among all servers of this user: the CLI has no lock of its own.

A lease is an operating-system lock on a small file, so it ends with the process that holds it, however that ends.
"""

import hashlib
import os
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import SessionBusy


class Leases:
    """The leases of one server. Servers that share transcripts share the directory."""

    def __init__(self, state_dir: Path, config_dir: str) -> None:
        shared = hashlib.sha256(os.path.abspath(config_dir).encode()).hexdigest()[:16]
        self._directory = state_dir / "locks" / shared

    def take(self, session_id: str) -> "Lease":
        """The lease on a session; SessionBusy if another server has it."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._directory / f"{session_id}.lock"
        lock = FileLock(path, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise SessionBusy(
                f"Session {session_id} is in use by another claude-code-mcp server on this machine.",
                session_id=session_id,
            ) from None
        return Lease(lock)


class Lease:
    """Held until `release`, or until this process ends."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock

    def release(self) -> None:
        self._lock.release()
