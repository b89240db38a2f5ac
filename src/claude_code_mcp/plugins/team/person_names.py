"""The owners of names.

A name belongs permanently to the first person who signs in with it: an issuer and a subject, or an invited person. A
provider can give a name to another person later, but sessions, files and costs are stored under it here. Every method
blocks on the disk.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.errors import InvalidArgument
from ...core.sessions.callers.session_access import Share
from ...core.state.database import Database
from .shares import announce_ended_shares, end_shares_of
from .tables import TABLES

if TYPE_CHECKING:
    import sqlite3


INVITED = "invited"
"""The issuer of people invited here, whatever this server's address is; unlike other issuers not an address."""
REMEMBERED_SECONDS = 30 * 86_400.0
"""How long an absent person's groups are remembered: providers do not report removals."""
_CAME = "person"
"""The kind of the documents about people who signed in, with their groups."""


@dataclass(frozen=True, slots=True)
class PersonName:
    """A name, its owner, and since when (Unix seconds)."""

    name: str
    issuer: str
    subject: str
    since: float


@dataclass(frozen=True, slots=True)
class PersonGroups:
    """A person's groups, from a token issued at that time (Unix seconds): older tokens do not count."""

    names: frozenset[str]
    issued_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Removal:
    """A person was removed, or their name was released."""

    shares: tuple[Share, ...]
    """The shares that ended: given and received."""


class PersonNames:
    """The names in one state directory, for all servers that share it."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        database.use(TABLES)
        self._clock = clock

    def take(self, name: str, issuer: str, subject: str) -> bool:
        """Whether the name is this person's; a free name becomes theirs. On disk on return."""
        query = "SELECT issuer, subject FROM person_names WHERE name = ?"
        found = self._database.row(query, name)
        if found is None:
            # Of two concurrent servers the first wins: the existing row counts.
            insert = "INSERT OR IGNORE INTO person_names VALUES (?, ?, ?, ?)"
            self._database.execute(insert, name, issuer, subject, self._clock(), durable=True)
            found = self._database.row(query, name)
        return bool(found == (issuer, subject))

    def note_groups(self, name: str, issuer: str, groups: PersonGroups) -> None:
        """Stores the groups of a person who has just signed in."""
        body = json.dumps({"issuer": issuer, "groups": sorted(groups.names), "issuedAt": groups.issued_at})
        values = (_CAME, name, self._clock(), body)
        self._database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", *values)

    def recent_people(self, issuer: str) -> dict[str, PersonGroups]:
        """The people who signed in through an issuer within the last thirty days, with their groups."""
        query = "SELECT key, body FROM documents WHERE kind = ? AND written_at > ?"
        rows = self._database.rows(query, _CAME, self._clock() - REMEMBERED_SECONDS)
        found = {name: json.loads(body) for name, body in rows}
        return {
            name: PersonGroups(frozenset(each["groups"]), each.get("issuedAt", 0.0))
            for name, each in found.items()
            if each["issuer"] == issuer
        }

    def all(self) -> list[PersonName]:
        query = "SELECT name, issuer, subject, since FROM person_names ORDER BY name"
        return [PersonName(*row) for row in self._database.rows(query)]

    def forget(self, name: str) -> Removal | None:
        """Releases a name and ends shares by and with it, because its next owner is another person. None if it was
        free. A running server remembers who used it. Raises InvalidArgument for an invited person, who would continue
        to use it."""

        def change(db: "sqlite3.Connection") -> Removal | None:
            if db.execute("SELECT 1 FROM people WHERE name = ?", (name,)).fetchone() is not None:
                raise InvalidArgument(f"{name} is invited; `people remove {name}` removes them first.")
            found = db.execute("DELETE FROM person_names WHERE name = ?", (name,)).rowcount
            db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (_CAME, name))
            return Removal((*end_shares_of(db, name),)) if found else None

        return announced(self._database, self._database.write(change, durable=True))


def announced(database: Database, removal: Removal | None) -> Removal | None:
    """The removal, after running servers were notified of the shares that ended with it."""
    if removal is not None and removal.shares:
        announce_ended_shares(database)
    return removal
