"""The list of sessions: which rows there are, in which order, and what each shows. Pure."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..model.text import age, clip_line, visible

_SIGNS = {
    "waiting_for_input": "?",
    "running": "●",
    "completed": "✓",
    "interrupted": "◦",
    "cancelled": "×",
    "error": "!",
}
_NEED = {"waiting_for_input": 0, "running": 1}


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One session in the list. Every text is visible, and on one line."""

    id: str
    title: str
    project: str
    state: str
    asks: tuple[str, ...]
    age: str
    cost: str
    in_memory: bool
    timestamp: str

    @property
    def sign(self) -> str:
        return _SIGNS.get(self.state, "·")

    @property
    def details(self) -> str:
        """The second line of the row."""
        if self.asks:
            return self.asks[0]
        return " · ".join(filter(None, (self.project, self.age, self.cost)))


def row_of(listed: Mapping[str, Any], now: float) -> SessionRow:
    """A session as the server lists it."""
    cost = listed.get("costUsd")
    return SessionRow(
        id=listed["sessionId"],
        title=visible(clip_line(listed.get("displayText") or "", 200)) or listed["sessionId"][:8],
        project=visible(os.path.basename((listed.get("projectDirectory") or "").rstrip("/\\"))),
        state=listed.get("activeStatus") or listed.get("lastStatus") or "",
        asks=tuple(visible(clip_line(line, 200)) for line in listed.get("asks") or ()),
        age=age(listed["timestamp"], now),
        cost=f"${cost:.2f}" if cost else "",
        in_memory=listed.get("activeStatus") is not None,
        timestamp=listed["timestamp"],
    )


def arranged(
    live: Iterable[Mapping[str, Any]], stored: Iterable[Mapping[str, Any]], now: float, wanted: str = ""
) -> list[SessionRow]:
    """Those that need a person first, then those at work, then the rest, each by their last use; with `wanted`, those
    that have all of its terms in title, project, state or id."""
    listed = {session["sessionId"]: session for session in (*stored, *live)}
    terms = wanted.casefold().split()
    rows = [row for row in (row_of(session, now) for session in listed.values()) if _fits(row, terms)]
    rows.sort(key=lambda row: row.timestamp, reverse=True)
    return sorted(rows, key=lambda row: _NEED.get(row.state if row.in_memory else "", 2))


def _fits(row: SessionRow, terms: list[str]) -> bool:
    text = " ".join((row.title, row.project, row.state, row.id, *row.asks)).casefold()
    return all(word in text for word in terms)


def asking_elsewhere(rows: Iterable[SessionRow], current: str | None) -> int:
    """How many questions are open in other sessions than this one."""
    return sum(len(row.asks) for row in rows if row.id != current)
