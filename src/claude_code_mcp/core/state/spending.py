"""Spending of callers today (UTC), and reservations of running turns, across restarts and all servers that share a
state directory.

Spending is stored by day, caller and session for a month, and by day and caller for thirteen. What a person spends
while in a group counts for the group, also after they leave it.

A reservation belongs to a busy session. It is made in the same transaction as the check of the remaining budget, so
that two servers cannot give away the same dollars, and shrinks as the session spends. Reservations of dead servers are
ignored: every server holds a lock while it lives (`ServerLife`).

A budget gives one warning when little of it is left. A warning is a row in the database, written in the same
transaction as the amount that triggers it, so that of several servers only one announces it, and none again after a
restart. A budget warns once per month or day; a budget that the operator changed is another budget. Until it is
announced, the row names the server that must announce it. The next server to start announces what dead servers did not:
a warning is delivered at least once, and twice if a server is killed between the announcement and the record of it.
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
"""The fraction of a budget at which it warns."""
_KIND = "budget_warning"
"""The kind of the documents that are warnings."""
_ANNOUNCED = ""
"""Stored instead of the server that must announce it."""
Period = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class Budget:
    """The maximum spending in a day or month (UTC), of a caller or, with a group, of all its members."""

    limit: float
    period: Period = "month"
    group: str | None = None

    @property
    def name(self) -> str:
        """A human-readable name of the budget, for the limited caller."""
        whose = "your budget" if self.group is None else f"the budget of the group {self.group}"
        return f"{whose} of ${self.limit:g} for {'today' if self.period == 'day' else 'this month'}"

    def is_low(self, spent: float) -> bool:
        """Whether enough of it is spent for a warning."""
        return spent >= WARNED_AT * self.limit

    def line(self, principal: str, spent: float) -> str:
        """How much of it is spent, human-readable, for any reader."""
        whose = "the budget"
        if self.group is not None:
            whose += f" of the group {self.group}"
        elif principal != LOCAL:
            whose += f" of {principal}"
        when = "today" if self.period == "day" else f"this {self.period}"
        part = f"{100 * spent / self.limit:.0f} %"
        return f"{part} of {whose} for {when} is spent: ${spent:,.2f} of ${self.limit:,.2f}."

    def since(self, day: str) -> str:
        """The period of a day, such as 2026-11 or 2026-11-17."""
        return day if self.period == "day" else day[:7]


@dataclass(frozen=True, slots=True)
class BudgetWarning:
    """Little of a budget is left."""

    budget: Budget
    principal: str
    """The budget's owner; for a group's budget, the person whose spending triggered the warning."""
    since: str
    """The day or month."""
    spent: float
    at: float

    @property
    def line(self) -> str:
        """Human-readable."""
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
    """The stored spending that counts against a budget."""
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
    """The warning of a budget, if it is due and new; within the transaction of the amount that may trigger it. This
    server must announce it and then call `mark_announced`."""
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
    """The warnings of this day and its month that dead servers did not announce; from now on this one must."""
    left = [
        warning for warning, whose in _warnings_on(db, day) if whose not in (_ANNOUNCED, server) and not lives(whose)
    ]
    for warning in left:
        mark_announced(db, warning, server)
    return left


def warnings_on(db: "sqlite3.Connection", day: str) -> list[BudgetWarning]:
    """The warnings of this day and its month, oldest first, with the current spending."""
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
    """Removes old warnings; returns the number."""
    return db.execute("DELETE FROM documents WHERE kind = ? AND written_at < ?", (_KIND, before)).rowcount


_DAYS_KEPT, _DAYS_KEPT_BY_CALLER = 31, 400
_DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class SpentLine:
    """A caller's spending in a month or on a day and, where it counts for a group, the group."""

    period: str
    principal: str
    usd: float
    group: str | None = None


@dataclass(frozen=True, slots=True)
class NotedAmount:
    """An amount that counts in this server and must be written."""

    principal: str
    usd: float
    session_id: str = ""
    groups: tuple[str, ...] = ()
    """The principal's groups when it was recorded."""


@dataclass(frozen=True, slots=True)
class _Reservation:
    """What a session of this server may still spend."""

    principal: str
    left: float
    groups: Collection[str]
    """The principal's groups when it was made."""
    budget: Budget
    """The budget with the least left at that time."""


class Spending:
    """`note`, `today`, `reserved`, `tightest_budget`, `release` and `moved` use memory only; the others block on the
    disk. All are thread-safe."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        groups_of: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        """`groups_of` returns the groups that a caller's spending counts for."""
        self._groups_of = groups_of
        self._database = database
        self._life = ServerLife(database.directory)
        self._clock = clock
        self._lock = threading.Lock()
        """Protects the data in memory; never held during disk access."""
        self._writing = threading.Lock()
        """Held from a transaction until memory is updated, so that no amount counts twice or not at all, and the last
        row of a session has its last reservation."""
        self._day = ""
        self._written: defaultdict[str, float] = defaultdict(float)
        """By caller: today's amounts in the database, of all servers, as last read."""
        self._noted: defaultdict[str, float] = defaultdict(float)
        """By caller: amounts of this server that are not written yet."""
        self._noted_groups: defaultdict[str, float] = defaultdict(float)
        """The same by group."""
        self._reserved: dict[str, _Reservation] = {}
        """By session of this server."""

    def today(self, who: str) -> float:
        """The caller's spending today, as known to this server: `refresh` adds what others wrote."""
        with self._lock:
            self._begin_day()
            return self._written[who] + self._noted[who]

    def note(self, who: str, usd: float, session_id: str = "") -> NotedAmount:
        """Counts an amount at once, and deducts it from the session's reservation; `write` must store it."""
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
        """Stores a recorded amount, with the rest of the reservation; returns the warnings of `budgets` that it
        triggers first, to be announced by this server (`note_announced`). Raises OSError; then the amount counts in
        this server only."""
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
                # Only after the commit: if that fails, the amount continues to count here.
                self._noted[who] -= usd
                if day == self._day:  # otherwise it was written for yesterday
                    self._written[who] += usd
            return warnings

    def write_reservation(self, who: str, session_id: str) -> None:
        """Publishes the rest of a session's reservation, or that it has none. Raises OSError."""
        self.write(NotedAmount(who, 0.0, session_id))

    def note_announced(self, warning: BudgetWarning) -> None:
        """A warning returned by `write` or `take_unannounced` was announced; until then this server must announce it.
        Raises OSError."""
        self._database.write(lambda db: mark_announced(db, warning))

    def take_unannounced(self) -> list[BudgetWarning]:
        """The warnings that dead servers did not announce; this server must announce them now. Raises OSError."""
        day = _day_of(self._clock())
        # Usually there is none: then no caller waits for a writer, and this server need not register as alive.
        if not self._database.read(lambda db: has_unannounced(db, day)):
            return []
        self._life.begin()
        return self._database.write(lambda db: take_unannounced(db, day, self._life.id, self._life.lives))

    def warnings(self) -> list[BudgetWarning]:
        """The warnings of this day and month, of all servers and callers. Raises OSError."""
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
        """Reserves part of what is left of today's `limit` and of all `budgets`, and returns the amount; 0 if nothing
        is left. `share` is the wanted fraction. It is on disk on return and replaces the session's earlier reservation.
        Raises OSError; then nothing is reserved."""
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
                # All in one transaction: another server cannot reserve between the check and the new row.
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
        """The current spending of a budget, without reservations. Raises OSError."""
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
        """The rest of the session's reservation; None without one."""
        with self._lock:
            found = self._reserved.get(session_id)
            return None if found is None else found.left

    def tightest_budget(self, session_id: str) -> Budget | None:
        """The budget with the least left when the session reserved; None without a reservation."""
        with self._lock:
            found = self._reserved.get(session_id)
            return None if found is None else found.budget

    def release(self, session_id: str) -> bool:
        """Returns the rest of a reservation, in memory; `write_reservation` publishes it. False without one."""
        with self._lock:
            return self._reserved.pop(session_id, None) is not None

    def moved(self, old: str, new: str) -> str | None:
        """A session continues under another id, in memory; `write_reservation` for both publishes it. Returns the
        reservation's owner; None without one."""
        with self._lock:
            found = self._reserved.pop(old, None)
            if found is None:
                return None
            self._reserved[new] = found
            return found.principal

    def _reserved_elsewhere(self, db: "sqlite3.Connection", who: str) -> float:
        """What the caller's sessions on other living servers may still spend. Removes reservations of dead servers."""
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
        """Reads what other servers wrote since the last call. Raises OSError."""
        with self._writing:
            with self._lock:
                day = self._begin_day()
            spent = self._database.read(lambda db: _spent(db, day))
            with self._lock:
                if day == self._day:
                    self._written = defaultdict(float, spent)

    def _begin_day(self) -> str:
        """Starts from zero if the day changed since the last call; the caller holds the lock. Reservations stay, and so
        do unwritten amounts, which count for the new day."""
        day = _day_of(self._clock())
        if day != self._day:
            self._day = day
            self._written.clear()
        return day

    def clean_up(self) -> int:
        """Merges the sessions of days older than a month, and removes what is older than thirteen; returns the number
        of rows."""
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
        """The first day of the current month."""
        return f"{_day_of(self._clock())[:7]}-01"

    def by_period(self, period: Period = "month", *, since: str = "", groups: bool = False) -> list[SpentLine]:
        """Spending per month or day, newest first, by caller or, with `groups`, by group and caller; `since` is the
        first day. Raises OSError."""
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
