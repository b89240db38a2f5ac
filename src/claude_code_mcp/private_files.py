"""Files and directories that nobody else may read, whatever the umask is: what holds tokens, names and what was said;
and how a file is read that somebody else may have put there.

A directory that is already there is left as it is: the operator may have made it, for reasons of their own.
"""

import contextlib
import os
import stat
import sys
import uuid
from pathlib import Path

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


def read_regular(path: str | Path, at_most: int) -> bytes:
    """The content of a file in a directory that others may write to, such as a project. OSError for what cannot be
    read, is larger, or is no regular file: a pipe would keep us waiting, and a device may have no end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(at_most)


def replace_file(path: Path, content: bytes) -> None:
    """Gives the file this content, durably. A reader meanwhile, or after a crash, finds the old or the new content.

    The mode is 0600 whatever the umask is. On failure (OSError) the old file is untouched and nothing is left behind.
    """
    _replace(path, content, synced=True)
    _sync_directory(path.parent)
    kept_content(path).unlink(missing_ok=True)


def replace_at_once(path: Path, content: bytes) -> None:
    """The same without waiting for the disk: the content is there for every reader and outlives this process, but not
    yet a failure of the machine. For that, `kept_content` has what was there before, until `make_durable`.

    For a file with one writer. Nothing is kept of a new file, nor where there are no hard links; there it is durable.
    """
    kept = kept_content(path)
    try:
        if not kept.exists():
            os.link(path, kept)
    except FileNotFoundError:
        pass
    except OSError:
        replace_file(path, content)
        return
    _replace(path, content, synced=False)


def make_durable(path: Path) -> None:
    """Waits until the content of a file that was replaced at once is on the disk. OSError if it cannot be written."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    _sync_directory(path.parent)
    kept_content(path).unlink(missing_ok=True)


def kept_content(path: Path) -> Path:
    """Where the content of before is, while that of a file is not durable yet."""
    return path.with_name(f".{path.name}.kept")


def _replace(path: Path, content: bytes, *, synced: bool) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


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
