"""What callers have spent today (UTC), and what turns that run may still spend, over restarts and over all servers that
share a state directory.

What was spent is kept by day, caller and session for a month, and by day and caller for thirteen. What somebody spends
while they are in a group is the group's too, and stays that when they leave it. A reservation belongs to a session that
is at work; it is made in one transaction with the look at what is left, so that two servers cannot give away the same
dollars, and it becomes smaller as the session spends. The reservations of a server that has died count no more: every
server holds a lock of its own while it lives (`ServerLife`).

A budget gives one warning when little is left of it. A warning is a row in the database, written in the same
transaction as the amount that makes it due, so that of several servers one finds it new and announces it, and after a
restart none announces it again. A budget warns once in its month or day; one that the operator has changed meanwhile is
another budget. Until it was announced, a row names the server that must announce it. What a server that has ended did
not announce, the next one that starts announces: a warning is delivered at least once, and twice if a server is killed
between the announcement and the note of it.
"""

import json
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ..model.caller import LOCAL
from .database import Database
from .server_life import ServerLife

if TYPE_CHECKING:
    import sqlite3

WARNED_AT = 0.8
"""The part of a budget from which on it warns."""
_KIND = "budget_warning"
"""Of the documents that warnings are."""
_ANNOUNCED = ""
"""In the place of the server that must announce it."""
Period = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent within a day or a month (UTC), by a caller or, with a group, by all who are in it."""

    limit: float
    period: Period = "month"
    group: str | None = None

    @property
    def name(self) -> str:
        """The budget in words, for the caller whom it limits."""
        whose = "your budget" if self.group is None else f"the budget of the group {self.group}"
        return f"{whose} of ${self.limit:g} for {'today' if self.period == 'day' else 'this month'}"

    def is_low(self, spent: float) -> bool:
        """Whether so much of it is spent that it warns."""
        return spent >= WARNED_AT * self.limit

    def line(self, principal: str, spent: float) -> str:
        """How much of it is spent, in words, for whoever reads it: they need not be the one whose budget it is."""
        whose = "the budget"
        if self.group is not None:
            whose += f" of the group {self.group}"
        elif principal != LOCAL:
            whose += f" of {principal}"
        when = "today" if self.period == "day" else f"this {self.period}"
        part = f"{100 * spent / self.limit:.0f} %"
        return f"{part} of {whose} for {when} is spent: ${spent:,.2f} of ${self.limit:,.2f}."

    def since(self, day: str) -> str:
        """The period that a day is in, such as 2026-11 or 2026-11-17."""
        return day if self.period == "day" else day[:7]


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """Of a budget little is left."""

    budget: Budget
    principal: str
    """Whose budget it is; of a group's, who has spent what made it warn."""
    since: str
    """The day or month that it is about."""
    spent: float
    at: float

    @property
    def line(self) -> str:
        """In words."""
        return self.budget.line(self.principal, self.spent)

    @property
    def fields(self) -> dict[str, str | float | None]:
        """As data."""
        return {
            "period": self.since,
            "group": self.budget.group,
            "caller": None if self.budget.group is not None else self.principal,
            "limitUsd": self.budget.limit,
            "spentUsd": round(self.spent, 6),
            "warning": self.line,
        }


def spent_of(db: "sqlite3.Connection", budget: Budget, principal: str, day: str) -> float:
    """What is in the database of what counts against a budget."""
    table, column, name = ("spending", "principal", principal)
    if budget.group is not None:
        table, column, name = ("group_spending", "group_name", budget.group)
    first = day if budget.period == "day" else f"{day[:7]}-01"
    query = f"SELECT total(usd) FROM {table} WHERE {column} = ? AND day >= ? AND day <= ?"  # noqa: S608 - our own names
    (spent,) = db.execute(query, (name, first, day)).fetchone()
    return float(spent)


def warn_once(
    db: "sqlite3.Connection", budget: Budget, principal: str, day: str, at: float, server: str
) -> BudgetWarning | None:
    """The warning of a budget, if it is due and nobody has had it; within the transaction of the amount that may have
    made it due. This server must announce it, and call `mark_announced` then."""
    spent = spent_of(db, budget, principal, day)
    if not budget.is_low(spent):
        return None
    warning = BudgetWarning(budget, principal, budget.since(day), spent, at)
    row = (_KIND, _key(warning), at, _body(warning, server))
    added = db.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", row).rowcount
    return warning if added else None


def mark_announced(db: "sqlite3.Connection", warning: BudgetWarning, server: str = _ANNOUNCED) -> None:
    """The warning was announced; or, with a `server`, that one must announce it."""
    statement = "UPDATE documents SET body = ? WHERE kind = ? AND key = ?"
    db.execute(statement, (_body(warning, server), _KIND, _key(warning)))


def has_unannounced(db: "sqlite3.Connection", day: str) -> bool:
    """Whether a server must still announce a warning of this day or its month."""
    return any(whose != _ANNOUNCED for _, whose in _warnings_on(db, day))


def take_unannounced(
    db: "sqlite3.Connection", day: str, server: str, lives: Callable[[str], bool]
) -> list[BudgetWarning]:
    """The warnings of this day and its month that servers which have ended did not announce; from now on this one
    must."""
    left = [
        warning for warning, whose in _warnings_on(db, day) if whose not in (_ANNOUNCED, server) and not lives(whose)
    ]
    for warning in left:
        mark_announced(db, warning, server)
    return left


def warnings_on(db: "sqlite3.Connection", day: str) -> list[BudgetWarning]:
    """The warnings that were given for this day and its month, the oldest first, with what is spent by now."""
    return [warning for warning, _ in _warnings_on(db, day)]


def _warnings_on(db: "sqlite3.Connection", day: str) -> Iterator[tuple[BudgetWarning, str]]:
    """Each with the server that must announce it."""
    rows = db.execute("SELECT body, written_at FROM documents WHERE kind = ? ORDER BY written_at, key", (_KIND,))
    for body, at in rows.fetchall():
        limit, period, group, principal, since, server = json.loads(body)
        budget = Budget(limit, period, group)
        if since == budget.since(day):
            yield BudgetWarning(budget, principal, since, spent_of(db, budget, principal, day), at), server


def _key(warning: BudgetWarning) -> str:
    budget = warning.budget
    whose = None if budget.group is not None else warning.principal
    return json.dumps([warning.since, budget.group, whose, budget.limit])


def _body(warning: BudgetWarning, server: str) -> str:
    budget = warning.budget
    return json.dumps([budget.limit, budget.period, budget.group, warning.principal, warning.since, server])


def forget_warnings(db: "sqlite3.Connection", before: float) -> int:
    """Removes the warnings of times long past; returns how many that were."""
    return db.execute("DELETE FROM documents WHERE kind = ? AND written_at < ?", (_KIND, before)).rowcount


# -- spending ----------------------------------------------------------------------------------------------------------

_DAYS_KEPT, _DAYS_KEPT_BY_CALLER = 31, 400
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class SpentLine:
    """What a caller has spent in a month or on a day, and, of what counts for a group, in which."""

    period: str
    principal: str
    usd: float
    group: str | None = None


@dataclass(frozen=True, slots=True)
class NotedAmount:
    """An amount that counts in this server, and is to be written."""

    principal: str
    usd: float
    session_id: str = ""
    groups: tuple[str, ...] = ()
    """Those that the principal was in when it was noted."""


@dataclass(frozen=True, slots=True)
class _Reservation:
    """What a session of this server may still spend."""

    principal: str
    left: float
    groups: Collection[str]
    """Those that the principal was in when it was made."""
    budget: Budget
    """The budget that had the least left then."""


class Spending:
    """`note`, `today`, `reserved`, `tightest_budget`, `release` and `moved` use memory only; the others block on the
    disk. All are thread-safe."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        groups_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """`groups_of` says for which groups counts what a caller spends now."""
        self._groups_of = groups_of
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
        self._noted_groups: defaultdict[str, float] = defaultdict(float)
        """The same by group."""
        self._reserved: dict[str, _Reservation] = {}
        """By session of this server."""

    def today(self, who: str) -> float:
        """What the caller has spent today, as far as this server knows: `refresh` adds what others wrote."""
        with self._lock:
            self._begin_day()
            return self._written[who] + self._noted[who]

    def note(self, who: str, usd: float, session_id: str = "") -> NotedAmount:
        """Counts an amount at once, and takes it from the session's reservation; `write` has to put it on the disk."""
        with self._lock:
            self._begin_day()
            self._noted[who] += usd
            groups = tuple(self._groups_of(who))
            for group in groups:
                self._noted_groups[group] += usd
            if session_id in self._reserved:
                # In the same step as the amount: otherwise the same dollars
                # would count as spent and as reserved for a moment.
                found = self._reserved[session_id]
                self._reserved[session_id] = replace(found, principal=who, left=max(0.0, found.left - usd))
            return NotedAmount(who, usd, session_id, groups)

    def write(self, noted: NotedAmount, budgets: Sequence[Budget] = ()) -> list[BudgetWarning]:
        """Writes an amount that was noted, with what is left of the reservation; returns the warnings of `budgets` that
        are due with it and that no server has had before, to be announced by this one (`note_announced`). OSError if
        that cannot be done; then the amount counts in this server alone."""
        who, usd, session_id, groups = noted.principal, noted.usd, noted.session_id, noted.groups
        with self._writing:
            with self._lock:
                day = self._begin_day()
                reservation = self._reserved.get(session_id)
            self._life.begin()

            def change(db: "sqlite3.Connection") -> list[BudgetWarning]:
                _add(db, day, who, session_id, usd)
                _add_to_groups(db, day, groups, who, usd)
                if reservation is None:
                    db.execute("DELETE FROM reservations WHERE session_id = ?", (session_id,))
                else:
                    _reserve(db, session_id, who, self._life.id, reservation.left, reservation.groups)
                # In this transaction: of two servers that write at once, the second finds the warning of the first.
                now = self._clock()
                due = (warn_once(db, budget, who, day, now, self._life.id) for budget in budgets)
                return [warning for warning in due if warning is not None]

            warnings = self._database.write(change)
            with self._lock:
                for group in groups:
                    self._noted_groups[group] -= usd
                # Only after the commit: if that fails, the amount goes on counting here.
                self._noted[who] -= usd
                if day == self._day:  # otherwise it was written for yesterday
                    self._written[who] += usd
            return warnings

    def write_reservation(self, who: str, session_id: str) -> None:
        """Makes known to others what is left of a session's reservation, or that it has none. Raises OSError."""
        self.write(NotedAmount(who, 0.0, session_id))

    def note_announced(self, warning: BudgetWarning) -> None:
        """A warning that `write` or `take_unannounced` returned was announced; until then this server must announce it.
        Raises OSError."""
        self._database.write(lambda db: mark_announced(db, warning))

    def take_unannounced(self) -> list[BudgetWarning]:
        """The warnings that servers which have ended did not announce; this server must announce them now. Raises
        OSError."""
        day = _day_of(self._clock())
        # As a rule there is none, and nobody waits for a writer, nor learns that this server lives.
        if not self._database.read(lambda db: has_unannounced(db, day)):
            return []
        self._life.begin()
        return self._database.write(lambda db: take_unannounced(db, day, self._life.id, self._life.lives))

    def warnings(self) -> list[BudgetWarning]:
        """The warnings of this day and month, of all servers and callers. OSError if they cannot be read."""
        day = _day_of(self._clock())
        return self._database.read(lambda db: warnings_on(db, day))

    # -- reservations -----------------------------------------------------------------------------------------

    def reserve(
        self,
        who: str,
        session_id: str,
        limit: float,
        share: Callable[[float], float],
        budgets: Sequence[Budget] = (),
    ) -> float:
        """Reserves a part of what is left of today's `limit`, and of all `budgets`, and returns the amount; 0 if
        nothing is left.

        `share` says how much of what is left is wanted. It is on disk when this returns, instead of a reservation that
        the session had before. OSError if it cannot be written; then nothing is reserved.
        """
        with self._writing:
            with self._lock:
                day = self._begin_day()
                noted = self._noted[who]
                # Without the session's own, which the new reservation replaces.
                others = [each for name, each in self._reserved.items() if name != session_id]
                mine = sum(each.left for each in others if each.principal == who)
                groups = tuple(self._groups_of(who))
                # Of this server, for each group of a budget: noted, and reserved by others than this session.
                of_groups = {
                    budget.group: self._noted_groups[budget.group]
                    + sum(each.left for each in others if budget.group in each.groups)
                    for budget in budgets
                    if budget.group is not None
                }
            self._life.begin()

            def change(db: "sqlite3.Connection") -> tuple[float, float, Budget]:
                written = _spent(db, day).get(who, 0.0)
                # All of it within one transaction: another server cannot reserve between the look and the row.
                elsewhere = self._reserved_elsewhere(db, who)
                left, tightest = limit - written - noted - mine - elsewhere, Budget(limit, "day")
                for budget in budgets:
                    spent = spent_of(db, budget, who, day)
                    if budget.group is None:
                        found = budget.limit - spent - noted - mine - elsewhere
                    else:
                        reserved = self._group_reserved_elsewhere(db, budget.group)
                        found = budget.limit - spent - of_groups[budget.group] - reserved
                    if found < left:
                        left, tightest = found, budget
                amount = min(left, share(left)) if left > 0 else 0.0
                if amount > 0:
                    _reserve(db, session_id, who, self._life.id, amount, groups)
                return written, max(0.0, amount), tightest

            written, amount, tightest = self._database.write(change)
            with self._lock:
                if day == self._day:
                    self._written[who] = written
                if amount > 0:
                    self._reserved[session_id] = _Reservation(who, amount, groups, tightest)
            return amount

    def spent(self, who: str, budget: Budget) -> float:
        """What counts against a budget by now, without what is reserved. OSError if it cannot be read."""
        with self._lock:
            day = self._begin_day()
            noted = self._noted[who] if budget.group is None else self._noted_groups[budget.group]
        return noted + self._database.read(lambda db: spent_of(db, budget, who, day))

    def _group_reserved_elsewhere(self, db: "sqlite3.Connection", group: str) -> float:
        query = "SELECT server, remaining, groups FROM reservations WHERE server != ? AND groups != '[]'"
        rows = db.execute(query, (self._life.id,)).fetchall()
        counted = [(server, remaining) for server, remaining, groups in rows if group in json.loads(groups)]
        alive = {server for server in {server for server, _ in counted} if self._life.lives(server)}
        return float(sum(remaining for server, remaining in counted if server in alive))

    def reserved(self, session_id: str) -> float | None:
        """What is left of the session's reservation; None if it has none."""
        with self._lock:
            found = self._reserved.get(session_id)
            return None if found is None else found.left

    def tightest_budget(self, session_id: str) -> Budget | None:
        """The budget that had the least left when the session reserved; None if it has no reservation."""
        with self._lock:
            found = self._reserved.get(session_id)
            return None if found is None else found.budget

    def release(self, session_id: str) -> bool:
        """Gives back what is left of a reservation, in memory; `write_reservation` makes it known to others. False
        without one."""
        with self._lock:
            return self._reserved.pop(session_id, None) is not None

    def moved(self, old: str, new: str) -> str | None:
        """A session goes on under another id, in memory; `write_reservation` for both makes it known to others. Returns
        who has the reservation; None without one."""
        with self._lock:
            found = self._reserved.pop(old, None)
            if found is None:
                return None
            self._reserved[new] = found
            return found.principal

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
        """Adds up the sessions of days that are older than a month, and removes what is older than thirteen; returns
        how many rows that were."""
        now = self._clock()
        oldest, kept = (_day_of(now - days * _DAY_SECONDS) for days in (_DAYS_KEPT, _DAYS_KEPT_BY_CALLER))

        def change(db: "sqlite3.Connection") -> int:
            db.execute(
                "INSERT INTO spending SELECT day, principal, '', sum(usd) FROM spending"
                " WHERE day < ? AND session_id != '' GROUP BY day, principal"
                " ON CONFLICT (day, principal, session_id) DO UPDATE SET usd = usd + excluded.usd",
                (oldest,),
            )
            statement = "DELETE FROM spending WHERE (day < ? AND session_id != '') OR day < ?"
            removed = db.execute(statement, (oldest, kept)).rowcount
            removed += db.execute("DELETE FROM group_spending WHERE day < ?", (kept,)).rowcount
            return removed + forget_warnings(db, now - _DAYS_KEPT_BY_CALLER * _DAY_SECONDS)

        return self._database.write(change)

    def this_month(self) -> str:
        """The first day of the month that it is."""
        return f"{_day_of(self._clock())[:7]}-01"

    def by_period(self, period: Period = "month", *, since: str = "", groups: bool = False) -> list[SpentLine]:
        """What was spent in each month, or on each day, the newest first, by caller or, with `groups`, by group and
        caller; `since` is the first day that counts. OSError if it cannot be read."""
        name, table = ("group_name", "group_spending") if groups else ("NULL", "spending")
        query = (
            f"SELECT substr(day, 1, ?), principal, sum(usd), {name} FROM {table} WHERE day >= ?"  # noqa: S608 - our own names
            " GROUP BY 1, 2, 4 ORDER BY 1 DESC, 4, 2"
        )
        length = len("2026-11") if period == "month" else len("2026-11-17")
        return [SpentLine(*row) for row in self._database.rows(query, length, since)]


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


def _add_to_groups(db: "sqlite3.Connection", day: str, groups: Collection[str], who: str, usd: float) -> None:
    if usd > 0 and math.isfinite(usd):
        for group in groups:
            db.execute(
                "INSERT INTO group_spending VALUES (?, ?, ?, ?)"
                " ON CONFLICT (day, group_name, principal) DO UPDATE SET usd = usd + excluded.usd",
                (day, group, who, usd),
            )


def _reserve(
    db: "sqlite3.Connection", session_id: str, who: str, server: str, remaining: float, groups: Collection[str]
) -> None:
    values = (session_id, who, server, remaining, json.dumps([*groups]))
    db.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?)", values)
