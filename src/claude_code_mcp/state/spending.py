"""What callers have spent today (UTC), and what turns that run may still spend, over restarts and over all servers that
share a state directory.

What was spent is kept by day, caller and session for a month. A reservation belongs to a session that is at work; it is
made in one transaction with the look at what is left, so that two servers cannot give away the same dollars, and it
becomes smaller as the session spends. The reservations of a server that has died count no more: every server holds a
lock of its own while it lives (`ServerLife`).
"""

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from .database import Database
from .server_life import ServerLife

if TYPE_CHECKING:
    import sqlite3

_DAYS_KEPT = 31
_DAY_SECONDS = 86_400.0


class Spending:
    """`note`, `today`, `reserved`, `release` and `moved` use memory only; the others block on the disk. All are
    thread-safe."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._life = ServerLife(database.directory)
        self._clock = clock
        self._lock = threading.Lock()
        """Around what is in memory; never held while the disk is waited for."""
        self._writing = threading.Lock()
        """Held from a transaction to what follows from it in memory, so that no amount counts twice or not at all, and
        the last row of a session has its last reservation."""
        self._day = ""
        self._written: defaultdict[str, float] = defaultdict(float)
        """By caller: today's amounts in the database, of all servers, as far as this one has read them."""
        self._noted: defaultdict[str, float] = defaultdict(float)
        """By caller: amounts of this server that are not there yet."""
        self._reserved: dict[str, tuple[str, float]] = {}
        """By session of this server: who reserved, and how much is left of it."""

    def today(self, who: str) -> float:
        """What the caller has spent today, as far as this server knows: `refresh` adds what others wrote."""
        with self._lock:
            self._begin_day()
            return self._written[who] + self._noted[who]

    def note(self, who: str, usd: float, session_id: str = "") -> None:
        """Counts an amount at once, before `write` has put it on the disk; takes it from the session's reservation."""
        with self._lock:
            self._begin_day()
            self._noted[who] += usd
            if session_id in self._reserved:
                left = max(0.0, self._reserved[session_id][1] - usd)
                self._reserved[session_id] = who, left

    def write(self, who: str, usd: float, session_id: str = "") -> None:
        """Writes an amount that was noted, with what is left of the reservation. OSError if that cannot be done; then
        the amount counts in this server alone."""
        with self._writing:
            with self._lock:
                day = self._begin_day()
                remaining = self._reserved[session_id][1] if session_id in self._reserved else None
            self._life.begin()

            def change(db: "sqlite3.Connection") -> None:
                _add(db, day, who, session_id, usd)
                if remaining is None:
                    db.execute("DELETE FROM reservations WHERE session_id = ?", (session_id,))
                else:
                    _reserve(db, session_id, who, self._life.id, remaining)

            self._database.write(change)
            with self._lock:
                self._noted[who] -= usd
                if day == self._day:  # otherwise it was written for yesterday
                    self._written[who] += usd

    # -- reservations -----------------------------------------------------------------------------------------

    def reserve(self, who: str, session_id: str, limit: float, share: Callable[[float], float]) -> float:
        """Reserves a part of what is left of today's `limit` and returns the amount; 0 if nothing is left.

        `share` says how much of what is left is wanted. It is on disk when this returns, instead of a reservation that
        the session had before. OSError if it cannot be written; then nothing is reserved.
        """
        with self._writing:
            with self._lock:
                day = self._begin_day()
                noted = self._noted[who]
                mine = sum(left for each, (by, left) in self._reserved.items() if by == who and each != session_id)
            self._life.begin()

            def change(db: "sqlite3.Connection") -> tuple[float, float]:
                written = _spent(db, day).get(who, 0.0)
                left = limit - written - noted - mine - self._reserved_elsewhere(db, who)
                amount = min(left, share(left)) if left > 0 else 0.0
                if amount > 0:
                    _reserve(db, session_id, who, self._life.id, amount)
                return written, max(0.0, amount)

            written, amount = self._database.write(change)
            with self._lock:
                if day == self._day:
                    self._written[who] = written
                if amount > 0:
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

    def _reserved_elsewhere(self, db: "sqlite3.Connection", who: str) -> float:
        """What the caller's sessions on other servers that live may still spend. What servers that have died had
        reserved is removed."""
        query = "SELECT server, sum(remaining) FROM reservations WHERE principal = ? AND server != ? GROUP BY server"
        total = 0.0
        for server, remaining in db.execute(query, (who, self._life.id)).fetchall():
            if self._life.lives(server):
                total += remaining
            else:
                db.execute("DELETE FROM reservations WHERE server = ?", (server,))
        return total

    # -- the day ----------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Reads what other servers have written since the last call. OSError if it cannot be read."""
        with self._writing:
            with self._lock:
                day = self._begin_day()
            spent = self._database.read(lambda db: _spent(db, day))
            with self._lock:
                if day == self._day:
                    self._written = defaultdict(float, spent)

    def _begin_day(self) -> str:
        """Starts from zero if the day has changed since the last call; the caller holds the lock. Reservations stay,
        and amounts that are not written yet, which will be written for the new day."""
        day = _day_of(self._clock())
        if day != self._day:
            self._day = day
            self._written.clear()
        return day

    def clean_up(self) -> int:
        """Removes what is older than a month; returns how many rows that were."""
        oldest = _day_of(self._clock() - _DAYS_KEPT * _DAY_SECONDS)
        return self._database.write(lambda db: db.execute("DELETE FROM spending WHERE day < ?", (oldest,)).rowcount)


def _day_of(moment: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(moment))


def _spent(db: "sqlite3.Connection", day: str) -> dict[str, float]:
    return dict(
        db.execute("SELECT principal, sum(usd) FROM spending WHERE day = ? GROUP BY principal", (day,)).fetchall()
    )


def _add(db: "sqlite3.Connection", day: str, who: str, session_id: str, usd: float) -> None:
    if usd > 0 and math.isfinite(usd):
        db.execute(
            "INSERT INTO spending VALUES (?, ?, ?, ?)"
            " ON CONFLICT (day, principal, session_id) DO UPDATE SET usd = usd + excluded.usd",
            (day, who, session_id, usd),
        )


def _reserve(db: "sqlite3.Connection", session_id: str, who: str, server: str, remaining: float) -> None:
    db.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?)", (session_id, who, server, remaining))
