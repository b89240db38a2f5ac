"""Wakes whoever follows a file when it changes, at most twice a second: a transcript that somebody drives elsewhere.

On Linux the kernel's notes are read by the event loop itself (`DirectoryWatch`), without a thread and without polling;
`watchfiles` does the same elsewhere. Nothing is queued: a follower has one flag, and reads what is new when woken.
Where a directory cannot be watched, a follower is woken twice a second and looks for itself.
"""

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .file_changes import DirectoryWatch

Report = Callable[[set[str] | None], None]
INTERVAL = 0.5
"""Seconds between two updates of one follower."""


def followable(path: str) -> str:
    """What to follow where the directory of a file may not be there yet: the file, or the first directory on the way to
    it that is missing; when that is there, this says what is next. Blocks on the disk."""
    while not os.path.isdir(os.path.dirname(path)) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


class Following:
    """One follower of one file."""

    def __init__(self, path: str, *, blind: bool = False) -> None:
        self.path = path
        self.blind = blind
        """Whether changes are not reported, so that it must look for itself."""
        self._flag = asyncio.Event()
        self._next = 0.0

    def wake(self) -> None:
        self._flag.set()

    async def changed(self) -> None:
        """Returns when the file has changed since the last call, and not sooner than an interval after that."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._flag.wait(), INTERVAL if self.blind else None)
        await asyncio.sleep(max(0.0, self._next - loop.time()))
        self._flag.clear()
        self._next = loop.time() + INTERVAL


class FileFollower:
    """All files that are followed in one event loop. Uses nothing while there are none."""

    def __init__(self, reports: "Callable[[Report], _Reports] | None" = None) -> None:
        """`reports` is how changes are learnt, by default what the platform has."""
        self._make_reports = reports or (KernelReports if sys.platform == "linux" else LibraryReports)
        self._following: set[Following] = set()
        self._directories: Counter[str] = Counter()
        self._reports: _Reports | None = None

    @asynccontextmanager
    async def follow(self, path: str) -> AsyncIterator[Following]:
        """Follows a file within the block; it need not exist yet, but its directory must."""
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
            if not self._directories[directory]:
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
        """None: some changes are not known, so that everybody looks."""
        for following in self._following:
            if paths is None or following.path in paths:
                following.wake()


class _Reports:
    """Reports the paths that changed in directories, in the event loop."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def add(self, directory: str) -> None:
        raise NotImplementedError

    def remove(self, directory: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class KernelReports(_Reports):
    """Linux."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
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


class LibraryReports(_Reports):
    """Every other platform, by `watchfiles`: one task, started anew when the directories change."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._directories: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._stop: asyncio.Event | None = None

    def add(self, directory: str) -> None:
        if not os.path.isdir(directory):
            raise NotADirectoryError(20, "Not a directory", directory)
        self._directories.add(directory)
        self._restart()

    def remove(self, directory: str) -> None:
        self._directories.discard(directory)
        self._restart()

    def close(self) -> None:
        self._directories.clear()
        self._restart()

    def _restart(self) -> None:
        if self._stop is not None:
            self._stop.set()
        self._stop = self._task = None
        if self._directories:
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._run({*self._directories}, self._stop))

    async def _run(self, directories: set[str], stop: asyncio.Event) -> None:
        from watchfiles import awatch  # noqa: PLC0415 - needed on few platforms, and only while somebody follows

        changes = awatch(*directories, recursive=False, debounce=200, step=50, stop_event=stop)
        self._report(None)  # what happened while nobody watched
        async for batch in changes:
            self._report({path for _, path in batch})
