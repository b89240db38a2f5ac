"""What callers have spent today (UTC), and what turns that run may still spend, over restarts and over all servers that
share a state directory.

One file per day, to which every server appends a line per change in a single write; a line that a crash cut off is
passed over. No file is rewritten; those of more than a month ago are removed when a new day begins.

A reservation belongs to a session that is at work. It is made under a lock that all servers share, so that two of them
cannot give away the same dollars, and it becomes smaller as the session spends. The reservations of a server that has
died count no more: every server holds a lock of its own while it lives.
"""

import contextlib
import json
import os
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..private_files import FILE, open_private, private_directory

if TYPE_CHECKING:
    from filelock import FileLock

_DAYS_KEPT = 31
_LIFE_KEPT = 86_400.0
"""Seconds after which the lock of a server that is gone is removed; a younger one may just be about to be taken."""
_LOCK_SECONDS = 10.0
"""How long to wait for another server that is making a reservation."""


class Spending:
    """`note`, `today`, `reserved`, `release` and `moved` use memory only; the others block on the disk. All are
    thread-safe."""

    def __init__(self, state_dir: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = state_dir / "spending"
        self._clock = clock
        self._server_id = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        """Held while a line is made and appended, so that the last line of a session has its last reservation."""
        self._day = ""
        self._own: defaultdict[str, float] = defaultdict(float)
        self._others: defaultdict[str, float] = defaultdict(float)
        self._reserved: dict[str, tuple[str, float]] = {}
        """By session of this server: who reserved, and how much is left of it."""
        self._reserved_elsewhere: dict[tuple[str, str], tuple[str, float]] = {}
        """The same by server and session."""
        self._bytes_read = 0
        self._alive: FileLock | None = None

    def today(self, who: str) -> float:
        """What the caller has spent today, as far as this server knows: `refresh` adds what others wrote."""
        with self._lock:
            self._begin_day()
            return self._own[who] + self._others[who]

    def note(self, who: str, usd: float, session_id: str = "") -> None:
        """Counts an amount at once, before `write` has put it on the disk; takes it from the session's reservation."""
        with self._lock:
            self._begin_day()
            self._own[who] += usd
            if session_id in self._reserved:
                left = max(0.0, self._reserved[session_id][1] - usd)
                self._reserved[session_id] = who, left

    def write(self, who: str, usd: float, session_id: str = "") -> None:
        """Appends an amount to today's file, with what is left of the reservation. OSError if that cannot be done."""
        with self._writing:
            self._append(who, usd, session_id, self.reserved(session_id) or 0.0)

    # -- reservations -----------------------------------------------------------------------------------------

    def reserve(self, who: str, session_id: str, limit: float, share: Callable[[float], float]) -> float:
        """Reserves a part of what is left of today's `limit` and returns the amount; 0 if nothing is left.

        `share` says how much of what is left is wanted. It is on disk when this returns, instead of a reservation that
        the session had before. OSError if it cannot be written; then nothing is reserved.
        """
        private_directory(self._directory)
        self._stay_alive()
        from filelock import FileLock  # noqa: PLC0415 - takes a while, and a first call needs none

        with FileLock(self._directory / "reserving.lock", timeout=_LOCK_SECONDS, mode=FILE, thread_local=False):
            self.refresh()
            left = limit - self.today(who) - self._reserved_by(who, session_id)
            amount = min(left, share(left)) if left > 0 else 0.0
            if amount <= 0:
                return 0.0
            with self._writing:
                self._append(who, 0.0, session_id, amount)
                with self._lock:
                    self._reserved[session_id] = who, amount
            return amount

    def reserved(self, session_id: str) -> float | None:
        """What is left of the session's reservation; None if it has none."""
        with self._lock:
            found = self._reserved.get(session_id)
            return None if found is None else found[1]

    def release(self, session_id: str) -> bool:
        """Gives back what is left of a reservation, in memory; `write` makes it known to others. False without one."""
        with self._lock:
            return self._reserved.pop(session_id, None) is not None

    def moved(self, old: str, new: str) -> str | None:
        """A session goes on under another id, in memory; `write` for both ids makes it known to others. Returns who has
        the reservation; None without one."""
        with self._lock:
            found = self._reserved.pop(old, None)
            if found is None:
                return None
            self._reserved[new] = found
            return found[0]

    def _reserved_by(self, who: str, except_for: str) -> float:
        """What other sessions of the caller may still spend, on every server that lives."""
        with self._lock:
            own = sum(
                left for session, (owner, left) in self._reserved.items() if owner == who and session != except_for
            )
            elsewhere = [
                (server, left)
                for (server, _), (owner, left) in self._reserved_elsewhere.items()
                if owner == who and left
            ]
        living = {server: self._lives(server) for server, _ in elsewhere}
        return own + sum(left for server, left in elsewhere if living[server])

    def _stay_alive(self) -> None:
        """Takes the lock that says that this server lives. It is released when the process ends, however it does."""
        with self._lock:
            if self._alive is None:
                self._alive = self._life(self._server_id)
                self._alive.acquire()

    def _lives(self, server: str) -> bool:
        life = self._life(server)
        try:
            life.acquire()
        except OSError:  # a lock that somebody holds is one too
            return True
        life.release()
        with contextlib.suppress(OSError):
            (self._directory / f"{server}.alive").unlink()
        return False

    def _life(self, server: str) -> "FileLock":
        from filelock import FileLock  # noqa: PLC0415

        return FileLock(self._directory / f"{server}.alive", timeout=0, mode=FILE, thread_local=False)

    # -- the file ---------------------------------------------------------------------------------------------

    def _append(self, who: str, usd: float, session_id: str, left: float) -> None:
        entry = {"who": who, "usd": usd, "session": session_id, "left": left, "by": self._server_id}
        line = f"\n{json.dumps(entry)}\n"  # the line break before it keeps it apart from a line that was cut off
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
            who, usd, by = str(entry["who"]), float(entry["usd"]), str(entry["by"])
            session, left = str(entry.get("session", "")), float(entry.get("left", 0.0))
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if by == self._server_id:
            return
        if usd > 0:
            self._others[who] += usd
        if session and left > 0:
            self._reserved_elsewhere[by, session] = who, left
        else:
            self._reserved_elsewhere.pop((by, session), None)

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._day}.jsonl"

    def _begin_day(self) -> None:
        """Starts from zero if the day has changed since the last call; the caller holds the lock. The reservations of
        this server stay, those of others count again when they are next written."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        if day != self._day:
            self._day, self._bytes_read = day, 0
            self._own.clear()
            self._others.clear()
            self._reserved_elsewhere.clear()
            self._remove_old_files()

    def _remove_old_files(self) -> None:
        try:
            names = sorted(name for name in os.listdir(self._directory) if name.endswith(".jsonl"))
        except FileNotFoundError:
            return
        for name in names[:-_DAYS_KEPT]:
            (self._directory / name).unlink(missing_ok=True)
        for life in self._directory.glob("*.alive"):
            with contextlib.suppress(OSError):
                if time.time() - life.stat().st_mtime > _LIFE_KEPT:
                    self._lives(life.stem)  # removes the file of one that does not
