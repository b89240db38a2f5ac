"""Notices on their way to receivers: kept until they have arrived, also over a restart.

All methods and functions block on the disk: call them from a thread.

A delivery belongs to the server that makes it for as long as that server lives. There is nothing in one that is not
sent anyway, and of the receiver no more than its id.
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
"""Deliveries of servers that have ended which are taken over at once."""


@dataclass(frozen=True, slots=True)
class PendingDelivery:
    """A notice on its way to one receiver."""

    delivery_id: str
    """The same for every try, also after a restart: receivers know by it what they have already."""
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
        """Writes a delivery; it is on the disk when this returns. OSError if it cannot be written, or if this server
        has stopped."""
        # First: what belongs to a server that does not seem to live would be taken over by another at once.
        self._life.begin()
        self._database.write(lambda db: _put_delivery(db, self._life.id, delivery), durable=True)

    def remove(self, delivery_id: str) -> None:
        """A no-op for one that is not there. OSError if it cannot be removed: it may then be delivered again."""
        self._database.execute("DELETE FROM deliveries WHERE delivery_id = ?", delivery_id)

    def take_over(self) -> list[PendingDelivery]:
        """What servers that have ended did not deliver, oldest first; it is ours from now on. Raises OSError."""
        self._life.begin()
        return self._database.write(self._take)

    def _take(self, db: "sqlite3.Connection") -> list[PendingDelivery]:
        servers = [server for (server,) in db.execute("SELECT DISTINCT server FROM deliveries").fetchall()]
        # Within the transaction: of two servers that look at the same time only one takes what is left.
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
        """Ends the life of this server; pending deliveries are left for the next one."""
        self._life.end()


def _put_delivery(db: "sqlite3.Connection", server: str, delivery: PendingDelivery) -> None:
    """Writes a delivery within a transaction."""
    notice = json.dumps(delivery.notice, separators=(",", ":"))
    values = (delivery.delivery_id, server, delivery.principal, delivery.receiver_id, delivery.at, notice)
    db.execute("INSERT OR REPLACE INTO deliveries VALUES (?, ?, ?, ?, ?, ?)", values)
