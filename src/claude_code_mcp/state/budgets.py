"""Budgets, what was spent of them, and the warning that each gives once when little is left.

A warning is a row in the database. It is written in the same transaction as the amount that makes it due, so that of
several servers one finds it new and says it, and after a restart none says it again. A budget warns once in its month
or day; one that the operator has changed meanwhile is another budget.

A row says whose it is to say until that was done. What a server that has ended did not come to say, the next one that
starts says: a server that is killed between the saying and the note of it has it said twice, and never not at all.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..model.caller import LOCAL

if TYPE_CHECKING:
    import sqlite3

WARNED_AT = 0.8
"""The part of a budget from which on it warns."""
_KIND = "budget_warning"
"""Of the documents that warnings are."""
_ANNOUNCED = ""
"""In the place of the server whose it is to say."""
Period = Literal["day", "month"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent within a day or a month (UTC), by a caller or, with a group, by all who are in it."""

    limit: float
    period: Period = "month"
    group: str | None = None

    def is_low(self, spent: float) -> bool:
        """Whether so much of it is spent that it warns."""
        return spent >= WARNED_AT * self.limit

    def line(self, principal: str, spent: float) -> str:
        """How much of it is spent, in words, for whoever reads it: they need not be the one whose budget it is."""
        whose = "The budget"
        if self.group is not None:
            whose += f" of the group {self.group}"
        elif principal != LOCAL:
            whose += f" of {principal}"
        part = f"{100 * spent / self.limit:.0f} %"
        return f"{whose} of ${self.limit:g} for this {self.period} is used to {part} (${spent:,.2f})."

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
    made it due. It is this server's to say, and `mark_announced` once it has."""
    spent = spent_of(db, budget, principal, day)
    if not budget.is_low(spent):
        return None
    warning = BudgetWarning(budget, principal, budget.since(day), spent, at)
    row = (_KIND, _key(warning), at, _body(warning, server))
    added = db.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", row).rowcount
    return warning if added else None


def mark_announced(db: "sqlite3.Connection", warning: BudgetWarning, server: str = _ANNOUNCED) -> None:
    """The warning was said; or, with a `server`, it is that one's to say."""
    statement = "UPDATE documents SET body = ? WHERE kind = ? AND key = ?"
    db.execute(statement, (_body(warning, server), _KIND, _key(warning)))


def has_unannounced(db: "sqlite3.Connection", day: str) -> bool:
    """Whether a warning of this day or its month is some server's to say."""
    return any(whose != _ANNOUNCED for _, whose in _warnings_on(db, day))


def take_unannounced(
    db: "sqlite3.Connection", day: str, server: str, lives: Callable[[str], bool]
) -> list[BudgetWarning]:
    """The warnings of this day and its month that servers which have ended did not come to say: this one's from now
    on."""
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
    """Each with the server whose it is to say."""
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
