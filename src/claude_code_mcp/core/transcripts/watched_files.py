"""Reports changed files: wakes the followers of a transcript, or of a small file that a person edits.

On Linux the event loop itself reads the kernel's notifications (`DirectoryWatch`), without a thread and without
polling; elsewhere `watchfiles` reports changes. Nothing is queued: a follower has one flag, and reads the new content
when it is woken. If a directory cannot be watched, its followers are woken twice a second and check for themselves.

Readers of a transcript (`FileFollower`) are woken at most twice a second. Every change of a `WatchedFile` is recorded
in the next step of the event loop: a decision based on such a file (who may call) must not use an old version. All
links on the way to the file are watched too, so that a directory replaced behind a link (as Kubernetes does with
secrets) is noticed. If the kernel's notifications are not available, or report nothing (a network file system), the
file is checked at intervals: `wait` then returns without a change.
"""

import asyncio
import contextlib
import errno
import os
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16
_MAX_READS = 64
"""Maximum number of buffers read; beyond that a scan is faster."""
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _OVERFLOW, _IGNORED, _ONLY_DIRECTORIES = 0x400, 0x800, 0x4000, 0x8000, 0x1000000
_CHANGES = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF

Report = Callable[[set[str] | None], None]
INTERVAL = 0.5
"""Seconds between two updates of a follower."""


class DirectoryWatch:
    """The kernel's notifications of changes in directories, not below them. Linux only; raises OSError if the limit is
    reached."""

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
        """Readable while there are notifications."""
        return self._descriptor

    def add(self, directory: str) -> None:
        """Starts watching a directory. Raises OSError if that is impossible or it is not a directory."""
        name = os.fsencode(directory)
        number = self._checked(self._libc.inotify_add_watch(self._descriptor, name, _CHANGES | _ONLY_DIRECTORIES))
        self._directories[number] = directory

    def remove(self, directory: str) -> None:
        """Stops watching a directory. Does nothing if it is not watched."""
        for number, watched in [*self._directories.items()]:
            if watched == directory:
                self._libc.inotify_rm_watch(self._descriptor, number)
                del self._directories[number]

    def take(self) -> set[tuple[str, str]] | None:
        """The notifications so far, as directory and name (`""`: the directory itself); None if some were lost."""
        changed: set[tuple[str, str]] = set()
        for _ in range(_MAX_READS):
            try:
                notes = os.read(self._descriptor, _BUFFER)
            except BlockingIOError:
                return changed
            except OSError:
                return None
            for number, mask, name in _notes(notes):
                # It is unknown which ones were lost: only a scan can find the changes.
                if mask & _OVERFLOW:
                    return None
                directory = self._directories.get(number)
                if directory is not None:
                    changed.add((directory, name))
                if mask & _IGNORED:
                    # The kernel has removed the watch and will not reuse its number.
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


# -- reports -----------------------------------------------------------------------------------------------------------


class _Reports(Protocol):
    """Reports changed paths in directories, in the event loop."""

    def add(self, directory: str) -> None:
        """Starts reporting changes in a directory. May be repeated. Raises OSError if that is impossible."""

    def remove(self, directory: str) -> None:
        """Stops reporting changes in a directory."""

    def close(self) -> None:
        """Stops all reports."""


class KernelReports:
    """Linux."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._watch = DirectoryWatch()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._watch.fileno(), self._take)

    def add(self, directory: str) -> None:
        self._watch.add(directory)

    def remove(self, directory: str) -> None:
        self._watch.remove(directory)

    def close(self) -> None:
        self._loop.remove_reader(self._watch.fileno())
        self._watch.close()

    def _take(self) -> None:
        changed = self._watch.take()
        self._report(None if changed is None else {os.path.join(*change) for change in changed})


class LibraryReports:
    """All other platforms, with `watchfiles`: one task, restarted when the directories change."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._directories: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None

    def add(self, directory: str) -> None:
        if not os.path.isdir(directory):
            raise NotADirectoryError(20, "Not a directory", directory)
        if directory not in self._directories:
            self._directories.add(directory)
            self._restart()

    def remove(self, directory: str) -> None:
        self._directories.discard(directory)
        self._restart()

    def close(self) -> None:
        self._directories.clear()
        self._restart()

    def _restart(self) -> None:
        # The old task ends a moment later; until then both report, which is harmless.
        if self._stop is not None:
            self._stop.set()
        self._stop = self._task = None
        if self._directories:
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._run({*self._directories}, self._stop))

    async def _run(self, directories: set[str], stop: asyncio.Event) -> None:
        from watchfiles import awatch  # noqa: PLC0415 - needed on few platforms, and only while files are followed

        changes = awatch(*directories, recursive=False, debounce=200, step=50, stop_event=stop)
        self._report(None)  # changes before the watch started
        async for batch in changes:
            self._report({path for _, path in batch})


# -- followers ---------------------------------------------------------------------------------------------------------


def followable(path: str) -> str:
    """The path to follow if a file's directory may not exist yet: the file, or the first missing directory on the way
    to it; call it again when that exists. Blocks on the disk."""
    while not os.path.isdir(os.path.dirname(path)) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def facts_of(file: "os.PathLike[str] | None") -> object:
    """A value that changes when a file changes; if it cannot be read, the error. Blocks on the disk."""
    if file is None:
        return None
    try:
        found = os.stat(file)
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_mode, found.st_uid


def is_empty(facts: object) -> bool:
    """Whether these are the facts of an existing empty file."""
    return isinstance(facts, tuple) and facts[2] == 0


class Following:
    """One follower of one file."""

    def __init__(self, path: str, *, blind: bool = False) -> None:
        self.path = path
        self.blind = blind
        """Whether changes are not reported, so that it must poll."""
        self._flag = asyncio.Event()
        self._next = 0.0

    def wake(self) -> None:
        self._flag.set()

    async def changed(self) -> None:
        """Returns when the file has changed since the last call, at least one interval after it."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._flag.wait(), INTERVAL if self.blind else None)
        await asyncio.sleep(max(0.0, self._next - loop.time()))
        # Only after the pause: changes during it are read together with the one that woke the follower.
        self._flag.clear()
        self._next = loop.time() + INTERVAL


class FileFollower:
    """All followed files of one event loop. Uses no resources while there are none."""

    def __init__(self, reports: "Callable[[Report], _Reports] | None" = None) -> None:
        """`reports` reports changes, by default with the platform's mechanism."""
        self._make_reports = reports or (KernelReports if sys.platform == "linux" else LibraryReports)
        self._following: set[Following] = set()
        self._directories: Counter[str] = Counter()
        self._reports: _Reports | None = None

    @asynccontextmanager
    async def follow(self, path: str) -> AsyncIterator[Following]:
        """Follows a file within the block. The file need not exist yet, but its directory must."""
        directory = os.path.dirname(path)
        following = Following(path, blind=not self._watch(directory))
        self._following.add(following)
        self._directories[directory] += 1
        try:
            yield following
        finally:
            self._following.discard(following)
            self._directories[directory] -= 1
            self._unwatch(directory)

    def _watch(self, directory: str) -> bool:
        try:
            if self._reports is None:
                self._reports = self._make_reports(self._on_changes)
            # Also for a file that others follow already: they may be blind, because it could not be watched for them.
            self._reports.add(directory)
        except OSError:
            return False
        return True

    def _unwatch(self, directory: str) -> None:
        if not self._directories[directory]:
            del self._directories[directory]
            if self._reports is not None:
                self._reports.remove(directory)
        if not self._directories and self._reports is not None:
            self._reports.close()
            self._reports = None

    def _on_changes(self, paths: set[str] | None) -> None:
        """Wakes the followers of these paths; with None, some changes are unknown, so every follower polls."""
        for following in self._following:
            if paths is None or following.path in paths:
                following.wake()


# -- watched file -----------------------------------------------------------------------------------------------------


_MAX_PARTS = 1000
"""Maximum number of parts of a path with all its links; more indicate a cycle."""
_BLIND_SECONDS = 0.5
_LOOK_AGAIN = 60.0


class WatchedFile:
    """An asynchronous context manager; within it, changes of the file are recorded."""

    def __init__(self, path: str, noted: Callable[[], None]) -> None:
        """`noted` is called in the event loop as soon as something changed, before `wait` returns."""
        self._path = os.path.abspath(path)
        self._noted = noted
        self._changed = asyncio.Event()
        self._names: frozenset[str] = frozenset()
        self._directories: set[str] = set()
        self._blind = False
        self._reports: _Reports | None = None

    async def __aenter__(self) -> "WatchedFile":
        kind = KernelReports if sys.platform == "linux" else LibraryReports
        try:
            self._reports = kind(self._on_changes)
        except OSError:
            self._blind = True
        await self.watch_again()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reports is not None:
            self._reports.close()

    @property
    def is_noted(self) -> bool:
        """Whether there was a change since `clear`."""
        return self._changed.is_set()

    def clear(self) -> None:
        """Resets the record of changes. Call it before you read the file."""
        self._changed.clear()

    async def wait(self, longest: float | None = None) -> None:
        """Returns when a change is recorded, or without one when it is time to check: after `longest` seconds if given,
        otherwise at the regular interval if changes are not reported."""
        usual = _BLIND_SECONDS if self._blind else _LOOK_AGAIN
        try:
            async with asyncio.timeout(usual if longest is None else longest):
                await self._changed.wait()
        except TimeoutError:
            return

    async def watch_again(self) -> None:
        """Watches the links and directories that lead to the file now. Call it after each change."""
        names = await asyncio.to_thread(_links_on_the_way, self._path)
        directories = {os.path.dirname(name) for name in names}
        # The new directories are watched before the old watches are removed; the reader reads the file afterward.
        missing = {directory for directory in directories - self._directories if not self._watch(directory)}
        for directory in self._directories - directories:
            self._unwatch(directory)
        self._names, self._directories = frozenset(names), directories - missing
        self._blind = self._reports is None or bool(missing)

    def _watch(self, directory: str) -> bool:
        if self._reports is None:
            return False
        try:
            self._reports.add(directory)
        except OSError:
            return False
        return True

    def _unwatch(self, directory: str) -> None:
        self._directories.discard(directory)
        if self._reports is not None:
            self._reports.remove(directory)

    def _on_changes(self, paths: set[str] | None) -> None:
        # A path that ends with a separator means the watched directory itself.
        if paths is None or any(path in self._names or path.endswith(os.sep) for path in paths):
            for directory in {path.rstrip(os.sep) for path in paths or () if path.endswith(os.sep)}:
                self._unwatch(directory)  # it was moved or removed: `watch_again` finds its replacement
            self._changed.set()
            self._noted()


def _links_on_the_way(path: str) -> list[str]:
    """The file and every link on the way to it, each as a path whose directory exists and is not a link. For a path
    that does not exist, the last element is the first missing part."""
    found: list[str] = []
    place, rest = _root_and_parts(path)
    for _ in range(_MAX_PARTS):
        if not rest:
            break
        name = rest.pop()
        if name in (os.curdir, os.pardir):
            place = os.path.dirname(place) if name == os.pardir else place
            continue
        here = os.path.join(place, name)
        try:
            target = os.readlink(here)
        except (OSError, ValueError):  # it is not a link, or does not exist yet
            if not rest or not os.path.isdir(here):
                return [*found, here]
            place = here
            continue
        found.append(here)
        root, more = _root_and_parts(target)
        place = root if os.path.isabs(target) else place
        rest += more
    return found


def _root_and_parts(path: str) -> tuple[str, list[str]]:
    """The root of an absolute path, and its parts, last first."""
    drive, tail = os.path.splitdrive(path)
    return drive + os.sep, [part for part in tail.split(os.sep) if part][::-1]
