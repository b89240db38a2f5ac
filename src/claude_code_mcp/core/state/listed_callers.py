"""The callers that were in a tokens file when a server last read it."""

import json
from collections.abc import Collection
from pathlib import Path

from .database import Database


class ListedCallers:
    """The callers that were in a tokens file when a server last read it, to detect removals while no server runs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def missing(self, file: Path, names: Collection[str]) -> list[str]:
        """Callers recorded for this file that are not among these names."""
        row = self._database.row("SELECT value FROM facts WHERE name = ?", f"callers:{file}")
        return sorted({*json.loads(row[0])}.difference(names)) if row is not None else []

    def note(self, file: Path, names: Collection[str]) -> None:
        value = json.dumps(sorted(names))
        self._database.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", f"callers:{file}", value, durable=True)
