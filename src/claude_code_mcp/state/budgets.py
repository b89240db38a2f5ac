"""Budgets, what was spent of them, and the warning that each gives once when little is left.

A warning is a row in the database. It is written in the same transaction as the amount that makes it due, so that of
several servers one finds it new and says it, and after a restart none says it again. A budget warns once in its month
or day; one that the operator has changed meanwhile is another budget.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..model.caller import LOCAL

if TYPE_CHECKING:
    import sqlite3

WARNED_AT = 0.8
"""The part of a budget from which on it warns."""
_KIND = "budget_warning"
"""Of the documents that warnings are."""
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


def warn_once(db: "sqlite3.Connection", budget: Budget, principal: str, day: str, at: float) -> BudgetWarning | None:
    """The warning of a budget, if it is due and nobody has had it; within the transaction of the amount that may have
    made it due."""
    spent = spent_of(db, budget, principal, day)
    if not budget.is_low(spent):
        return None
    since = budget.since(day)
    key = json.dumps([since, budget.group, None if budget.group is not None else principal, budget.limit])
    body = json.dumps([budget.limit, budget.period, budget.group, principal, since])
    added = db.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", (_KIND, key, at, body)).rowcount
    return BudgetWarning(budget, principal, since, spent, at) if added else None


def warnings_on(db: "sqlite3.Connection", day: str) -> list[BudgetWarning]:
    """The warnings that were given for this day and its month, the oldest first, with what is spent by now."""
    rows = db.execute("SELECT body, written_at FROM documents WHERE kind = ? ORDER BY written_at, key", (_KIND,))
    found = []
    for body, at in rows.fetchall():
        limit, period, group, principal, since = json.loads(body)
        budget = Budget(limit, period, group)
        if since == budget.since(day):
            found.append(BudgetWarning(budget, principal, since, spent_of(db, budget, principal, day), at))
    return found


def forget_warnings(db: "sqlite3.Connection", before: float) -> int:
    """Removes the warnings of times long past; returns how many that were."""
    return db.execute("DELETE FROM documents WHERE kind = ? AND written_at < ?", (_KIND, before)).rowcount
