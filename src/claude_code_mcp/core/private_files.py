"""Files and directories that nobody else may read, whatever the umask is: what holds tokens, names and what was said;
and how a file is read that somebody else may have put there: a session or a checkout may have put anything in its
place, a pipe that nobody writes to, a link to a device without end, a file of many gigabytes.

A directory that is already there is left as it is: the operator may have made it, for reasons of their own.

The functions `…_at` are for files in directories that a session can write to: they open, list, change and remove
without following a link. A session may put a link in place of a file, or of any directory above it, and what that leads
to is not the session's. So each of them takes an absolute path whose trusted beginning was resolved before
(`os.path.realpath` of a directory that the operator chose), and refuses (OSError) where any name behind that is a link:
at the end or in the middle, from the beginning or put there since. Nothing is decided by one look and done by another:
what was opened is what is used.

On Linux one call of the kernel does this (`openat2`); elsewhere, and where that call is not to be had, every directory
on the way is opened by itself. Windows has no such descriptors: there the path is resolved and compared right before.
"""

import contextlib
import errno
import os
import shutil
import stat
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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
            raise OSError(errno.EACCES, "belongs to another user, who could change it", str(path))
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


# -- files beneath a directory ----------------------------------------------------------------------------------------


_BY_DESCRIPTOR = os.open in os.supports_dir_fd
_OPENAT2 = 437
_NO_SYMLINKS, _NO_MAGICLINKS = 0x04, 0x02
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_CAREFUL = (
    getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # a pipe in place of a file would wait for its other end
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


_ABSENT = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO, errno.ENODEV)
)


def is_absence(error: OSError) -> bool:
    """Whether an error says that there is no such file: nothing of that name, a name that no file can have, something
    behind a link, or a socket or device in its place. Any other error (no free descriptor, a failing disk, no
    permission) says nothing of the file, and must not pass for its absence."""
    return error.errno in _ABSENT


ResultT = TypeVar("ResultT")


def unless_absent(read: Callable[[], ResultT]) -> ResultT | None:
    """What `read` returns; None where there is no such file. Raises every other OSError."""
    try:
        return read()
    except OSError as error:
        if not is_absence(error):
            raise
        return None


class DirectoryItem(NamedTuple):
    """Something in a directory, as it was when that was read; a link is itself."""

    name: str
    status: os.stat_result


def open_at(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of the file at just this path, for us alone if this makes it; for `open` too, as its `opener`. It
    never waits for a pipe."""
    path, flags, mode = os.fspath(path), flags | _CAREFUL, 0o600
    if not _BY_DESCRIPTOR or not os.path.isabs(path):
        _check_resolved(path)
        return os.open(path, flags, mode)
    if sys.platform == "linux":
        # The call refuses a mode where nothing is made.
        opened = _openat2(path, flags, mode if flags & os.O_CREAT else 0)
        if opened is not None:
            return opened
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor:
        return os.open(name or ".", flags, mode, dir_fd=descriptor)


@contextlib.contextmanager
def directory_at(path: str) -> Iterator[int | None]:
    """A descriptor of the directory at just this path; None where the platform has none, and the path was checked."""
    if not _BY_DESCRIPTOR or not os.path.isabs(path):
        _check_resolved(path)
        yield None
        return
    descriptor = _open_directory(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_directory(path: str) -> int:
    if sys.platform == "linux":
        opened = _openat2(path, _DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, 0)
        if opened is not None:
            return opened
    # From the root on, name by name: a link can be put in place of any directory on the way at any moment.
    descriptor = os.open("/", _DIRECTORY | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            inner = os.open(name, _DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def stat_at(path: str) -> os.stat_result:
    """The status of what is at just this path. OSError (ELOOP) for a link, at its end as well as in the middle."""
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor:
        found = os.stat(name if descriptor is not None else path, dir_fd=descriptor, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return found


def exists_at(path: str) -> bool:
    """Whether anything is at just this path; a link at its end is something, whatever it leads to, and nothing is
    behind one in the middle. What cannot be looked at counts as being there."""
    directory, name = os.path.split(path)
    try:
        with directory_at(directory) as descriptor:
            os.stat(name if descriptor is not None else path, dir_fd=descriptor, follow_symlinks=False)
    except OSError as error:
        return not is_absence(error)
    return True


def entries_at(path: str, wanted: Callable[[str], bool] = lambda _: True) -> list[DirectoryItem]:
    """The entries of the directory at just this path whose names are wanted. An entry that is gone by the time it is
    looked at is left out. OSError if the directory cannot be read as a whole."""
    with scanned(path) as entries:
        items = ((entry.name, entry_status(entry)) for entry in entries if wanted(entry.name))
        return [DirectoryItem(name, status) for name, status in items if status is not None]


def entry_status(entry: "os.DirEntry[str]") -> os.stat_result | None:
    """What the directory says of an entry itself, not of what it may link to; None if it is gone by now."""
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        if is_absence(error):
            return None
        raise


def folders_at(path: str) -> tuple[list[str], list[str]]:
    """The names of the directories in the directory at just this path, and those of the links; none is looked at."""
    with scanned(path) as entries:
        kinds = [(entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = [name for name, is_link, is_folder in kinds if is_folder and not is_link]
    return folders, [name for name, is_link, _ in kinds if is_link]


@contextlib.contextmanager
def scanned(path: str) -> Iterator[Iterator["os.DirEntry[str]"]]:
    """The entries of a directory, which can be looked at within this context only: they belong to its descriptor."""
    if not _BY_DESCRIPTOR:
        _check_resolved(path)
        with os.scandir(path) as entries:
            yield entries
        return
    descriptor = open_at(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        with os.scandir(descriptor) as entries:
            yield entries
    finally:
        os.close(descriptor)


def make_directory_at(path: str) -> None:
    """Makes a directory for us alone, if there is none; FileExistsError for something else in its place."""
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor, contextlib.suppress(FileExistsError):
        os.mkdir(name if descriptor is not None else path, 0o700, dir_fd=descriptor)
    if not stat.S_ISDIR(stat_at(path).st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


def replace_at(source: str, target: str) -> None:
    """Renames a file within its directory; whatever had the new name is replaced, a link as such."""
    directory, name = os.path.split(source)
    with directory_at(directory) as descriptor:
        if descriptor is None:
            os.replace(source, target)
        else:
            os.replace(name, os.path.basename(target), src_dir_fd=descriptor, dst_dir_fd=descriptor)


def remove_at(path: str) -> None:
    """Removes a file, a link as such, or a directory with all that is in it; harmless where there is nothing."""
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor:
        where = name if descriptor is not None else path
        try:
            # Whatever is put there after this look is removed as a link or refused by `rmtree`: neither follows one.
            found = os.stat(where, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(where, dir_fd=descriptor)
            else:
                os.unlink(where, dir_fd=descriptor)
        except FileNotFoundError:
            return


def _check_resolved(path: str) -> None:
    absolute = os.path.abspath(path)
    if os.path.normcase(os.path.realpath(path)) != os.path.normcase(absolute):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


_UNAVAILABLE = (errno.ENOSYS, errno.EPERM)
"""What a kernel without the call says, and one that was told not to allow it, as in some containers."""
_kernel: "list[Callable[[bytes, int, int], int] | None]" = []


def _openat2(path: str, flags: int, mode: int) -> int | None:
    """The descriptor; None where the kernel cannot be asked like this."""
    if not _kernel:
        _kernel.append(_kernel_call())
    call = _kernel[0]
    if call is None:
        return None
    result = call(os.fsencode(path), flags, mode)
    if result >= 0:
        return result
    # EPERM may also be about the file: only if the root directory is refused too is the call itself not to be had.
    if -result in _UNAVAILABLE and _openat2_is_missing(call):
        _kernel[0] = None
        return None
    raise OSError(-result, os.strerror(-result), path)


def _openat2_is_missing(call: "Callable[[bytes, int, int], int]") -> bool:
    """Whether the call is refused even for the root directory, so that it is not about the path."""
    opened = call(b"/", _DIRECTORY | os.O_CLOEXEC, 0)
    if opened >= 0:
        os.close(opened)
    return opened < 0


def _kernel_call() -> "Callable[[bytes, int, int], int] | None":
    """Calls `openat2` without following links; returns a descriptor, or an error number below zero."""
    import ctypes  # noqa: PLC0415 - not before something is opened like this

    class How(ctypes.Structure):
        _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))

    try:
        syscall = ctypes.CDLL(None, use_errno=True).syscall
    except (OSError, AttributeError):
        return None
    syscall.restype = ctypes.c_long
    syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
    size, anywhere = ctypes.sizeof(How), -100  # the path is absolute: where it would start from does not count

    def call(path: bytes, flags: int, mode: int) -> int:
        if b"\0" in path:
            return -errno.EINVAL
        how = How(flags, mode, _NO_SYMLINKS | _NO_MAGICLINKS)
        while True:
            result = int(syscall(_OPENAT2, anywhere, path, ctypes.byref(how), size))
            if result >= 0:
                return result
            if ctypes.get_errno() != errno.EINTR:
                return -ctypes.get_errno()

    return call
