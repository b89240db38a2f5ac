"""Which files of some directories there are, and which have changed since they were last looked at.

`FileTable` scans its directories once. On Linux the kernel then notes every change (inotify): the next look takes only
these, and it misses nothing that happened before it, since the kernel notes a change before the write returns. Where
the kernel cannot be asked, or has lost count, everything is scanned again; once a minute that is done anyway, because
a network file system does not report what other machines do. A directory that cannot be read just now (no descriptor
is free, the disk fails) has the files that it had, is named in `unread`, and is scanned again at the next look. All
functions block on the disk; any thread may call.
"""

import contextlib
import errno
import os
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..beneath import entries_at, folders_at, is_absence, stat_at

_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16
_MOST_READS = 64
"""So many buffers of changes are taken at most; a scan is quicker than more of them."""
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ONLY_DIRECTORIES = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
_CHANGES = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_RESCAN_AFTER = 60.0


class File(NamedTuple):
    """A file as its directory shows it, unopened. Equal while the file is unchanged."""

    path: str
    mtime_ns: int
    size: int


def look_at(path: str) -> File | None:
    """None for what is missing, no regular file, or behind a link anywhere on the way to it; OSError if it cannot be
    told."""
    try:
        status = stat_at(path)
    except OSError as error:
        if not is_absence(error):
            raise
        return None
    except ValueError:  # no file can have such a name
        return None
    return _file(path, status)


def _file(path: str, status: os.stat_result) -> File | None:
    return File(path, status.st_mtime_ns, status.st_size) if stat.S_ISREG(status.st_mode) else None


def list_files(directory: str, wanted: Callable[[str], bool]) -> list[File]:
    """The files in a directory with a name that is wanted, links left out; nothing if there is no such directory.
    OSError if it cannot be read."""
    try:
        entries = entries_at(directory, wanted)
    except OSError as error:
        if not is_absence(error):
            raise
        return []
    return [
        File(f"{directory}{os.sep}{name}", status.st_mtime_ns, status.st_size)
        for name, status in entries
        if stat.S_ISREG(status.st_mode)
    ]


def list_folders(directory: str, *, linked: bool = False) -> list[str]:
    """The paths of the directories in a directory; nothing if there is no such directory. With `linked`, links to
    directories too, as where they lead to. OSError if it cannot be read."""
    try:
        names, links = folders_at(directory)
    except OSError as error:
        if not is_absence(error):
            raise
        return []
    folders = [os.path.join(directory, name) for name in names]
    if linked and links:
        leads = dict.fromkeys(os.path.realpath(os.path.join(directory, link)) for link in links)
        folders += [folder for folder in leads if folder not in {*folders} and _may_be_directory(folder)]
    return folders


def _may_be_directory(path: str) -> bool:
    """What cannot be looked at now may be one: whoever reads it is told why it cannot be read."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return not is_absence(error)


class DirectoryWatch:
    """The kernel's notes on changes in directories, not below them. Linux only; OSError where there is no room."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "inotify is not available")
        import ctypes  # noqa: PLC0415 - not before something is watched

        self._libc, self._errno = ctypes.CDLL(None, use_errno=True), ctypes.get_errno
        self._descriptor = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._directories: dict[int, str] = {}

    def _checked(self, result: int) -> int:
        if result < 0:
            code = self._errno()
            raise OSError(code, os.strerror(code))
        return result

    def fileno(self) -> int:
        """Readable while there are notes."""
        return self._descriptor

    def add(self, directory: str) -> None:
        """From now on changes in the directory are noted. OSError if that cannot be done, or it is none."""
        name = os.fsencode(directory)
        number = self._checked(self._libc.inotify_add_watch(self._descriptor, name, _CHANGES | _ONLY_DIRECTORIES))
        self._directories[number] = directory

    def remove(self, directory: str) -> None:
        """Its changes are noted no more; harmless for one that is not watched."""
        for number, watched in [*self._directories.items()]:
            if watched == directory:
                self._libc.inotify_rm_watch(self._descriptor, number)
                del self._directories[number]

    def take(self) -> set[tuple[str, str]] | None:
        """The notes so far, as directory and name (`""`: the directory itself); None if some were lost."""
        changed: set[tuple[str, str]] = set()
        for _ in range(_MOST_READS):
            try:
                notes = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return changed
            except OSError:
                return None
            for number, mask, name in _notes(notes):
                if mask & _OVERFLOW:
                    return None
                directory = self._directories.get(number)
                if directory is not None:
                    changed.add((directory, name))
                if mask & _IGNORED:
                    self._directories.pop(number, None)
        return None

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self.close()


def _notes(notes: bytes) -> Iterator[tuple[int, int, str]]:
    at = 0
    while at < len(notes):
        number, mask, _, length = _EVENT.unpack_from(notes, at)
        at += _EVENT.size
        yield number, mask, os.fsdecode(notes[at : at + length].rstrip(b"\0"))
        at += length


class FileTable:
    """The files with a wanted name in a directory or, with `below`, in the directories right below it. Links are left
    out; with `linked`, directories below it may be links."""

    def __init__(self, root: str, wanted: Callable[[str], bool], *, below: bool = False, linked: bool = False) -> None:
        """`root` is resolved: there is no link on the way to it."""
        self._root = root
        self._wanted = wanted
        self._below = below
        self._linked = linked
        self._lock = threading.Lock()
        self._files: dict[str, File] = {}
        self._snapshot: dict[str, File] = {}
        self._snapshot_version = 0
        self._watch: DirectoryWatch | None = None
        self._scanned_at = -_RESCAN_AFTER
        self.version = 0
        """Another one whenever a file is new, gone or changed."""
        self.unread: dict[str, str] = {}
        """The directories that could not be read at the last look, and why; their files are as they were before."""

    def files(self) -> dict[str, File]:
        """By path; a snapshot, the same object while nothing changes, not to be changed by anybody."""
        with self._lock:
            changed = None
            if self._watch is not None and time.monotonic() - self._scanned_at < _RESCAN_AFTER:
                changed = self._watch.take()
            if changed is None or (self._root, "") in changed or not self._apply(changed):
                self._scan()
            if self._snapshot_version != self.version:
                self._snapshot, self._snapshot_version = dict(self._files), self.version
            return self._snapshot

    def _apply(self, changed: set[tuple[str, str]]) -> bool:
        """Takes over what was noted; returns False if a folder came, went or was renamed, which is rare: then a scan
        is simpler than to follow it; and if a file could not be looked at."""
        if self._below and any(directory == self._root for directory, _ in changed):
            return False
        try:
            for directory, name in changed:
                if self._wanted(name):
                    self._update(os.path.join(directory, name))
        except OSError:
            return False  # what was noted is gone from the kernel's queue: a scan finds it
        return True

    def _update(self, path: str) -> None:
        file = look_at(path)
        if file == self._files.get(path):
            return
        self.version += 1
        if file is None:
            del self._files[path]
        else:
            self._files[path] = file

    def _scan(self) -> None:
        """Directories are watched before they are read, so that nothing happens unnoticed in between."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        with contextlib.suppress(OSError):
            self._watch = DirectoryWatch()
        before, self._files, self.unread = self._files, {}, {}
        watched = self._watch_directory(self._root)
        for folder in self._folders(before):
            watched = (folder == self._root or self._watch_directory(folder)) and watched
            try:
                self._files.update({file.path: file for file in list_files(folder, self._wanted)})
            except OSError as error:
                self.unread[folder] = error.strerror or str(error)
                self._files.update({path: file for path, file in before.items() if os.path.dirname(path) == folder})
        if (self.unread or not watched) and self._watch is not None:
            # Without a watch, the next look is a scan.
            self._watch.close()
            self._watch = None
        self._scanned_at = time.monotonic()
        if self._files != before:
            self.version += 1

    def _folders(self, before: dict[str, File]) -> list[str]:
        """The directories with files; those of the files before if it cannot be told now."""
        if not self._below:
            return [self._root]
        try:
            return list_folders(self._root, linked=self._linked)
        except OSError as error:
            self.unread[self._root] = error.strerror or str(error)
            return [*dict.fromkeys(os.path.dirname(path) for path in before)]

    def _watch_directory(self, path: str) -> bool:
        """False if its changes will not be noted; what is no directory has none."""
        if self._watch is None:
            return False
        try:
            self._watch.add(path)
        except OSError as error:
            return error.errno == errno.ENOTDIR or (error.errno == errno.ENOENT and path != self._root)
        return True
