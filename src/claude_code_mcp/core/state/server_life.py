"""Which servers are alive.

Rows that a server owns only while it lives, such as reservations and deliveries, carry the server's id. Each server
holds an operating-system lock on its own file (`ServerLife`). Once another process can take that lock, the server is
dead, and its rows may be removed or taken over. All methods block on the disk.
"""

import contextlib
import os
import re
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from ..private_files import FILE, private_directory

if TYPE_CHECKING:
    from filelock import FileLock


_SUFFIX = ".alive"
_ID = re.compile(r"[0-9a-f]{8,64}")


class ServerLife:
    """The life of one server, identified by `id`. It begins with `begin`, and ends with `end` or the process."""

    def __init__(self, state_dir: Path) -> None:
        self.id = uuid.uuid4().hex[:16]
        self._directory = state_dir / "servers"
        self.file = self._file(self.id)
        """Exists while the server lives; others touch it to send it a request."""
        self._lock: FileLock | None = None
        self._beginning = threading.Lock()
        self._ended = False

    @property
    def begun(self) -> bool:
        return self._lock is not None

    def begin(self) -> None:
        """Takes the lock by which others see that this server lives. May be repeated. Raises OSError."""
        with self._beginning:  # several threads may need it first
            if self._ended:
                raise OSError("the server has stopped")
            if self._lock is None:
                private_directory(self._directory)
                lock = file_lock_at(self.file)
                lock.acquire()
                self._lock = lock

    def lives(self, server: str) -> bool:
        """Whether the server with this id lives; this one does."""
        if server == self.id:
            return True
        if not _ID.fullmatch(server):
            return False
        path = self._file(server)
        if not path.exists():
            return False
        lock = file_lock_at(path)
        try:
            lock.acquire()
        except OSError:  # also raised if another process holds the lock
            return True
        # The holder of the lock is the only one: a dead server cannot return, because every life has a new id.
        with contextlib.suppress(OSError):
            path.unlink()
        lock.release()
        return False

    def end(self) -> None:
        """Others see from now on that this server is dead. May be repeated."""
        with self._beginning:
            self._ended = True
            lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                # While the lock is held: after its release another server, in `lives`, may have it.
                self.file.unlink()
            lock.release()

    def wake(self, server: str) -> None:
        """Makes another server check its requests. Does nothing if it is dead."""
        with contextlib.suppress(OSError):
            os.utime(self._file(server))

    def _file(self, server: str) -> Path:
        return self._directory / f"{server}{_SUFFIX}"


def file_lock_at(path: Path) -> "FileLock":
    from filelock import FileLock  # noqa: PLC0415 - takes a while, and a first call needs none

    return FileLock(path, timeout=0, mode=FILE, thread_local=False)
