"""The people who were invited, with their invitations and passkeys.

A person of the embedded authorization server has a name, which the operator chose and under which rules, costs and
sessions are stored, and a subject, which is random and never reused. A person who is invited under the name of a
removed person has another subject. Removing a person removes all their data in the same transaction. The name stays
reserved for invited people, so that no other person can get it, with its sessions, through a provider or a proxy.

Using an invitation removes it and stores its passkey in one transaction: of two simultaneous uses one fails, in
whatever process. Only its hash is stored. Every method blocks on the disk and raises OSError if the database cannot be
used.
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.errors import InvalidArgument
from ...core.private_files import private_directory, replace_file
from ...core.state.database import Database, drop_oldest, hash_of
from .shares import end_shares_of
from .tables import TABLES

if TYPE_CHECKING:
    import sqlite3
from .person_names import INVITED, PersonGroups, Removal, announced

INVITE_SECONDS = 3 * 86_400.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_MAX_INVITES = 10
"""Maximum number of valid invitations per person; the oldest end first."""
_MAX_PASSKEYS = 50
_ADDRESS = "authorization_server"
"""The fact with the server's address for people."""
_REMOVED = "removed_person:"
"""Facts, by name: a person was removed, and no server has ended everything of theirs yet."""


@dataclass(frozen=True, slots=True)
class Person:
    subject: str
    name: str
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ListedPerson:
    """A person in the operator's list."""

    name: str
    groups: tuple[str, ...]
    invited_at: float
    passkeys: int
    used_at: float | None
    """When one of their passkeys was last used."""
    invites: int
    """Unused links."""


@dataclass(frozen=True, slots=True)
class Passkey:
    person: Person
    public_key: bytes
    sign_count: int


class InvitedPeople:
    """The people in one state directory."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        database.use(TABLES)
        self._clock = clock

    # -- the operator's side --------------------------------------------------------------------------------------

    def invite(self, name: str, groups: Collection[str] = (), lasts: float = INVITE_SECONDS) -> str:
        """Adds a person; returns the secret of the link for their first passkey. Raises InvalidArgument for an invalid
        or used name, including names of people from a provider or proxy."""
        if _NAME.fullmatch(name) is None:
            raise InvalidArgument(f"{name!r} is not a valid name: use at most 64 letters, digits and . _ @ + -")
        if any(not group.isprintable() or not 0 < len(group) <= 128 for group in groups):
            raise InvalidArgument("A group name has 1 to 128 visible characters.")
        values = (secrets.token_hex(16), name, json.dumps([*groups]), self._clock(), 0.0)

        def change(db: "sqlite3.Connection") -> str:
            if db.execute("SELECT 1 FROM people WHERE name = ?", (name,)).fetchone() is not None:
                raise InvalidArgument(f"{name} is already invited; `people link {name}` prints a new link.")
            owner = db.execute("SELECT issuer FROM person_names WHERE name = ?", (name,)).fetchone()
            if owner is not None and owner[0] != INVITED:
                raise InvalidArgument(
                    f"{name} belongs to another person, who signed in through {owner[0]}. `people forget {name}` "
                    "releases it, with its sessions."
                )
            db.execute("INSERT INTO people VALUES (?, ?, ?, ?, ?)", values)
            row = (name, INVITED, values[0], values[3])
            db.execute("INSERT OR REPLACE INTO person_names VALUES (?, ?, ?, ?)", row)
            return self._add_invite(db, values[0], lasts)

        return self._database.write(change, durable=True)

    def new_link(self, name: str, lasts: float = INVITE_SECONDS) -> str:
        """The secret of another link for a person, for one more passkey. Raises InvalidArgument for an unknown name."""

        def change(db: "sqlite3.Connection") -> str:
            row = db.execute("SELECT subject FROM people WHERE name = ?", (name,)).fetchone()
            if row is None:
                raise InvalidArgument(f"There is no person named {name}.")
            return self._add_invite(db, row[0], lasts)

        return self._database.write(change, durable=True)

    def _add_invite(self, db: "sqlite3.Connection", subject: str, lasts: float) -> str:
        secret, now = secrets.token_urlsafe(32), self._clock()
        db.execute("DELETE FROM invites WHERE expires_at <= ?", (now,))
        drop_oldest(db, "invites", "hash", "expires_at", "subject", subject, _MAX_INVITES - 1)
        db.execute("INSERT INTO invites VALUES (?, ?, ?)", (hash_of(secret), subject, now + lasts))
        return secret

    def remove(self, name: str) -> Removal | None:
        """Removes a person with their passkeys, links, tokens and sign-ins, and ends shares by and with them: a person
        invited later under the same name is another person. A server ends the person's running work, now or when one
        starts: see `left_by_removed`. None for an unknown name."""

        def change(db: "sqlite3.Connection") -> Removal | None:
            removed = db.execute("DELETE FROM people WHERE name = ?", (name,)).rowcount
            if removed:
                # Sign-ins of a caller with a static token of this name have another basis and stay.
                for table in ("sign_ins", "tickets"):
                    db.execute(
                        f"DELETE FROM {table} WHERE principal = ? AND credential LIKE 'person:%'",  # noqa: S608
                        (name,),
                    )
                db.execute("INSERT OR REPLACE INTO facts VALUES (?, '')", (f"{_REMOVED}{name}",))
            return Removal((*end_shares_of(db, name),)) if removed else None

        return announced(self._database, self._database.write(change, durable=True))

    def everybody(self) -> list[ListedPerson]:
        """All people, by name."""
        query = """
            SELECT name, groups, invited_at,
                (SELECT count(*) FROM passkeys WHERE passkeys.subject = people.subject),
                (SELECT max(used_at) FROM passkeys WHERE passkeys.subject = people.subject),
                (SELECT count(*) FROM invites WHERE invites.subject = people.subject AND expires_at > ?)
            FROM people ORDER BY name
        """
        rows = self._database.rows(query, self._clock())
        return [
            ListedPerson(name, tuple(json.loads(groups)), invited_at, passkeys, used_at, invites)
            for name, groups, invited_at, passkeys, used_at, invites in rows
        ]

    # -- the server's side ----------------------------------------------------------------------------------------

    def left_by_removed(self) -> list[str]:
        """Removed people who may still have something running elsewhere because no server was running."""
        query = "SELECT name FROM facts WHERE substr(name, 1, ?) = ?"
        return [name.removeprefix(_REMOVED) for (name,) in self._database.rows(query, len(_REMOVED), _REMOVED)]

    def note_ended(self, name: str) -> None:
        """Everything of a removed person was ended."""
        self._database.execute("DELETE FROM facts WHERE name = ?", f"{_REMOVED}{name}", durable=True)

    def groups(self) -> dict[str, PersonGroups]:
        """Each person's groups, by name."""
        rows = self._database.rows("SELECT name, groups FROM people")
        return {name: PersonGroups(frozenset(json.loads(groups))) for name, groups in rows}

    def names(self) -> dict[str, str]:
        """Each person's name, by subject."""
        return self._database.read(lambda db: dict(db.execute("SELECT subject, name FROM people").fetchall()))

    def signed_in(self, name: str) -> tuple[Person, float] | None:
        """A person who is signed in to the console, and until when; None otherwise."""
        query = "SELECT subject, name, groups, console_until FROM people WHERE name = ? AND console_until > ?"
        row = self._database.row(query, name, self._clock())
        return None if row is None else (_person(row[:3]), row[3])

    def note_sign_in(self, subject: str, until: float) -> None:
        """Stores that a person is signed in to the console until then."""
        self._database.execute("UPDATE people SET console_until = ? WHERE subject = ?", until, subject)

    def by_invite(self, secret: str) -> tuple[Person, list[bytes]] | None:
        """The person of a link, without using it up, and the ids of their passkeys; None if the link is invalid."""

        def look(db: "sqlite3.Connection") -> tuple[Person, list[bytes]] | None:
            row = self._invited(db, secret)
            if row is None:
                return None
            keys = db.execute("SELECT credential_id FROM passkeys WHERE subject = ?", (row[0],)).fetchall()
            return _person(row), [key for (key,) in keys]

        return self._database.read(look)

    def _invited(self, db: "sqlite3.Connection", secret: str) -> Any:
        query = (
            "SELECT subject, name, groups FROM invites JOIN people USING (subject) WHERE hash = ? AND expires_at > ?"
        )
        return db.execute(query, (hash_of(secret), self._clock())).fetchone()

    def add_passkey(self, secret: str, credential_id: bytes, public_key: bytes, sign_count: int) -> Person | None:
        """Uses up a link for a passkey; returns its person. None if the link is invalid, or if the passkey is already
        in use or one too many; the link stays valid then."""

        def change(db: "sqlite3.Connection") -> Person | None:
            row, now = self._invited(db, secret), self._clock()
            if row is None or db.execute("SELECT 1 FROM passkeys WHERE credential_id = ?", (credential_id,)).fetchone():
                return None
            (count,) = db.execute("SELECT count(*) FROM passkeys WHERE subject = ?", (row[0],)).fetchone()
            if count >= _MAX_PASSKEYS:
                return None
            db.execute("DELETE FROM invites WHERE hash = ?", (hash_of(secret),))
            values = (credential_id, row[0], public_key, sign_count, now, now)
            db.execute("INSERT INTO passkeys VALUES (?, ?, ?, ?, ?, ?)", values)
            return _person(row)

        return self._database.write(change, durable=True)

    def passkey(self, credential_id: bytes) -> Passkey | None:
        query = (
            "SELECT subject, name, groups, public_key, sign_count FROM passkeys JOIN people USING (subject)"
            " WHERE credential_id = ?"
        )
        row = self._database.row(query, credential_id)
        return None if row is None else Passkey(_person(row[:3]), row[3], row[4])

    def note_use(self, credential_id: bytes, sign_count: int) -> bool:
        """Records the use of a passkey; returns whether it still exists."""
        statement = "UPDATE passkeys SET sign_count = ?, used_at = ? WHERE credential_id = ?"
        return self._database.execute(statement, sign_count, self._clock(), credential_id) > 0

    # -- where the server is --------------------------------------------------------------------------------------

    def serve_at(self, address: str) -> None:
        """Stores the server's address for people, for commands that create links."""
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", _ADDRESS, address)

    def address(self) -> str | None:
        """The address of the server that was started last; None if none was."""
        row = self._database.row("SELECT value FROM facts WHERE name = ?", _ADDRESS)
        return None if row is None else str(row[0])


def _person(row: Any) -> Person:
    return Person(row[0], row[1], tuple(json.loads(row[2])))


def change_mark(state_dir: Path) -> Path:
    """A file that is written when a person is invited or removed, so that servers check at once. In a separate
    directory, so that watchers are not woken by other files."""
    private_directory(state_dir / "people")
    return state_dir / "people" / "changed"


def announce_change(state_dir: Path) -> None:
    """Call it after the change was committed, so that a woken server finds it."""
    replace_file(change_mark(state_dir), str(time.time_ns()).encode())
