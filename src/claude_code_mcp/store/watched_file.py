"""Notices at once when a small file that somebody edits has changed, however it is replaced.

Unlike `following`, which wakes the readers of a transcript at most twice a second, every change is noted in the event
loop's next step: what is decided by such a file (who may call) must not be decided by an old one. All links on the way
to the file are watched with it, so that a directory which is swapped behind a link (as Kubernetes does with secrets)
is noticed too. Where the kernel cannot be asked, or tells nothing (a network file system), a look every so often must
do: `wait` returns then without a change.
"""

import asyncio
import os
import sys
from collections.abc import Callable

from .following import KernelReports, LibraryReports

_MOST_PARTS = 1000
"""Of a path with all of its links; more of them lead in a circle."""
_BLIND_SECONDS = 0.5
_LOOK_AGAIN = 60.0


class WatchedFile:
    """An asynchronous context manager; within it changes of the file are noted."""

    def __init__(self, path: str, noted: Callable[[], None]) -> None:
        """`noted` is called in the event loop as soon as something has changed, before `wait` returns."""
        self._path = os.path.abspath(path)
        self._noted = noted
        self._changed = asyncio.Event()
        self._names: frozenset[str] = frozenset()
        self._directories: set[str] = set()
        self._blind = False
        self._reports: KernelReports | LibraryReports | None = None

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
        """Changes from now on count; to be called before the file is read."""
        self._changed.clear()

    async def wait(self) -> None:
        """Returns when a change is noted, or when it is time to look again without one."""
        try:
            async with asyncio.timeout(_BLIND_SECONDS if self._blind else _LOOK_AGAIN):
                await self._changed.wait()
        except TimeoutError:
            return

    async def watch_again(self) -> None:
        """Watches the links and directories that lead to the file now. To be called after each change."""
        names = await asyncio.to_thread(_links_on_the_way, self._path)
        directories = {os.path.dirname(name) for name in names}
        # The new directories are watched before the old ones are given up; a reader looks at the file afterwards.
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
        if paths is None or any(path in self._names or path.endswith(os.sep) for path in paths):
            for directory in {path.rstrip(os.sep) for path in paths or () if path.endswith(os.sep)}:
                self._unwatch(directory)  # it was moved away or removed: `watch_again` looks for the one in its place
            self._changed.set()
            self._noted()


def _links_on_the_way(path: str) -> list[str]:
    """The file and every link that is followed to reach it, each by a path whose directory exists and is no link. Of a
    path that does not exist, the first part that is missing is the last of them."""
    found: list[str] = []
    place, rest = _root_and_parts(path)
    for _ in range(_MOST_PARTS):
        if not rest:
            break
        name = rest.pop()
        if name in (os.curdir, os.pardir):
            place = os.path.dirname(place) if name == os.pardir else place
            continue
        here = os.path.join(place, name)
        try:
            target = os.readlink(here)
        except (OSError, ValueError):  # it is no link, or is not there yet
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
    """The root of an absolute path, and its parts, the last one first."""
    drive, tail = os.path.splitdrive(path)
    return drive + os.sep, [part for part in tail.split(os.sep) if part][::-1]
