"""The databases of this process: one for each state directory, for all its users."""

import os
import threading
import weakref
from pathlib import Path

from .database import Database
from .earlier_files import import_earlier_files

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
