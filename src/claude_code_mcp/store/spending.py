"""What callers have spent today (UTC), over restarts and over all servers that share a state directory.

One file per day, to which every server appends a line per amount in a single write; a line that a crash cut off is
passed over. No file is rewritten; those of more than a month ago are removed when a new day begins.
"""

import json
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from ..private_files import open_private, private_directory

_DAYS_KEPT = 31


class Spending:
    """`note` and `today` use memory only; `write` and `refresh` block on the disk. All are thread-safe."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = state_dir / "spending"
        self._clock = clock
        self._server_id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._day = ""
        self._own: defaultdict[str, float] = defaultdict(float)
        self._others: defaultdict[str, float] = defaultdict(float)
        self._bytes_read = 0

    def today(self, who: str) -> float:
        """What the caller has spent today, as far as this server knows: `refresh` adds what others wrote."""
        with self._lock:
            self._begin_day()
            return self._own[who] + self._others[who]

    def note(self, who: str, usd: float) -> None:
        """Counts an amount at once, before `write` has put it on the disk."""
        with self._lock:
            self._begin_day()
            self._own[who] += usd

    def write(self, who: str, usd: float) -> None:
        """Appends an amount to today's file. OSError if that cannot be done."""
        # The line break before it keeps it apart from a line that was cut off.
        line = "\n" + json.dumps({"who": who, "usd": usd, "by": self._server_id}) + "\n"
        private_directory(self._directory)
        with self._lock:
            self._begin_day()
            descriptor = open_private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def refresh(self) -> None:
        """Reads what other servers have written since the last call."""
        with self._lock:
            self._begin_day()
            try:
                with self._path.open("rb") as file:
                    file.seek(self._bytes_read)
                    new = file.read()
            except FileNotFoundError:
                return
            whole = new[: new.rfind(b"\n") + 1]
            self._bytes_read += len(whole)
            for line in whole.splitlines():
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            who, usd, by = str(entry["who"]), float(entry["usd"]), entry["by"]
        except (ValueError, KeyError, TypeError):
            return
        if by != self._server_id and usd > 0:
            self._others[who] += usd

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._day}.jsonl"

    def _begin_day(self) -> None:
        """Starts from zero if the day has changed since the last call; the caller holds the lock."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        if day != self._day:
            self._day, self._bytes_read = day, 0
            self._own.clear()
            self._others.clear()
            self._remove_old_files()

    def _remove_old_files(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".jsonl"))
        except FileNotFoundError:
            return
        for name in names[:-_DAYS_KEPT]:
            (self._directory / name).unlink(missing_ok=True)
