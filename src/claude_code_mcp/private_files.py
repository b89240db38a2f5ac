"""Files and directories that nobody else may read, whatever the umask is: what holds tokens, names and what was said;
and how a file is read that somebody else may have put there.

A directory that is already there is left as it is: the operator may have made it, for reasons of their own.
"""

import contextlib
import errno
import os
import stat
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

DIRECTORY, FILE = 0o700, 0o600
TEMPORARY = ".tmp"
"""How the name of a file ends that is still being written; one that is old was left by a crash."""


def private_directory(path: Path) -> Path:
    """The directory, made if it is missing, with all that is missing above it; each of those for us alone. Raises
    OSError."""
    missing = []
    ancestor = path
    while not ancestor.exists() and ancestor != ancestor.parent:
        missing.append(ancestor)
        ancestor = ancestor.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=DIRECTORY)
        except FileExistsError:
            continue  # another server was faster, and made it the same way
        if sys.platform != "win32":
            directory.chmod(DIRECTORY)  # the umask may have taken away what we need ourselves
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
    return path


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is for us alone if this makes it. A link at its end is not followed."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), FILE)
    if flags & os.O_CREAT and sys.platform != "win32":
        os.fchmod(descriptor, FILE)
    return descriptor


def read_regular(path: str | Path, at_most: int, *, follow_link: bool = True) -> bytes:
    """The content of a file in a directory that others may write to, such as a project. OSError for what cannot be
    read, is larger, or is no regular file: a pipe would keep us waiting, and a device may have no end. Without
    `follow_link` a link in place of the file is no regular file either."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if os.path.islink(path):  # where the system has no such flag (Windows)
            raise OSError(errno.ELOOP, "is a link", str(path))
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(at_most)


def replace_file(path: Path, content: bytes) -> None:
    """Gives the file this content, durably. A reader meanwhile, or after a crash, finds the old or the new content.

    The mode is 0600 whatever the umask is. On failure (OSError) the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def append_line(path: Path, line: bytes, at_most: int) -> bool:
    """Adds a line to a file that is there, without waiting for the disk: every reader has it, and it outlives this
    process, but a failure of the machine may take it back until `make_durable`.

    False, with nothing changed, if there is no such file or if it would be larger than `at_most`. OSError if the line
    cannot be written; what there may be of it is an unfinished line at the end, which the next one does not continue.
    """
    flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return False
    try:
        addition = b"\n" + line  # before it, so that it begins a line whatever the file ends with
        if os.fstat(descriptor).st_size + len(addition) > at_most:
            return False
        if os.write(descriptor, addition) != len(addition):
            raise OSError(28, "No space left on device", str(path))
        return True
    finally:
        os.close(descriptor)


def make_durable(path: Path) -> None:
    """Waits until what was added to a file is on the disk. OSError if it cannot be written."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Makes a rename durable, where directories can be opened at all."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def bind_below(listening: "socket.socket", directory: Path, name: str) -> None:
    """Binds a Unix socket below a directory whatever the length of its path, which an address has no room for (Linux).
    Raises OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)
