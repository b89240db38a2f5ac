"""The databases of this process, one for each state directory."""

import logging
import os
import threading
import weakref
from pathlib import Path

from ..errors import StateUnavailable
from .database import Database

log = logging.getLogger(__name__)

PRINCIPALS = "principals"
"""The subdirectory with the homes of callers that have separate ones. Sessions can write there."""

_databases: "weakref.WeakValueDictionary[str, Database]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def database_in(state_dir: Path) -> Database:
    """The database of a state directory: one object per process while it is used, opened on first use."""
    key = os.path.abspath(state_dir)
    with _lock:
        found = _databases.get(key)
        if found is None:
            found = _databases[key] = Database(Path(key))
        return found


def check_quietly(database: Database) -> None:
    """Checks the whole database once. Logs damage; a damaged database is closed."""
    try:
        database.check()
    except StateUnavailable as error:
        log.error("%s", error.message)
