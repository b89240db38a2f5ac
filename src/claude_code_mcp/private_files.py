"""Files and directories that nobody else may read, whatever the umask is: what holds tokens, names and what was said;
and how a file is read that somebody else may have put there: a session or a checkout may have put anything in its
place, a pipe that nobody writes to, a link to a device without end, a file of many gigabytes.

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
GIT_FILE = "gitdir:"
"""How the line of the `.git` of a worktree begins."""
_LONGEST_PATH = 4096


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
        # The umask may have taken away what we need ourselves, and a file from before may be readable for others.
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
        # Asked of the open file: under its name there may be another one by now.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(at_most)


def read_secret(path: Path, at_most: int) -> str:
    """The text of a file in which the operator has written a secret down.

    OSError if it cannot be read, is larger, or is no text; `strerror` says what is wrong. Refused are a file that
    others can read, and one that belongs to somebody else, who could change it. Asked of the open file: its name may
    lead elsewhere by now. A pipe in its place does not keep us waiting for a writer.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if sys.platform != "win32" and stat.S_IMODE(found.st_mode) & 0o077:
            raise OSError(errno.EACCES, "can be read by others; `chmod 600` it", str(path))
        if sys.platform != "win32" and found.st_uid not in (os.geteuid(), 0):
            raise OSError(errno.EACCES, "belongs to somebody else, who could change it", str(path))
        content = file.read(at_most + 1)
    if len(content) > at_most:
        raise OSError(errno.EFBIG, "is too large", str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, "is not text", str(path)) from None


def replace_file(path: Path, content: bytes, mode: int = FILE) -> None:
    """Gives the file this content, durably. A reader meanwhile, or after a crash, finds the old or the new content.

    The file has this mode whatever the umask is, and is for us alone until it has all of the content. On failure
    (OSError) the old file is untouched and nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if sys.platform != "win32":
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        # Only after the sync: a name that leads to data which is not on the disk yet is an empty file after a crash.
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """Makes a rename durable, where directories can be opened at all."""
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        # Some file systems cannot sync a directory; the content itself is on the disk already.
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


def named_in(file: Path, prefix: str = "") -> str | None:
    """The place that the only line of a file of git names: the `.git` of a worktree or submodule (after `GIT_FILE`),
    and `commondir` and `gitdir` in the directory that it leads to. It is without links; None if there is no such line.
    A link in place of the file is not followed, only a regular file is read, and none that is longer than a path. Never
    waits for anybody but the disk."""
    try:
        text = read_regular(file, _LONGEST_PATH, follow_link=False).decode("utf-8", "surrogateescape")
    except (OSError, ValueError):
        return None
    line = text.removesuffix("\n").removesuffix("\r")
    if not line.startswith(prefix) or "\n" in line or "\0" in line:
        return None
    return os.path.realpath(os.path.join(file.parent, line.removeprefix(prefix).strip()))
