"""An append-only file of JSON lines with rotation, written by a thread of its own.

`write` never waits. The queue is bounded; an entry that finds no room, or cannot be written, is counted as lost, and
the count is written as soon as the file takes something again. `close` writes everything that was accepted.
"""

import contextlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from .. import json_text
from ..model.text import iso
from ..private_files import open_private, private_directory

log = logging.getLogger(__name__)

_FILES_KEPT = 5
_BATCH = 500


class RotatingJsonl:
    """Several servers may write to one file. When it is full it becomes `name.1`, and so on up to `name.5`."""

    def __init__(self, path: Path, max_bytes: int, capacity: int = 10_000) -> None:
        """OSError if the file cannot be written."""
        self.path = path
        self._max_bytes = max_bytes
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(capacity)
        self._lock = threading.Lock()
        self._lost = 0
        self._failing = False
        private_directory(path.parent)
        self._file = self._open()
        self._thread = threading.Thread(target=self._write_batches, name="audit", daemon=True)
        self._thread.start()

    def write(self, entry: Mapping[str, Any]) -> None:
        """Accepts an entry, from any thread, without waiting."""
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._lose(1)

    def close(self) -> None:
        """Blocks until everything that was accepted is on the disk."""
        self._queue.put(None)
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------------------

    def _write_batches(self) -> None:
        ended = False
        while not ended:
            batch = [self._queue.get()]
            while len(batch) < _BATCH and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            ended = None in batch
            self._write_batch([entry for entry in batch if entry is not None])
        if self._lost:
            self._write_batch([])
        with contextlib.suppress(OSError):  # a pipe has no disk behind it
            os.fsync(self._file)
        os.close(self._file)

    def _write_batch(self, entries: list[Mapping[str, Any]]) -> None:
        with self._lock:
            lost, self._lost = self._lost, 0
        if lost:
            entries = [{"at": timestamp(), "act": "audit_lost", "entries": lost}, *entries]
        text = "".join(map(_line, entries))
        try:
            self._rotate_if_full(len(text))
            _write_all(self._file, text.encode("utf-8", "replace"))
            self._failing = False
        except OSError as error:
            self._lose(lost + len(entries) - bool(lost))
            if not self._failing:
                log.error("the audit trail cannot be written: %s", error)
            self._failing = True

    def _lose(self, entries: int) -> None:
        with self._lock:
            self._lost += entries

    def _rotate_if_full(self, length: int) -> None:
        """Makes room for so many characters. Follows a rotation that another server has done; the lock keeps two
        servers from rotating the same file twice."""
        if self._is_moved():
            self._reopen()
        if os.fstat(self._file).st_size + length > self._max_bytes and os.fstat(self._file).st_size:
            with FileLock(f"{self.path}.lock", mode=0o600):
                if not self._is_moved():
                    self._rotate()
            self._reopen()

    def _rotate(self) -> None:
        for number in range(_FILES_KEPT - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        self.path.replace(self._numbered(1))

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _is_moved(self) -> bool:
        try:
            there, here = os.stat(self.path, follow_symlinks=False), os.fstat(self._file)
        except FileNotFoundError:
            return True
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _reopen(self) -> None:
        opened = self._open()
        os.close(self._file)
        self._file = opened

    def _open(self) -> int:
        return open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _line(entry: Mapping[str, Any]) -> str:
    """An entry as a line. One that JSON cannot take is replaced by a note: the thread must not end over it."""
    try:
        return json.dumps(json_text.sound(entry), ensure_ascii=False, default=str, allow_nan=False) + "\n"
    except (ValueError, TypeError, RecursionError) as error:
        note = {"at": timestamp(), "act": str(entry.get("act")), "unwritable": str(error)}
        return json.dumps(json_text.sound(note), ensure_ascii=False) + "\n"


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def timestamp() -> str:
    """Now, in UTC, to the millisecond."""
    return iso(time.time())
