"""Shared sessions: with whom, and with which access.

The owner of a session shares it with a principal, or with a group as `group:NAME`. Nothing is shared without a row. A
share connects two people: when the operator removes one of them, or releases their name, it ends. Memory follows the
database: this server's own changes at once, changes of other servers with `refresh`.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.private_files import FILE, private_directory
from ...core.sessions.callers.session_access import Access, Share
from ...core.state.database import Database
from .tables import TABLES

if TYPE_CHECKING:
    import sqlite3

log = logging.getLogger(__name__)

GROUP = "group:"
_MAX_PER_OWNER = 100
"""Maximum number of shares of one session."""


class Shares:
    """The shares in one state directory. `of`, `of_person`, `with_any` and `found` use memory only; the others block on
    the disk and raise OSError. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.use(TABLES)
        self._changes = database.path.parent / "servers" / "shares.changed"
        self._lock = threading.Lock()
        self._change = -1
        self._by_session: Mapping[str, Mapping[str, Share]] = {}
        self._ended_people: set[str] = set()
        """People whose shares are invalid although the database still has them."""

    def refresh(self) -> set[str]:
        """Reads the changes of others; returns the sessions whose shares changed."""
        with self._lock:
            change, rows = self._database.read(self._news)
            if change == self._change:
                return set()
            by_session: dict[str, dict[str, Share]] = {}
            for session_id, grantee, access, owner, at in rows:
                if self._ended_people & {grantee, owner}:
                    continue
                share = Share(session_id, grantee, Access(access), owner, at)
                by_session.setdefault(session_id, {})[grantee] = share
            before, self._by_session, self._change = self._by_session, by_session, change
            return {each for each in {*before, *by_session} if before.get(each) != by_session.get(each)}

    def _news(self, db: "sqlite3.Connection") -> tuple[int, list[Any]]:
        (change,) = db.execute("SELECT change FROM changes WHERE topic = 'shares'").fetchone()
        query = "SELECT session_id, grantee, access, granted_by, at FROM shares"
        return change, [] if change == self._change else db.execute(query).fetchall()

    def give(self, session_id: str, grantee: str, access: Access, owner: str) -> bool:
        """Shares a session or changes the access; on disk on return. False if the session has the maximum number of
        shares."""

        def change(db: "sqlite3.Connection") -> bool:
            query = "SELECT count(*) FROM shares WHERE session_id = ? AND grantee != ?"
            (others,) = db.execute(query, (session_id, grantee)).fetchone()
            if others >= _MAX_PER_OWNER:
                return False
            values = (session_id, grantee, access, owner, time.time())
            db.execute("INSERT OR REPLACE INTO shares VALUES (?, ?, ?, ?, ?)", values)
            _note_change(db)
            return True

        shared = self._database.write(change, durable=True)
        self._changed()
        return shared

    def take_back(self, session_id: str, grantee: str | None) -> list[str]:
        """Ends one or all shares of a session; returns the recipients. On disk on return."""

        def change(db: "sqlite3.Connection") -> list[str]:
            where = "DELETE FROM shares WHERE session_id = ? AND (? IS NULL OR grantee = ?) RETURNING grantee"
            found = [name for (name,) in db.execute(where, (session_id, grantee, grantee)).fetchall()]
            _note_change(db)
            return found

        ended = self._database.write(change, durable=True)
        self._changed()
        return ended

    def end_of(self, name: str) -> list[Share]:
        """Ends all shares by and with a person; returns them. On disk on return. On OSError, this server treats them as
        ended anyway."""
        with self._lock:
            self._ended_people.add(name)
            self._by_session = {
                session_id: {
                    share.grantee: share for share in shares.values() if name not in (share.owner, share.grantee)
                }
                for session_id, shares in self._by_session.items()
            }
        ended = self._database.write(lambda db: end_shares_of(db, name), durable=True)
        with self._lock:
            self._ended_people.discard(name)
        self._changed()
        return ended

    def moved(self, old: str, new: str) -> None:
        """A session continues under another id, with its shares."""

        def change(db: "sqlite3.Connection") -> None:
            db.execute("UPDATE OR REPLACE shares SET session_id = ? WHERE session_id = ?", (new, old))
            _note_change(db)

        if old in self._by_session:
            self._database.write(change, durable=True)
            self._changed()

    def changes_file(self) -> Path:
        """The file that changes when a session is shared or unshared, which other servers with this state directory
        follow; its directory exists."""
        self._database.open()  # first: a restore in progress replaces this directory
        private_directory(self._changes.parent)
        return self._changes

    def _changed(self) -> None:
        """Makes this server and the others reload, after the change is in the database."""
        self.refresh()
        self.announce_change()

    def announce_change(self) -> None:
        """Makes the other servers reload. Failures are logged."""
        try:
            self.changes_file().touch(FILE)
        except OSError as error:
            log.warning("could not notify other servers of a change of shares: %s", error)

    # -- in memory ------------------------------------------------------------------------------------------------

    def of(self, session_id: str) -> list[Share]:
        return [*self._by_session.get(session_id, {}).values()]

    def of_person(self, name: str) -> list[Share]:
        """The shares by and with a person."""
        everything = [share for shares in self._by_session.values() for share in shares.values()]
        return [share for share in everything if name in (share.owner, share.grantee)]

    def found(self, session_id: str, names: Iterable[str]) -> Share | None:
        """The share of a session with the highest access for a person with these names."""
        shares = self._by_session.get(session_id)
        if not shares:
            return None
        matching = [shares[name] for name in names if name in shares]
        return max(matching, key=lambda share: share.access is Access.ANSWER, default=None)

    def with_any(self, names: Collection[str]) -> list[Share]:
        """The shares of all sessions for a person with these names, newest first."""
        found = [share for shares in self._by_session.values() for name, share in shares.items() if name in names]
        return sorted(found, key=lambda share: share.at, reverse=True)


def end_shares_of(db: "sqlite3.Connection", name: str) -> list[Share]:
    """Ends all shares by and with a person, within the transaction that removes them, because their name may become
    someone else's. `announce_ended_shares` notifies running servers."""
    statement = """
        DELETE FROM shares WHERE grantee = ? OR granted_by = ? RETURNING session_id, grantee, access, granted_by, at
    """
    rows = db.execute(statement, (name, name)).fetchall()
    if rows:
        _note_change(db)
    return [Share(session_id, grantee, Access(access), owner, at) for session_id, grantee, access, owner, at in rows]


def announce_ended_shares(database: Database) -> None:
    """Call it after the change was committed, so that a woken server finds it."""
    Shares(database).announce_change()


def _note_change(db: "sqlite3.Connection") -> None:
    db.execute("UPDATE changes SET change = change + 1 WHERE topic = 'shares'")
