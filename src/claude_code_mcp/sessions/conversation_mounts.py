"""What a sandboxed session is given of the conversations in the Claude Code directory of the server's user.

The user's own Claude Code, which runs without a sandbox, reads that directory too: its transcripts when they are
resumed, `memory` as instructions, plans and task lists as its own, `file-history` when files are taken back. So a
session is given what is its own and nothing beside it:

- the folder of its working directory in `projects`, writable; its `memory` read-only,
- its own `file-history` and `tasks`, by its id, and those of the session that it is forked from to be read,
- its transcript, or that of the session that it is forked from, where that lies in another folder,
- `plans` and `todos`, which Claude Code does not keep by session, from a directory of the caller's own.

What it writes elsewhere ends with its process, as the directory around all this is one in memory. Every directory is
given by descriptor, opened without following a link.

Two working directories whose paths differ in punctuation alone have one folder: Claude Code names them like this. A
cover such as the one on `memory` lasts as long as nobody outside replaces that directory.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..beneath import directory_at, entries_at, make_directory_at
from ..claude.command_line import ConversationStart
from ..private_files import private_directory
from ..processes.sandbox_view import Mount
from ..store.transcript_lines import folder_of, in_folder
from ..store.transcripts import ProjectFolders

_PROJECTS = "projects"
_BY_SESSION = ("file-history", "tasks")
_OF_CALLER = ("plans", "todos")
_MEMORY = "memory"
_LONGEST_FOLDER = 200
"""Claude Code shortens longer names and adds a hash of its own."""


@dataclass(frozen=True, slots=True)
class ConversationMounts:
    """The conversations of one session in the directory of the user."""

    config_dir: str
    place: Path
    """The directory of the caller below the state directory."""
    cwd: str
    conversation: ConversationStart

    def open(self, opened: contextlib.ExitStack) -> Iterator[Mount]:
        """The mounts; their descriptors are closed with `opened`. What is missing is made. OSError where something
        else is in the place of a directory, a link for one. Blocks on the disk."""
        private_directory(Path(self.config_dir, _PROJECTS))
        folder = self._folder()
        yield self._directory((_PROJECTS, folder), opened, writable=True)
        yield self._directory((_PROJECTS, folder, _MEMORY), opened)
        yield from self._transcript_elsewhere(folder, opened)
        for name in _BY_SESSION:
            private_directory(Path(self.config_dir, name))
            yield self._directory((name, self.conversation.session_id), opened, writable=True)
            if self.conversation.fork and self.conversation.resume is not None:
                with contextlib.suppress(FileNotFoundError):
                    yield self._directory((name, self.conversation.resume), opened, make=False)
        for name in _OF_CALLER:
            own = private_directory(self.place / "conversations" / name)
            yield Mount(os.path.join(self.config_dir, name), str(own), writable=True)

    def _folder(self) -> str:
        name = folder_of(os.path.realpath(self.cwd))
        if len(name) < _LONGEST_FOLDER:
            return name
        # Only Claude Code knows the hash at the end: what it has made already is found by the beginning.
        names = [entry.name for entry in entries_at(self._real(_PROJECTS)) if stat.S_ISDIR(entry.status.st_mode)]
        found = [each for each in names if in_folder(os.path.realpath(self.cwd), each)]
        if len(found) != 1:
            raise OSError(errno.ENAMETOOLONG, "the path of the working directory is too long for a sandbox", self.cwd)
        return found[0]

    def _real(self, *names: str) -> str:
        """A path below the directory: its first name may be the user's link, none that comes after may be one."""
        return os.path.join(os.path.realpath(os.path.join(self.config_dir, names[0])), *names[1:])

    def _directory(
        self, names: tuple[str, ...], opened: contextlib.ExitStack, *, writable: bool = False, make: bool = True
    ) -> Mount:
        path = self._real(*names)
        if make:
            make_directory_at(path)
        with directory_at(path) as descriptor:
            assert descriptor is not None  # a sandbox is for platforms that have them
            return self._mount(names, os.dup(descriptor), opened, writable=writable)

    def _mount(self, names: tuple[str, ...], descriptor: int, opened: contextlib.ExitStack, *, writable: bool) -> Mount:
        opened.callback(os.close, descriptor)
        return Mount(os.path.join(self.config_dir, *names), descriptor, writable)

    def _transcript_elsewhere(self, folder: str, opened: contextlib.ExitStack) -> Iterator[Mount]:
        """The transcript that the process goes on from, if it is not in the folder of its working directory: one of
        another directory that is forked into this one."""
        resumed = self.conversation.resume
        found = ProjectFolders.below(self.config_dir).locate(resumed) if resumed is not None else None
        if found is None:
            return
        directory, name = os.path.split(found)
        if os.path.basename(directory) == folder:
            return
        with directory_at(directory) as parent:
            descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=parent)
        names = (_PROJECTS, os.path.basename(directory), name)
        mount = self._mount(names, descriptor, opened, writable=not self.conversation.fork)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield mount
