"""Files and directories that are private to the user, whatever the umask, for tokens, names and conversations; and safe
reading of files that others may have placed: a session or a checkout may contain a pipe without a writer, a link to an
endless device, or a file of many gigabytes.

An existing directory is left unchanged: the operator may have created it deliberately.

The functions `…_at` are for files in directories that a session can write to: they open, list, change and remove
without following a link. A session may replace a file, or any directory above it, by a link to something that is not
the session's. So each function takes an absolute path whose trusted prefix was resolved before (`os.path.realpath` of a
directory that the operator chose), and raises OSError if any later component is a link, at the end or in the middle,
old or new. There is no gap between check and use: the opened file is what is used.

On Linux one system call does this (`openat2`); elsewhere, and where it is not available, every directory on the path is
opened one by one. Windows has no such descriptors: there the path is resolved and compared immediately before use.
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
"""The suffix of a file that is still being written; an old one was left by a crash."""
GIT_FILE = "gitdir:"
"""The prefix of the line in a worktree's `.git` file."""
_MAX_PATH = 4096


def private_directory(path: Path) -> Path:
    """Return the directory, creating it and missing parents as private directories. Raises OSError."""
    missing = []
    ancestor = path
    while not ancestor.exists() and ancestor != ancestor.parent:
        missing.append(ancestor)
        ancestor = ancestor.parent
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=DIRECTORY)
        except FileExistsError:
            continue  # another server created it first, in the same way
        if sys.platform != "win32":
            directory.chmod(DIRECTORY)  # the umask may have removed permissions that we need
    if not path.is_dir():
        raise NotADirectoryError(20, "Not a directory", str(path))
    return path


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is created private. A link at the end of the path is not followed."""
    descriptor = os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), FILE)
    if flags & os.O_CREAT and sys.platform != "win32":
        # The umask may have removed permissions that we need, and an older file may be readable by others.
        os.fchmod(descriptor, FILE)
    return descriptor


def read_regular(path: str | Path, at_most: int, *, follow_link: bool = True) -> bytes:
    """The content of a file in a directory that others may write to, such as a project. OSError if it cannot be read,
    is larger, or is not a regular file: a pipe would block, and a device may be endless. Without `follow_link` a link
    counts as not regular."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not follow_link:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if os.path.islink(path):  # where the system has no such flag (Windows)
            raise OSError(errno.ELOOP, "is a link", str(path))
    descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        # On the open file: the path may lead to another file by now.
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > at_most:
            raise OSError(22, "not a regular file, or too large", str(path))
        return file.read(at_most)


def read_secret(path: Path, at_most: int) -> str:
    """Read a file in which the operator stores a secret.

    OSError if it cannot be read, is larger, or is not text; `strerror` has the reason. Refuses a file that others can
    read or that belongs to another user. Checks the open file: the path may lead elsewhere by now. Does not block on a
    pipe.
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
    """Replace the file's content durably. Concurrent readers, and readers after a crash, see the old or the new
    content.

    The file gets this mode whatever the umask, and is private until it is complete. On failure (OSError) the old file
    is untouched and nothing is left behind.
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
        # Only after the sync: otherwise a crash could leave an empty file.
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
    """Binds a Unix socket below a directory even if its path is too long for a socket address (Linux). Raises
    OSError."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listening.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def named_in(file: Path, prefix: str = "") -> str | None:
    """The path in the single line of a git file: the `.git` of a worktree or submodule (after `GIT_FILE`), and
    `commondir` and `gitdir` in the directory that it leads to. It is without links; None if there is no such line. A
    link in place of the file is not followed, only a regular file is read, and none that is longer than a path. Never
    waits for anybody but the disk."""
    try:
        text = read_regular(file, _MAX_PATH, follow_link=False).decode("utf-8", "surrogateescape")
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
    """Whether an error means that there is no such file: no such name, an impossible name, a path through a link, or a
    socket or device in its place. Any other error (no free descriptor, a failing disk, no permission) says nothing
    about the file and must not be taken as its absence."""
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
    """A directory entry as of reading; links are not followed."""

    name: str
    status: os.stat_result


def open_at(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of the file at exactly this path, created private; also usable as the `opener` of `open`. Never
    blocks on a pipe."""
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
    """A descriptor of the directory at exactly this path; None where the platform has none and the path was checked
    instead."""
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
    # From the root, component by component: any directory on the way can be replaced by a link at any moment.
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
    """The status of the entry at exactly this path. OSError (ELOOP) for a link, at its end as well as in the middle."""
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor:
        found = os.stat(name if descriptor is not None else path, dir_fd=descriptor, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return found


def exists_at(path: str) -> bool:
    """Whether anything exists at exactly this path; a link at the end exists, a path through a link does not. Errors
    count as existing."""
    directory, name = os.path.split(path)
    try:
        with directory_at(directory) as descriptor:
            os.stat(name if descriptor is not None else path, dir_fd=descriptor, follow_symlinks=False)
    except OSError as error:
        return not is_absence(error)
    return True


def entries_at(path: str, wanted: Callable[[str], bool] = lambda _: True) -> list[DirectoryItem]:
    """The entries of the directory at exactly this path whose names are wanted. Entries that disappear in the meantime
    are skipped. OSError if the directory cannot be read as a whole."""
    with scanned(path) as entries:
        items = ((entry.name, entry_status(entry)) for entry in entries if wanted(entry.name))
        return [DirectoryItem(name, status) for name, status in items if status is not None]


def entry_status(entry: "os.DirEntry[str]") -> os.stat_result | None:
    """The status of an entry itself, not of a link's target; None if it no longer exists."""
    try:
        return entry.stat(follow_symlinks=False)
    except OSError as error:
        if is_absence(error):
            return None
        raise


def folders_at(path: str) -> tuple[list[str], list[str]]:
    """The names of the directories and of the links in the directory at exactly this path, without opening them."""
    with scanned(path) as entries:
        kinds = [(entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    folders = [name for name, is_link, is_folder in kinds if is_folder and not is_link]
    return folders, [name for name, is_link, _ in kinds if is_link]


@contextlib.contextmanager
def scanned(path: str) -> Iterator[Iterator["os.DirEntry[str]"]]:
    """The entries of a directory, valid only within this context: they belong to its descriptor."""
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
    """Create a private directory if there is none; FileExistsError if something else is there."""
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
    """Remove a file, a link itself, or a directory with its contents; a no-op if nothing is there."""
    directory, name = os.path.split(path)
    with directory_at(directory) as descriptor:
        where = name if descriptor is not None else path
        try:
            # Anything placed there after this check is removed as a link or refused by `rmtree`: neither follows links.
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
"""The errors of a kernel without the call, and of one that forbids it, as in some containers."""
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
    # EPERM may also concern the file: only if the root directory is refused too is the call itself unavailable.
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
