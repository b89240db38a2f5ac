"""The databases of this process: one for each state directory, for all its users."""

import logging
import os
import threading
import weakref
from pathlib import Path

from ..errors import StateUnavailable
from .database import Database
from .earlier_files import import_earlier_files

log = logging.getLogger(__name__)
_databases: "weakref.WeakValueDictionary[str, Database]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def database_in(state_dir: Path) -> Database:
    """The database of a state directory, the same one in this process for as long as anybody uses it. It is opened when
    it is first used; what earlier versions kept in files is read into it then."""
    key = os.path.abspath(state_dir)
    with _lock:
        found = _databases.get(key)
        if found is None:
            found = _databases[key] = Database(Path(key), on_open=import_earlier_files)
        return found


def check_quietly(database: Database) -> None:
    """Reads the whole database once. Damage is logged, and a database that is damaged is not used any more."""
    try:
        database.check()
    except StateUnavailable as error:
        log.error("%s", error.message)
