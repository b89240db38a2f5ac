"""Files and directories that nobody else may read, whatever the umask is: what holds tokens, names and what was said.

A directory that is already there is left as it is: the operator may have made it, for reasons of their own.
"""

import os
import sys
from pathlib import Path

DIRECTORY, FILE = 0o700, 0o600


def private_directory(path: Path) -> Path:
    """The directory, made if it is missing, with all that is missing above it; each of those for us alone. Raises
    OSError."""
    missing = []
    place = path
    while not place.exists() and place != place.parent:
        missing.append(place)
        place = place.parent
    for one in reversed(missing):
        try:
            one.mkdir(mode=DIRECTORY)
        except FileExistsError:
            continue  # another server was faster, and made it the same way
        if sys.platform != "win32":
            one.chmod(DIRECTORY)  # the umask may have taken away what we need ourselves
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
    return path


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is for us alone if this makes it. A link at its end is not followed."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), FILE)
    if flags & os.O_CREAT and sys.platform != "win32":
        os.fchmod(descriptor, FILE)
    return descriptor
