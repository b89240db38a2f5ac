"""Who was in a tokens file when a server last looked at it."""

import json
from collections.abc import Collection
from pathlib import Path

from .database import Database


class ListedCallers:
    """Who was in a tokens file when a server looked last: whoever is taken out while none runs is missed by that."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def missing(self, file: Path, names: Collection[str]) -> list[str]:
        """Those who were noted for this file and are not among these names."""
        row = self._database.row("SELECT value FROM facts WHERE name = ?", f"callers:{file}")
        return sorted({*json.loads(row[0])}.difference(names)) if row is not None else []

    def note(self, file: Path, names: Collection[str]) -> None:
        value = json.dumps(sorted(names))
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", f"callers:{file}", value, durable=True)
