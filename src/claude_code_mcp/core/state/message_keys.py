"""The keys of messages, which prevent a message that is sent again from running twice.

A key belongs to a principal and to the message's session, or to no session if the message creates one. It is pending
from the time a server takes it until the message is accepted; acceptance survives a crash of the machine. A pending key
of a dead server is free: its next owner gets the id that the message had, by which a transcript shows whether it was
read. Keys are removed after a while, and the oldest ones of a principal if there are too many.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from .database import Database
from .server_life import ServerLife

if TYPE_CHECKING:
    import sqlite3


KEY_SECONDS = 7 * 86_400.0
MAX_KEYS = 5000
"""Maximum number per principal."""
MAX_KEY = 200


class KeyState(StrEnum):
    NEW = "new"
    """The caller owns it now; no server had it before."""
    ORPHANED = "orphaned"
    """The caller owns it now; a dead server had it and may have delivered the message."""
    PENDING = "pending"
    """A living server is accepting the message."""
    ACCEPTED = "accepted"


class KeyName(NamedTuple):
    """The owner of a key and its use: `session_id` is empty for a message that creates a session."""

    principal: str
    session_id: str
    key: str


@dataclass(frozen=True, slots=True)
class TakenKey:
    """The stored data about a key."""

    state: KeyState
    message_id: str
    digest: str
    """The digest of the message, which distinguishes different messages with the same key."""
    session_id: str = ""
    """The message's session; empty until it is accepted."""


class MessageKeys:
    """The keys in one state directory, as used by one server."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time, most: int = MAX_KEYS) -> None:
        self._database = database
        self._life = ServerLife(database.directory)
        self._clock = clock
        self._most = most

    def take(self, name: KeyName, digest: str) -> TakenKey:
        """Takes a key for this server, unless it is accepted or another living server has it."""
        # First: another server would immediately take over rows of a server that does not seem to live.
        self._life.begin()
        return self._database.write(lambda db: self._take(db, name, digest))

    def _take(self, db: "sqlite3.Connection", name: KeyName, digest: str) -> TakenKey:
        now = self._clock()
        db.execute("DELETE FROM message_keys WHERE at < ?", (now - KEY_SECONDS,))
        found = db.execute(
            "SELECT message_id, digest, target, accepted, server FROM message_keys"
            " WHERE principal = ? AND session_id = ? AND key = ?",
            name,
        ).fetchone()
        if found is None:
            taken = TakenKey(KeyState.NEW, str(uuid.uuid4()), digest)
        else:
            message_id, known_digest, target, accepted, server = found
            if accepted:
                return TakenKey(KeyState.ACCEPTED, message_id, known_digest, target)
            # Within the transaction: of two servers that find it at the same time, only one takes it.
            if self._life.lives(server) and server != self._life.id:
                return TakenKey(KeyState.PENDING, message_id, known_digest)
            taken = TakenKey(KeyState.ORPHANED, message_id, known_digest)
        values = (*name, taken.message_id, taken.digest, "", 0, self._life.id, now)
        db.execute("INSERT OR REPLACE INTO message_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
        db.execute(
            "DELETE FROM message_keys WHERE principal = ? AND at < ("
            "SELECT at FROM message_keys WHERE principal = ? ORDER BY at DESC LIMIT 1 OFFSET ?)",
            (name.principal, name.principal, self._most - 1),
        )
        return taken

    def accept(self, name: KeyName, target: str) -> None:
        """The message was accepted by this session; on disk on return."""
        self._database.execute(
            "UPDATE message_keys SET accepted = 1, target = ? WHERE principal = ? AND session_id = ? AND key = ?",
            target,
            *name,
            durable=True,
        )

    def free_key(self, name: KeyName) -> None:
        """The message was refused: the key is free again. Does nothing for an accepted one."""
        self._database.execute(
            "DELETE FROM message_keys WHERE principal = ? AND session_id = ? AND key = ? AND accepted = 0",
            *name,
        )

    def leave(self, name: KeyName) -> None:
        """The key is orphaned, as it was before this server took it. Does nothing for an accepted one."""
        self._database.execute(
            "UPDATE message_keys SET server = '' WHERE principal = ? AND session_id = ? AND key = ? AND accepted = 0",
            *name,
        )

    def close(self) -> None:
        """This server stops: its pending keys are free."""
        self._life.end()
