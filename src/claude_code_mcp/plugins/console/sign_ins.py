"""The tickets and sign-ins of the console, shared by all servers of the user across restarts.

Using a ticket removes it: of two concurrent uses one fails, in any process. A sign-in expires some time after its last
use. Only hashes are stored, so the database contains no usable secret. Every method blocks on the disk and raises
OSError if the database cannot be used.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.state.database import Database, drop_oldest, hash_of
from ...server.transports.identity import Identity

if TYPE_CHECKING:
    import sqlite3

TICKET_SECONDS = 300.0
SIGN_IN_SECONDS = 30 * 86_400.0
"""Since its last use."""
_USE_NOTED = 60.0
"""Seconds between two records of a sign-in's use."""
_MAX_PER_OWNER = 100
"""Maximum sign-ins, and tickets, per principal; the oldest end first."""
_MAX_DEVICE = 80
_COLUMNS = "id, principal, credential, device, created_at, used_at"


@dataclass(frozen=True, slots=True)
class SignIn:
    """A signed-in device."""

    id: str
    identity: Identity
    device: str
    created_at: float
    used_at: float

    @property
    def expires_at(self) -> float:
        return self.used_at + SIGN_IN_SECONDS


@dataclass(frozen=True, slots=True)
class NewSignIn:
    """A sign-in with its two secrets, available only now: one for the cookie, one for the page's storage."""

    sign_in: SignIn
    cookie: str
    csrf: str


class SignIns:
    """The tickets and sign-ins in one state directory."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time, most: int = _MAX_PER_OWNER) -> None:
        """`most` limits the sign-ins, and the tickets, of one principal."""
        self._database = database
        self._clock = clock
        self._most = most

    # -- tickets --------------------------------------------------------------------------------------------------

    def new_ticket(self, identity: Identity) -> tuple[str, float]:
        """A one-time ticket, and when it expires."""
        ticket, now = secrets.token_urlsafe(32), self._clock()
        expires_at = now + TICKET_SECONDS

        def change(db: "sqlite3.Connection") -> None:
            db.execute("DELETE FROM tickets WHERE expires_at <= ?", (now,))
            drop_oldest(db, "tickets", "hash", "expires_at", "principal", identity.principal, self._most - 1)
            values = (hash_of(ticket), identity.principal, identity.credential, expires_at)
            db.execute("INSERT INTO tickets VALUES (?, ?, ?, ?)", values)

        self._database.write(change)
        return ticket, expires_at

    def look_at_ticket(self, ticket: str) -> Identity | None:
        """The identity of a valid ticket, without using it up; None if invalid."""
        query = "SELECT principal, credential FROM tickets WHERE hash = ? AND expires_at > ?"
        row = self._database.row(query, hash_of(ticket), self._clock())
        return None if row is None else Identity(*row)

    def use_ticket(self, ticket: str) -> Identity | None:
        """Uses a ticket up and returns its identity; None if it is unknown, used or expired."""
        query = "DELETE FROM tickets WHERE hash = ? RETURNING principal, credential, expires_at"
        row = self._database.write(lambda db: db.execute(query, (hash_of(ticket),)).fetchone(), durable=True)
        # Removed in any case: an expired ticket is useless.
        return None if row is None or row[2] <= self._clock() else Identity(row[0], row[1])

    # -- sign-ins -------------------------------------------------------------------------------------------------

    def begin(self, identity: Identity, device: str) -> NewSignIn:
        """A new sign-in."""
        cookie, csrf, now = secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock()
        sign_in = SignIn(hash_of(cookie), identity, device[:_MAX_DEVICE], now, now)

        def change(db: "sqlite3.Connection") -> None:
            drop_oldest(db, "sign_ins", "id", "used_at", "principal", identity.principal, self._most - 1)
            _put_sign_in(db, sign_in, hash_of(csrf))

        self._database.write(change, durable=True)
        return NewSignIn(sign_in, cookie, csrf)

    def find(self, cookie: str, csrf: str) -> SignIn | None:
        """The sign-in with these two secrets, recording its use; None if unknown or expired."""
        query = f"SELECT {_COLUMNS}, csrf_hash FROM sign_ins WHERE id = ?"  # noqa: S608 - no value
        row = self._database.row(query, hash_of(cookie))
        # The first secret is looked up by its hash, which reveals nothing about it; the second is compared in constant
        # time.
        if row is None or not hmac.compare_digest(row[-1], hash_of(csrf)):
            return None
        found, now = _sign_in(row[:-1]), self._clock()
        if found.expires_at < now:
            return None
        # Not at every request: each record is a transaction, and all servers of the user share the database.
        if now - found.used_at > _USE_NOTED:
            self._database.execute("UPDATE sign_ins SET used_at = ? WHERE id = ?", now, found.id)
        return found

    def stands(self, sign_in_id: str) -> bool:
        """Whether a sign-in found earlier still exists."""
        return self._database.row("SELECT 1 FROM sign_ins WHERE id = ?", sign_in_id) is not None

    def any(self, principal: str | None = None) -> bool:
        """Whether anyone, or this principal, is signed in on any device."""
        query = "SELECT 1 FROM sign_ins WHERE used_at > ? AND (? IS NULL OR principal = ?)"
        return self._database.row(query, self._clock() - SIGN_IN_SECONDS, principal, principal) is not None

    def of(self, principal: str) -> list[SignIn]:
        """All sign-ins of a principal, last used first; removes expired ones."""

        def change(db: "sqlite3.Connection") -> list[Any]:
            db.execute("DELETE FROM sign_ins WHERE used_at < ?", (self._clock() - SIGN_IN_SECONDS,))
            query = f"SELECT {_COLUMNS} FROM sign_ins WHERE principal = ? ORDER BY used_at DESC"  # noqa: S608 - no value
            return db.execute(query, (principal,)).fetchall()

        return [_sign_in(row) for row in self._database.write(change)]

    def end(self, sign_in_id: str, principal: str) -> bool:
        """Ends a sign-in of this principal; returns whether it existed."""
        statement = "DELETE FROM sign_ins WHERE id = ? AND principal = ?"
        return self._database.execute(statement, sign_in_id, principal, durable=True) > 0

    def end_all(self, principal: str | None) -> int:
        """Ends all sign-ins and tickets of a principal, or of everyone; returns the number of sign-ins."""

        def change(db: "sqlite3.Connection") -> int:
            db.execute("DELETE FROM tickets WHERE ? IS NULL OR principal = ?", (principal, principal))
            return db.execute("DELETE FROM sign_ins WHERE ? IS NULL OR principal = ?", (principal, principal)).rowcount

        return self._database.write(change, durable=True)


def _put_sign_in(db: "sqlite3.Connection", sign_in: SignIn, csrf_hash: str) -> None:
    """Writes a sign-in within a transaction."""
    identity = sign_in.identity
    values = (
        sign_in.id, identity.principal, identity.credential, sign_in.device, csrf_hash, sign_in.created_at,
        sign_in.used_at,
    )  # fmt: skip
    db.execute("INSERT OR REPLACE INTO sign_ins VALUES (?, ?, ?, ?, ?, ?, ?)", values)


def _sign_in(row: Any) -> SignIn:
    sign_in_id, principal, credential, device, created_at, used_at = row
    return SignIn(sign_in_id, Identity(principal, credential), device, created_at, used_at)
