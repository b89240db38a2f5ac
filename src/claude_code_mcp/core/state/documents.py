"""Documents by kind and key: state that is stored as a whole, without its own table. All methods block on the disk:
call them from a thread."""

import json
import time
from collections.abc import Callable
from typing import Any

from .database import Database

JsonObject = dict[str, Any]


class Documents:
    """The documents of one kind."""

    def __init__(self, database: Database, kind: str) -> None:
        self._database = database
        self._kind = kind

    def read(self, key: str) -> JsonObject | None:
        """The document; None if there is none. Raises OSError if it cannot be read."""
        query = "SELECT body FROM documents WHERE kind = ? AND key = ?"
        row = self._database.row(query, self._kind, key)
        return None if row is None else json.loads(row[0])

    def keys(self) -> list[str]:
        """The keys of all documents. Raises OSError."""
        return [key for (key,) in self._database.rows("SELECT key FROM documents WHERE kind = ?", self._kind)]

    def write(self, key: str, document: JsonObject) -> None:
        """Replaces the document. Raises OSError if that fails; then the old one is unchanged."""
        self.update(key, lambda _: document)

    def update(
        self, key: str, change: Callable[[JsonObject | None], JsonObject | None], *, durable: bool = False
    ) -> None:
        """Replaces the document by the result of `change`, without concurrent writers; None removes it. An exception of
        `change` changes nothing. Raises OSError."""

        def replace(db: Any) -> None:
            query = "SELECT body FROM documents WHERE kind = ? AND key = ?"
            row = db.execute(query, (self._kind, key)).fetchone()
            document = change(None if row is None else json.loads(row[0]))
            if document is None:
                db.execute("DELETE FROM documents WHERE kind = ? AND key = ?", (self._kind, key))
                return
            body = json.dumps(document, separators=(",", ":"))
            db.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", (self._kind, key, time.time(), body))

        self._database.write(replace, durable=durable)
