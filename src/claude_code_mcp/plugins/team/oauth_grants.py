"""Clients, codes and tokens of the embedded authorization server.

A consent is a grant, and all its codes and tokens belong to it: anything that shows that one was stolen ends the whole
grant. A code and a refresh token can be used once; a second use, in any process, ends the grant. Only hashes are
stored, so the database contains no usable token. Every method blocks on the disk and raises OSError if the database
cannot be used.
"""

import json
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.state.database import Database, drop_oldest, hash_of
from .invited_people import Person
from .tables import TABLES

if TYPE_CHECKING:
    import sqlite3

ACCESS_SECONDS = 600
CODE_SECONDS = 60.0
REFRESH_SECONDS = 30 * 86_400.0
"""Since the last use."""
_UNUSED_CLIENT = 3600.0
"""Seconds after which a registered client that was never allowed is removed."""
_IDLE_CLIENT = 30 * 86_400.0
"""Seconds after which a client without grants is removed."""
_MAX_CLIENTS = 1000
"""Maximum number of registered clients without grants; the oldest are removed first."""
_MAX_PER_OWNER = 100
"""Maximum number of grants per person; the oldest end first."""
_GRANT = "grant_id, subject, name, groups, client_id, oauth_grants.scopes, resource"


@dataclass(frozen=True, slots=True)
class Consent:
    """What a person allowed a client, and where the code is sent."""

    subject: str
    client_id: str
    scopes: tuple[str, ...]
    resource: str
    redirect_uri: str
    redirect_given: bool
    """Whether the client named the address and must therefore name it again."""
    challenge: str


@dataclass(frozen=True, slots=True)
class Granted:
    """The grant of a code or token."""

    grant_id: str
    person: Person
    client_id: str
    scopes: tuple[str, ...]
    resource: str


@dataclass(frozen=True, slots=True)
class StoredCode:
    granted: Granted
    redirect_uri: str
    redirect_given: bool
    challenge: str
    expires_at: float


@dataclass(frozen=True, slots=True)
class StoredToken:
    """`scopes` are the token's, which may be fewer than the grant's."""

    granted: Granted
    scopes: tuple[str, ...]
    expires_at: float


@dataclass(frozen=True, slots=True)
class NewTokens:
    """The secrets, which are available only now."""

    access: str
    refresh: str
    scopes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reused:
    """A code or refresh token was used twice, so it was stolen; its grant has ended."""

    name: str


class OAuthGrants:
    """The clients, codes and tokens in one state directory."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        database.use(TABLES)
        self._clock = clock

    # -- clients --------------------------------------------------------------------------------------------------

    def register(self, client_id: str, metadata: str) -> None:
        """Registers a client. Removes clients that had enough time to get a grant and have none, and the oldest of the
        others if there are too many."""
        now = self._clock()

        def change(db: "sqlite3.Connection") -> None:
            idle = "NOT EXISTS (SELECT 1 FROM oauth_grants WHERE oauth_grants.client_id = oauth_clients.client_id)"
            db.execute(
                f"DELETE FROM oauth_clients WHERE {idle} AND (used_at IS NULL AND registered_at < ? OR used_at < ?)",  # noqa: S608
                (now - _UNUSED_CLIENT, now - _IDLE_CLIENT),
            )
            db.execute(
                f"DELETE FROM oauth_clients WHERE client_id IN (SELECT client_id FROM oauth_clients WHERE {idle}"  # noqa: S608
                " ORDER BY registered_at DESC LIMIT -1 OFFSET ?)",
                (_MAX_CLIENTS - 1,),
            )
            db.execute("INSERT INTO oauth_clients VALUES (?, ?, ?, NULL)", (client_id, metadata, now))

        self._database.write(change)

    def client(self, client_id: str) -> str | None:
        """The metadata of a registered client; None if unknown."""
        query = "SELECT metadata, registered_at, used_at FROM oauth_clients WHERE client_id = ?"
        row = self._database.row(query, client_id)
        if row is None or (row[2] is None and row[1] < self._clock() - _UNUSED_CLIENT):
            return None
        return str(row[0])

    # -- codes ----------------------------------------------------------------------------------------------------

    def allow(self, consent: Consent) -> str | None:
        """Creates a grant; returns its code. None if the person was removed."""
        code, grant_id, now = secrets.token_urlsafe(32), secrets.token_hex(16), self._clock()

        def change(db: "sqlite3.Connection") -> str | None:
            if db.execute("SELECT 1 FROM people WHERE subject = ?", (consent.subject,)).fetchone() is None:
                return None
            self._forget_expired(db)
            drop_oldest(db, "oauth_grants", "grant_id", "granted_at", "subject", consent.subject, _MAX_PER_OWNER - 1)
            scopes = json.dumps(consent.scopes)
            values = (grant_id, consent.subject, consent.client_id, scopes, consent.resource, now)
            db.execute("INSERT INTO oauth_grants VALUES (?, ?, ?, ?, ?, ?)", values)
            redirect = (consent.redirect_uri, int(consent.redirect_given))
            row = (hash_of(code), grant_id, *redirect, consent.challenge, now + CODE_SECONDS, 0)
            db.execute("INSERT INTO oauth_codes VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            db.execute("UPDATE oauth_clients SET used_at = ? WHERE client_id = ?", (now, consent.client_id))
            return code

        return self._database.write(change, durable=True)

    def code(self, code: str) -> StoredCode | None:
        """A code, even if used or expired; None if unknown."""
        query = (
            f"SELECT {_GRANT}, redirect_uri, redirect_given, challenge, expires_at FROM oauth_codes"  # noqa: S608
            " JOIN oauth_grants USING (grant_id) JOIN people USING (subject) WHERE hash = ?"
        )
        row = self._database.row(query, hash_of(code))
        return None if row is None else StoredCode(_granted(row), row[7], bool(row[8]), row[9], row[10])

    def redeem(self, code: str) -> NewTokens | Reused | None:
        """Exchanges a code for tokens. None if it is invalid; if it was used before, its grant ends with all tokens."""

        def change(db: "sqlite3.Connection") -> NewTokens | Reused | None:
            query = (
                "SELECT grant_id, scopes, used, expires_at, name FROM oauth_codes JOIN oauth_grants USING (grant_id)"
                " JOIN people USING (subject) WHERE hash = ?"
            )
            row = db.execute(query, (hash_of(code),)).fetchone()
            if row is None:
                return None
            grant_id, scopes, used, expires_at, name = row
            if used:
                db.execute("DELETE FROM oauth_grants WHERE grant_id = ?", (grant_id,))
                return Reused(name)
            if expires_at <= self._clock():
                return None
            db.execute("UPDATE oauth_codes SET used = 1 WHERE hash = ?", (hash_of(code),))
            return self._new_tokens(db, grant_id, tuple(json.loads(scopes)))

        return self._database.write(change, durable=True)

    # -- tokens ---------------------------------------------------------------------------------------------------

    def access_token(self, token: str) -> StoredToken | None:
        """A valid access token; otherwise None."""
        return self._token(token, "access")

    def refresh_token(self, token: str) -> StoredToken | None:
        """An unexpired refresh token, even if used, so that a second use is detected."""
        return self._token(token, "refresh")

    def _token(self, token: str, kind: str) -> StoredToken | None:
        query = (
            f"SELECT {_GRANT}, oauth_tokens.scopes, expires_at FROM oauth_tokens"  # noqa: S608
            " JOIN oauth_grants USING (grant_id) JOIN people USING (subject)"
            " WHERE hash = ? AND kind = ? AND expires_at > ?"
        )
        row = self._database.row(query, hash_of(token), kind, self._clock())
        return None if row is None else StoredToken(_granted(row), tuple(json.loads(row[7])), row[8])

    def rotate(self, refresh: str, scopes: Sequence[str]) -> NewTokens | Reused | None:
        """Exchanges a refresh token for new tokens. None if it is invalid; if it was used before, its grant ends with
        all tokens."""

        def change(db: "sqlite3.Connection") -> NewTokens | Reused | None:
            query = (
                "SELECT grant_id, used, name FROM oauth_tokens JOIN oauth_grants USING (grant_id)"
                " JOIN people USING (subject) WHERE hash = ? AND kind = 'refresh' AND expires_at > ?"
            )
            row = db.execute(query, (hash_of(refresh), self._clock())).fetchone()
            if row is None:
                return None
            grant_id, used, name = row
            if used:
                db.execute("DELETE FROM oauth_grants WHERE grant_id = ?", (grant_id,))
                return Reused(name)
            db.execute("UPDATE oauth_tokens SET used = 1 WHERE hash = ?", (hash_of(refresh),))
            self._forget_expired(db)
            return self._new_tokens(db, grant_id, tuple(scopes))

        return self._database.write(change, durable=True)

    def _new_tokens(self, db: "sqlite3.Connection", grant_id: str, scopes: tuple[str, ...]) -> NewTokens:
        now = self._clock()
        access = self._add_token(db, grant_id, "access", scopes, now + ACCESS_SECONDS)
        return NewTokens(access, self._add_token(db, grant_id, "refresh", scopes, now + REFRESH_SECONDS), scopes)

    def _add_token(
        self, db: "sqlite3.Connection", grant_id: str, kind: str, scopes: tuple[str, ...], until: float
    ) -> str:
        secret = secrets.token_urlsafe(32)
        values = (hash_of(secret), grant_id, kind, json.dumps(scopes), until, 0)
        db.execute("INSERT INTO oauth_tokens VALUES (?, ?, ?, ?, ?, ?)", values)
        return secret

    def end(self, grant_id: str) -> None:
        """Ends a grant with its codes and tokens."""
        self._database.execute("DELETE FROM oauth_grants WHERE grant_id = ?", grant_id, durable=True)

    def _forget_expired(self, db: "sqlite3.Connection") -> None:
        now = self._clock()
        db.execute("DELETE FROM oauth_tokens WHERE expires_at <= ?", (now,))
        # An expired code stays for as long as its grant has tokens: a second use ends them.
        db.execute(
            "DELETE FROM oauth_grants WHERE granted_at < ? AND NOT EXISTS"
            " (SELECT 1 FROM oauth_tokens WHERE oauth_tokens.grant_id = oauth_grants.grant_id)",
            (now - CODE_SECONDS,),
        )


def _granted(row: Any) -> Granted:
    grant_id, subject, name, groups, client_id, scopes, resource = row[:7]
    person = Person(subject, name, tuple(json.loads(groups)))
    return Granted(grant_id, person, client_id, tuple(json.loads(scopes)), resource)
