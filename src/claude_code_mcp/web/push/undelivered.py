"""News that wait to be delivered, on disk: what was not delivered when a server stopped is taken up by the next one.

Each server has a folder of its own, with a private file for each notice and a lock that is held as long as it runs. A
server that starts takes the files out of folders whose lock nobody holds. There is nothing in a file that is not sent
anyway, and of the receiver no more than its id. Every method blocks on the disk.
"""

import contextlib
import errno
import logging
import os
import re
import secrets
import shutil
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ... import json_text
from ...private_files import private_directory, read_regular, replace_file
from .news import Notice

log = logging.getLogger(__name__)

_LARGEST = 64 << 10
_MOST_TAKEN = 1000
"""Files of servers that have ended which are looked at."""
_DELIVERY = re.compile(r"msg_[0-9a-f]{8,64}")
_FOLDER = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A notice on its way to one receiver."""

    delivery_id: str
    """The same for every try, also after a restart: receivers know by it what they have already."""
    principal: str
    receiver_id: str
    notice: Notice


class WaitingFiles:
    """Those of one server, below a directory that all servers of the user share."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._name = secrets.token_hex(8)
        self._lock: FileLock | None = None
        self._closed = False
        self._making = threading.Lock()

    @property
    def _folder(self) -> Path:
        """Our own; made, and locked, when it is needed first. Raises OSError, also once it is closed: a lock that was
        taken then would keep what is in it from everybody."""
        folder = self._directory / self._name
        with self._making:  # several threads may need it first
            if self._closed:
                raise OSError(errno.EPIPE, "the server has stopped", str(folder))
            if self._lock is None:
                private_directory(self._directory)
                lock = FileLock(folder.with_suffix(".lock"), mode=0o600, thread_local=False)
                lock.acquire(blocking=False)
                private_directory(folder)
                self._lock = lock
        return folder

    def add(self, waiting: Waiting) -> None:
        """Is on the disk when this returns. Raises OSError."""
        replace_file(self._folder / waiting.delivery_id, json_text.encode(asdict(waiting)))

    def remove(self, delivery_id: str) -> None:
        """A no-op for one that is not there."""
        with contextlib.suppress(OSError):
            os.unlink(self._directory / self._name / delivery_id)

    def take_over(self) -> list[Waiting]:
        """What servers that have ended did not deliver, oldest first; it is in our own folder from now on. Raises
        OSError."""
        try:
            names = {Path(name).stem for name in os.listdir(self._directory)}
        except FileNotFoundError:
            return []
        found: list[Waiting] = []
        for name in sorted(names):
            if not self._closed and name != self._name and _FOLDER.fullmatch(name):
                found += self._take_folder(self._directory / name, _MOST_TAKEN - len(found))
        return sorted(found, key=lambda waiting: waiting.notice.at)

    def _take_folder(self, folder: Path, most: int) -> list[Waiting]:
        lock = FileLock(folder.with_suffix(".lock"), mode=0o600)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            return []  # its server is alive
        try:
            names = sorted(name for name in os.listdir(folder) if _DELIVERY.fullmatch(name))
        except FileNotFoundError:
            names = []
        try:
            taken = [waiting for name in names[:most] if (waiting := _read(folder / name)) is not None]
            for waiting in taken:
                os.replace(folder / waiting.delivery_id, self._folder / waiting.delivery_id)
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_suffix(".lock").unlink(missing_ok=True)
        finally:
            lock.release()
        return taken

    def close(self) -> None:
        """What waits stays there; nothing of us is left if nothing does."""
        with self._making:
            self._closed = True
            lock, self._lock = self._lock, None
        if lock is None:
            return
        folder = self._directory / self._name
        with contextlib.suppress(OSError):
            folder.rmdir()
            folder.with_suffix(".lock").unlink()
        lock.release()


def _read(path: Path) -> Waiting | None:
    try:
        fields = json_text.decode(read_regular(path, _LARGEST))
        return Waiting(**{**fields, "notice": Notice(**fields["notice"]), "delivery_id": path.name})
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.info("a notice that waited cannot be read: %s", type(error).__name__)
        return None
