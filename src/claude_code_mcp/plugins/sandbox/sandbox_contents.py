"""The sandbox of one caller's sessions: the files, variables and hosts that a process in it can access.

A process gets

- the directories in which it may work: the roots of its profile, or without roots the directories that its caller
  named,
- the paths that its profile lists as `writable` and `readable`,
- its caller's own home directory, which persists, and a `/tmp` that ends with the process,
- the variables that its home defines for a sandbox (`homes.py`),
- the network of the host; or else the model through a socket of the server, which adds the credentials, and the listed
  hosts through a proxy,
- Claude Code's configuration directory: its conversations (writable) and settings (read-only), see below. Programs
  other than Claude Code get no part of it.

Files that a rule denies to read are empty in the sandbox, see `hidden_files.py`.

Everything else that a process writes is lost when it ends. Each path is checked and opened when a process starts, and
passed by descriptor: replacing it with a link has no effect. Directories that contain a path of the operator are
refused; see `protected_paths.py`.

The user's own Claude Code, which runs without a sandbox, reads its configuration directory too: transcripts when they
are resumed, `memory` as instructions, plans and task lists as its own, `file-history` when files are restored. If a
session shares that directory, it gets only its own parts of it, opened without following a link (`ConversationMounts`):

- the folder of its working directory in `projects`, writable; its `memory` read-only,
- its own `file-history` and `tasks`, by its id, and read-only those of the session from which it is forked,
- its transcript, or that of the session from which it is forked, if that is in another folder,
- `plans` and `todos`, which Claude Code does not separate by session, from a directory that belongs to the caller.

Two working directories whose paths differ only in punctuation share one folder, because Claude Code derives its name
this way. A cover such as the one on `memory` lasts as long as no process outside replaces that directory.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from ...core.claude.command_line import ConversationStart
from ...core.claude.model_access import CREDENTIALS_FILE
from ...core.claude.user_config import CONVERSATIONS, USER_SETTINGS
from ...core.errors import PermissionDenied, ProcessFailed
from ...core.isolation import Connections, Enclosure, IsolatedCommand
from ...core.model.options import SessionOptions
from ...core.model.paths import HERE
from ...core.model.worktree import Worktree
from ...core.policy.policy import Profile
from ...core.private_files import directory_at, entries_at, make_directory_at, private_directory
from ...core.processes.environment import expand_home
from ...core.processes.limits import ResourceLimits
from ...core.transcripts.transcript_lines import folder_of, in_folder
from ...core.transcripts.transcripts import ProjectFolders
from . import bubblewrap, container
from .bubblewrap import Mount, SandboxView
from .hidden_files import covers
from .network.allowed_hosts import NetworkByList, command_before, interpreter_files
from .protected_paths import ProtectedPaths

if TYPE_CHECKING:
    from .model_socket import ModelSocket

_PROJECTS = "projects"
_BY_SESSION = ("file-history", "tasks")
_OF_CALLER = ("plans", "todos")
_MEMORY = "memory"
_MAX_FOLDER = 200
"""Claude Code shortens longer names and adds its own hash."""


@dataclass(frozen=True, slots=True)
class ConversationMounts:
    """The mounts of one session's conversations in the user's directory."""

    config_dir: str
    place: Path
    """The caller's directory below the state directory."""
    cwd: str
    conversation: ConversationStart

    def open(self, opened: contextlib.ExitStack) -> Iterator[Mount]:
        """The mounts; their descriptors are closed with `opened`. Creates missing directories. Raises OSError if
        something else, such as a link, is in the place of a directory. Blocks on the disk."""
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
        if len(name) < _MAX_FOLDER:
            return name
        # Only Claude Code knows the hash at the end: an existing folder is found by its prefix.
        names = [entry.name for entry in entries_at(self._real(_PROJECTS)) if stat.S_ISDIR(entry.status.st_mode)]
        found = [each for each in names if in_folder(os.path.realpath(self.cwd), each)]
        if len(found) != 1:
            raise OSError(errno.ENAMETOOLONG, "the path of the working directory is too long for a sandbox", self.cwd)
        return found[0]

    def _real(self, *names: str) -> str:
        """A path below the directory: its first name may be the user's link, later ones must not be links."""
        return os.path.join(os.path.realpath(os.path.join(self.config_dir, names[0])), *names[1:])

    def _directory(
        self, names: tuple[str, ...], opened: contextlib.ExitStack, *, writable: bool = False, make: bool = True
    ) -> Mount:
        path = self._real(*names)
        if make:
            make_directory_at(path)
        with directory_at(path) as descriptor:
            assert descriptor is not None  # sandboxes exist only on platforms that have descriptors
            return self._mount(names, os.dup(descriptor), opened, writable=writable)

    def _mount(self, names: tuple[str, ...], descriptor: int, opened: contextlib.ExitStack, *, writable: bool) -> Mount:
        opened.callback(os.close, descriptor)
        return Mount(os.path.join(self.config_dir, *names), descriptor, writable)

    def _transcript_elsewhere(self, folder: str, opened: contextlib.ExitStack) -> Iterator[Mount]:
        """The transcript from which the process continues, if it is not in the folder of its working directory: one of
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
        # Of the opened file: the path may lead to another file by now.
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            yield mount


# -- enclosure --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListedPaths:
    """The paths in a profile, resolved at this moment."""

    roots: tuple[str, ...] | None
    writable: tuple[str, ...]
    readable: tuple[str, ...]

    @classmethod
    def of(cls, profile: Profile, default_directory: str, environment: Mapping[str, str]) -> "ListedPaths":
        """The paths of a profile; `.` is the default directory and `~` the home of this environment. Blocks on the
        disk."""

        def real(path: str) -> str:
            path = default_directory if path == "." else os.path.expanduser(expand_home(path, environment))
            return os.path.realpath(os.path.join(default_directory, path))

        roots = None if profile.roots is None else tuple(map(real, profile.roots))
        return cls(roots, tuple(map(real, profile.writable)), tuple(map(real, profile.readable)))

    def problem(self, protected: ProtectedPaths) -> str | None:
        """What is wrong with them, in a sentence; None if a sandbox can get them. Blocks on the disk."""
        for path in (*(self.roots or ()), *self.writable):
            conflict = protected.conflict(path)
            if conflict is not None:
                return f"{path} {conflict}, so sandboxed sessions cannot be given access to it."
        for path in self.readable:
            conflict = protected.conflict_of_listed(path)
            if conflict is not None:
                return f"{path} {conflict}, so sandboxed sessions must not be able to read it."
        return None


@dataclass(frozen=True)
class HomeSandbox(Enclosure):
    """The sandbox of one caller's sessions."""

    hides_files: ClassVar[bool] = True
    profile: Profile
    default_directory: str
    protected: ProtectedPaths
    place: Path
    """The caller's directory below the state directory."""
    config_dir: str
    server_environment: Mapping[str, str]
    credentials: Mapping[str, str]
    """The environment with the model's address and credentials, if the sandbox itself has none."""
    shares_directory: bool
    """Whether `config_dir` belongs to the server's user."""
    network: NetworkByList | None = None
    """The hosts that it reaches through a proxy; None without a list."""
    model_features: frozenset[str] = frozenset()
    """Additional beta headers and fields of model requests (`ModelAccess`)."""

    def secrets(self) -> Mapping[str, str]:
        """The model's credentials and, under names that mark them as secret, the ones that the proxy adds to
        requests."""
        return {**self.credentials, **({} if self.network is None else self.network.secrets())}

    def check(self, options: SessionOptions, cwd: str) -> None:
        wanted = self._wanted(options, cwd)
        for path in wanted:
            path.refuse_conflict(path.path)
        debug_file = options.debug_file and os.path.realpath(os.path.join(cwd, options.debug_file))
        if debug_file and not any(path.writable and HERE.is_below(debug_file, path.path) for path in wanted):
            raise PermissionDenied("debug_file: it is outside the session's sandbox.", field="debug_file")

    def sees(self, path: str, options: SessionOptions, cwd: str) -> bool:
        return any(HERE.is_below(path, wanted.path) for wanted in self._wanted(options, cwd))

    @property
    def kind(self) -> str:
        return "container" if self.profile.isolation == "container" else "sandbox"

    @asynccontextmanager
    async def entered(
        self,
        argv: Sequence[str],
        options: SessionOptions,
        cwd: str,
        files: Iterable[Path],
        scratch: Path,
        environment: Mapping[str, str],
        *,
        conversation: ConversationStart | None = None,
        connected: bool = True,
    ) -> AsyncIterator[tuple[IsolatedCommand, Connections]]:
        """The command that runs `argv` in the sandbox with `files`, and the ways to the model and listed hosts if it
        has no network; close them with the process. Without `connected` it has no network and none of these; without a
        `conversation` it is not Claude Code and gets nothing of its directory. Raises ProcessFailed. If the block
        fails, nothing of this remains."""
        ways = Connections()
        isolated: IsolatedCommand | None = None
        try:
            await asyncio.to_thread(scratch.mkdir, mode=0o700, exist_ok=True)
            visible = [Mount.at(str(file)) for file in files]
            before: Sequence[str] = ()
            if self.profile.sandbox_network != "host" and connected:
                if conversation is not None and await asyncio.to_thread(_is_node_script, argv[0]):
                    raise ProcessFailed(_NEEDS_BINARY)
                from .model_socket import INSIDE  # noqa: PLC0415 - few servers need HTTP for it

                owner = f"session {conversation.session_id}" if conversation is not None else f"a program in {cwd}"
                model = self.model_socket(owner)
                # Before it is opened, so that a failure half way closes it as well.
                ways.callback(model.close)
                ways.traffic = model.traffic
                visible.append(Mount(INSIDE, str(await model.open(scratch))))
            if self.network is not None and connected:
                egress_proxy = self.network.egress_proxy(conversation.session_id if conversation is not None else None)
                ways.callback(egress_proxy.close)
                visible += [Mount(target, source) for source, target in await egress_proxy.open(scratch)]
                visible += map(Mount.at, interpreter_files())
                before = command_before()
            reaches_host = self.profile.sandbox_network == "host" and connected
            isolate = partial(
                self._isolate, argv, before, options, cwd, visible, scratch, environment, reaches_host, conversation
            )
            isolated = await asyncio.to_thread(isolate)
            yield isolated, ways
        except BaseException as error:
            ways.close()
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise ProcessFailed(f"The sandbox could not be created: {error}") from None
            raise
        finally:
            if isolated is not None:
                # These are our copies: the process has its own by now.
                isolated.close()

    # -- the view ---------------------------------------------------------------------------------------------

    def _isolate(
        self,
        argv: Sequence[str],
        before: Sequence[str],
        options: SessionOptions,
        cwd: str,
        visible: Iterable[Mount],
        scratch: Path,
        environment: Mapping[str, str],
        reaches_host: bool,
        conversation: ConversationStart | None,
    ) -> IsolatedCommand:
        executable = os.path.realpath(argv[0])
        home = str(private_directory(self.place / "home"))
        mounts = [Mount.at(home, writable=True), *_program(executable, environment), *visible]
        with contextlib.ExitStack() as opened:
            directories = [path.open(opened) for path in self._wanted(options, cwd)]
            if conversation is not None:
                directories += self._claude_directory(cwd, conversation, opened)
                # Not for programs of this server: git would consider a covered file emptied.
                mounts += covers(self.profile.deny_rules, cwd, filter(None, directories), scratch, opened)
            view = SandboxView(
                (*filter(None, directories), *mounts),
                cwd=cwd,
                environment=environment,
                network=reaches_host,
                limits=ResourceLimits(**self.profile.resources.model_dump()),
                # Claude Code's own sandbox cannot be created without write access to /proc.
                nested=options.sandbox is not None,
            )
            command = [*before, executable, *argv[1:]]
            if self.profile.image is not None and self.profile.isolation == "container":
                isolated = container.isolate(view, command, scratch, self.server_environment, self.profile.image)
            else:
                isolated = bubblewrap.isolate(view, command, scratch, self.server_environment)
            opened.pop_all()  # the command owns the descriptors now
            return isolated

    def _claude_directory(
        self, cwd: str, conversation: ConversationStart, opened: contextlib.ExitStack
    ) -> Iterator[Mount]:
        """Claude Code's directory: only conversations persist, and the user's and the operator's configuration is
        readable. Assembled in memory, where nothing outside can remove a part."""
        yield Mount(self.config_dir, None)
        if self.shares_directory:
            yield from ConversationMounts(self.config_dir, self.place, cwd, conversation).open(opened)
        else:
            for name in CONVERSATIONS:
                private_directory(Path(self.config_dir, name))
                yield self._inside(name, writable=True)
        for name in USER_SETTINGS:
            yield self._inside(name)
        # If the server adds a credential to its requests, it needs no login and must not be able to read one.
        if self.profile.sandbox_network == "host":
            # A caller's own login is renewed in place; only the user may renew the user's login.
            yield self._inside(CREDENTIALS_FILE, writable=not self.shares_directory)

    def model_socket(self, owner: str = "a session") -> "ModelSocket":
        """The way to the model for one process, with credentials or a login that the process never gets."""
        from .model_request import ModelAccess  # noqa: PLC0415 - few servers need HTTP for it
        from .model_socket import ModelSocket  # noqa: PLC0415

        access = ModelAccess(frozenset(self.profile.server_tools), self.model_features)
        return ModelSocket(self.credentials, owner, access, Path(self.config_dir, CREDENTIALS_FILE))

    def _inside(self, name: str, *, writable: bool = False) -> Mount:
        path = os.path.join(self.config_dir, name)
        if not self.shares_directory and os.path.islink(path):
            raise OSError(errno.ELOOP, "a link in a caller's directory is not followed", path)
        return Mount(path, os.path.realpath(path), writable)

    def _wanted(self, options: SessionOptions, cwd: str) -> list["_WantedPath"]:
        """The working directories and the profile's paths, without those inside a writable one, where a mount could be
        moved away. Blocks on the disk. The profile's roots are used instead of the session's directory: another session
        may replace a directory below a root at any moment, but not the root. Without roots, the caller's directories
        are used."""
        listed, protected = ListedPaths.of(self.profile, self.default_directory, self.credentials), self.protected
        if listed.roots is not None:
            wanted = [_WantedPath(path, protected.conflict, writable=True) for path in listed.roots]
        else:
            git = (options.worktree.common_dir,) if isinstance(options.worktree, Worktree) else ()
            named = (os.path.realpath(os.path.join(cwd, path)) for path in (cwd, *options.additional_directories, *git))
            wanted = [_WantedPath(path, protected.conflict_of_choice, writable=True) for path in named]
        wanted += [_WantedPath(path, protected.conflict, writable=True) for path in listed.writable]
        wanted += [_WantedPath(path, protected.conflict_of_listed, writable=False) for path in listed.readable]
        kept: dict[str, _WantedPath] = {}
        # Writable paths first, shorter before longer: paths inside one of them are then omitted.
        for path in sorted(wanted, key=lambda path: (not path.writable, len(path.path))):
            if not any(HERE.is_below(path.path, other.path) for other in kept.values() if other.writable):
                kept.setdefault(path.path, path)
        return list(kept.values())


@dataclass(frozen=True, slots=True)
class _WantedPath:
    """A real path for a session, unless it turns out to be protected."""

    path: str
    judge: Callable[[str], str | None]
    writable: bool

    def refuse_conflict(self, place: str) -> None:
        conflict = self.judge(place)
        if conflict is not None:
            raise PermissionDenied(f"cwd: {place} cannot be used in a sandbox: it {conflict}.", field="cwd")

    def open(self, opened: contextlib.ExitStack) -> Mount | None:
        """A mount by descriptor; None if nothing is there. Checks where the descriptor leads, because a link may have
        been added since the path was resolved."""
        try:
            descriptor = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        opened.callback(os.close, descriptor)
        self.refuse_conflict(os.readlink(f"/proc/self/fd/{descriptor}"))
        return Mount(self.path, descriptor, self.writable)


_NEEDS_BINARY = (
    "This Claude Code is a script for Node, which cannot reach the model through the socket of a sandbox. Install a "
    'native build, such as a newer version of Claude Code, or set network = "host" in the profile.'
)


def _is_node_script(executable: str) -> bool:
    try:
        with open(os.path.realpath(executable), "rb") as file:
            first = file.readline(4096)
    except OSError:
        return False
    return first.startswith(b"#!") and b"node" in first


def _program(executable: str, environment: Mapping[str, str]) -> Iterator[Mount]:
    """The executable; for a script also its directory, with the rest of it, and its interpreter."""
    yield Mount.at(executable)
    try:
        with open(executable, "rb") as file:
            first = file.readline(4096)
    except OSError:
        return
    if not first.startswith(b"#!"):
        return
    yield Mount.at(os.path.dirname(executable))
    shebang = os.fsdecode(first[2:]).split()
    name = shebang[1] if len(shebang) > 1 and os.path.basename(shebang[0]) == "env" else (shebang or [""])[0]
    interpreter = shutil.which(name, path=environment.get("PATH", os.defpath)) if name else None
    if interpreter:
        yield Mount(os.path.abspath(interpreter), os.path.realpath(interpreter))
