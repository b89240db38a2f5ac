"""Whose name is whose, of people who come with access tokens: the first subject of an issuer who came by it, or who was
invited under it (`invited_people.py`).

Kept for good: at a provider a name can be given to somebody else, and here it is what sessions, files and costs go by.
All methods block on the disk and raise OSError if the database cannot be used.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import InvalidArgument
from .database import Database

if TYPE_CHECKING:
    import sqlite3

INVITED = "invited"
"""The issuer of those who are invited here, wherever this server is reached; no address, as those of others are."""


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name, the person who has it, and since when (Unix seconds)."""

    name: str
    issuer: str
    subject: str
    since: float


class PersonNames:
    """The names in one state directory, for all servers that share it."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def take(self, name: str, issuer: str, subject: str) -> bool:
        """Whether the name is this person's; one that nobody has is theirs from now on. On disk when this returns."""
        query = "SELECT issuer, subject FROM person_names WHERE name = ?"
        found = self._database.read(lambda db: db.execute(query, (name,)).fetchone())
        if found is None:
            values = (name, issuer, subject, self._clock())
            # Of two servers that come to this at once the first has it: the row that is there is what counts.
            insert = "INSERT OR IGNORE INTO person_names VALUES (?, ?, ?, ?)"
            self._database.write(lambda db: db.execute(insert, values), durable=True)
            found = self._database.read(lambda db: db.execute(query, (name,)).fetchone())
        return bool(found == (issuer, subject))

    def all(self) -> list[PersonName]:
        query = "SELECT name, issuer, subject, since FROM person_names ORDER BY name"
        return [PersonName(*row) for row in self._database.read(lambda db: db.execute(query).fetchall())]

    def forget(self, name: str) -> bool:
        """Gives a name free; whether somebody had it. A server that runs goes on knowing who has come by it.
        InvalidArgument for somebody who is invited: they would go on to use it."""

        def change(db: "sqlite3.Connection") -> int:
            if db.execute("SELECT 1 FROM people WHERE name = ?", (name,)).fetchone() is not None:
                raise InvalidArgument(f"{name} is invited; `people remove {name}` removes them first.")
            return db.execute("DELETE FROM person_names WHERE name = ?", (name,)).rowcount

        return self._database.write(change, durable=True) > 0
