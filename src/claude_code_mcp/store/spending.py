"""What callers have spent today (UTC), over restarts and over all servers that share a state directory.

One file per day, to which every server appends a line per amount in a single write; a line that a crash cut off is
passed over. Nothing is ever rewritten.
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

_KEPT = 31


class Spending:
    """`note` and `today` only look at memory; `write` and `refresh` block on the disk. All may be called anywhere."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = state_dir / "spending"
        self._clock = clock
        self._id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._day = ""
        self._own: defaultdict[str, float] = defaultdict(float)
        self._others: defaultdict[str, float] = defaultdict(float)
        self._read = 0

    def today(self, who: str) -> float:
        """What is known of today."""
        with self._lock:
            self._turn_page()
            return self._own[who] + self._others[who]

    def note(self, who: str, usd: float) -> None:
        """Counts an amount from now on; `write` is to follow."""
        with self._lock:
            self._turn_page()
            self._own[who] += usd

    def write(self, who: str, usd: float) -> None:
        """Writes an amount down."""
        # The line break before it keeps it apart from a line that was cut off.
        line = "\n" + json.dumps({"who": who, "usd": usd, "by": self._id}) + "\n"
        private_directory(self._directory)
        with self._lock:
            self._turn_page()
            descriptor = open_private(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def refresh(self) -> None:
        """Reads what others have written since."""
        with self._lock:
            self._turn_page()
            try:
                with self._path.open("rb") as file:
                    file.seek(self._read)
                    new = file.read()
            except FileNotFoundError:
                return
            whole = new[: new.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                self._count(line)

    def _count(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            who, usd, by = str(entry["who"]), float(entry["usd"]), entry["by"]
        except (ValueError, KeyError, TypeError):
            return
        if by != self._id and usd > 0:
            self._others[who] += usd

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._day}.jsonl"

    def _turn_page(self) -> None:
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        if day != self._day:
            self._day, self._read = day, 0
            self._own.clear()
            self._others.clear()
            self._drop_old()

    def _drop_old(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".jsonl"))
        except FileNotFoundError:
            return
        for name in names[:-_KEPT]:
            (self._directory / name).unlink(missing_ok=True)
