"""Pending notifications, stored until they are delivered, also across restarts. All methods and functions block on the
disk: call them from a thread.

A delivery belongs to the server that created it, for as long as that server lives. It contains nothing that is not sent
anyway, and only the receiver's id.
"""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...core.state.database import Database
from ...core.state.server_life import ServerLife
from .tables import TABLES

if TYPE_CHECKING:
    import sqlite3

_MAX_BATCH = 1000
"""Deliveries of dead servers that are taken over at once."""


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A notification for one receiver."""

    delivery_id: str
    """The same for every attempt, also after a restart: receivers recognize duplicates by it."""
    principal: str
    receiver_id: str
    at: float
    notice: dict[str, Any]


class Deliveries:
    """The deliveries of one server."""

    def __init__(self, database: Database) -> None:
        self._database = database
        database.use(TABLES)
        self._life = ServerLife(database.directory)

    def add(self, delivery: PendingDelivery) -> None:
        """Stores a delivery; it is on disk on return. Raises OSError if it cannot be written, or if this server has
        stopped."""
        # First: another server would at once take over deliveries of a server that seems dead.
        self._life.begin()
        self._database.write(lambda db: _put_delivery(db, self._life.id, delivery), durable=True)

    def remove(self, delivery_id: str) -> None:
        """Removes a delivery, if it exists. Raises OSError if it cannot be removed: it may then be delivered again."""
        self._database.execute("DELETE FROM deliveries WHERE delivery_id = ?", delivery_id)

    def take_over(self) -> list[PendingDelivery]:
        """The undelivered notifications of dead servers, oldest first; they are ours from now on. Raises OSError."""
        self._life.begin()
        return self._database.write(self._take)

    def _take(self, db: "sqlite3.Connection") -> list[PendingDelivery]:
        servers = [server for (server,) in db.execute("SELECT DISTINCT server FROM deliveries").fetchall()]
        # Within the transaction: of two concurrent servers only one takes the remaining deliveries.
        gone = [server for server in servers if not self._life.lives(server)]
        taken: list[PendingDelivery] = []
        for server in gone:
            found = db.execute(
                "UPDATE deliveries SET server = ? WHERE delivery_id IN ("
                "SELECT delivery_id FROM deliveries WHERE server = ? ORDER BY at LIMIT ?)"
                " RETURNING delivery_id, principal, receiver_id, at, notice",
                (self._life.id, server, _MAX_BATCH - len(taken)),
            ).fetchall()
            taken += [
                PendingDelivery(delivery_id, principal, receiver_id, at, json.loads(notice))
                for delivery_id, principal, receiver_id, at, notice in found
            ]
        return sorted(taken, key=lambda delivery: delivery.at)

    def close(self) -> None:
        """Ends this server's ownership; pending deliveries are left for the next server."""
        self._life.end()


def _put_delivery(db: "sqlite3.Connection", server: str, delivery: PendingDelivery) -> None:
    """Writes a delivery within a transaction."""
    notice = json.dumps(delivery.notice, separators=(",", ":"))
    values = (delivery.delivery_id, server, delivery.principal, delivery.receiver_id, delivery.at, notice)
    db.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?, ?)", values)
