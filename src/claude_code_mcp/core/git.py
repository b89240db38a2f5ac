"""Runs git for a session, and finds the repository of a directory.

Git gets the environment of the session without git's own variables, never prompts, and runs no program that a
repository names: no hook, pager, editor or file monitor, and no filter, merge driver or converter from the repository's
own configuration. It does not fetch missing objects of a partial clone. Filters that the user or the system configured
do run (`git lfs install`), because a checkout is wrong without them. In a sandbox a session can also write its user's
configuration, so only the system's applies. For a caller whose sessions are sandboxed, git runs in that sandbox.

The configured programs are looked up for exactly the repository and worktree of a command. So no command may be used
here that makes another git process read files elsewhere, under an unchecked configuration: not plain `add` or `status`,
which look into submodules, not `diff --submodule=diff`, not `worktree add` with a checkout and not `worktree remove`
without `--force`. And because a session may change a configuration right after the check, git outside a sandbox can
execute nothing but itself, where the kernel supports this and no trusted configuration names a program.

Every run has a time limit. Git's error is passed on only if it reveals nothing: outside a sandbox git reports whether
files anywhere exist.

Git follows the paths in a repository's files, wherever they lead, and its answers would reveal what exists. Here every
such path is permitted before it is opened, and no link is followed. After that, git works in the session's sandbox, if
there is one. Functions block on the disk.
"""

import asyncio
import functools
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import InvalidArgument, ProcessFailed
from .isolation import Home, IsolatedCommand
from .model.options import SessionOptions
from .private_files import GIT_FILE, named_in
from .processes.child import ChildProcess, Exit
from .processes.environment import build_environment
from .processes.leftovers import new_mark, scratch_path
from .processes.limits import ChildOptions
from .processes.needed_files import needed_to_start

log = logging.getLogger(__name__)

_FILES_UNTOUCHED = frozenset(
    {"check-ignore", "commit-tree", "config", "merge-base", "rev-list", "rev-parse", "symbolic-ref"}
)
"""Commands that read no file of a tree and run no hook. All others may run a filter or a driver on each file, including
commands that only write an index: they reread files that changed at the same moment."""
_SECONDS, _LONG_SECONDS = 10.0, 60.0
_GRACE = 2.0
_UNFINISHED_WORKTREE = re.compile(r"^fatal: failed to read .*/commondir", re.MULTILINE)
"""Git looks through all worktrees of a repository, and fails where another git is creating one at the same moment. It
has changed nothing then, so the command can be repeated."""
_PAUSES = (0.02, 0.1, 0.3, 1.0)
"""Seconds before each repetition."""
_MAX_OUTPUT = 16 << 20
_MAX_OVERRIDDEN = 200
_CONFIGURED = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "submodule.recurse=false",
    "commit.gpgSign=false",  # may ask for a passphrase
    "merge.verifySignatures=false",  # runs the program that checks them
    "status.submoduleSummary=false",
    "gc.auto=0",
    "maintenance.auto=false",
    # From git 2.55 on. The path of the hooks' directory disables the hooks in it; for git 2.54 see `_NEVER`.
    "hook.reference-transaction.enabled=false",
    "hook.post-index-change.enabled=false",
    "hook.post-checkout.enabled=false",
    "hook.post-merge.enabled=false",
)
_RUNS_PROGRAMS = re.compile(
    r"(filter|merge)\.(.+)\.(clean|smudge|process|required|driver)|(hook)\.(.+)\.(command|event|enabled)"
    r"|(branch)\.(.+)\.(mergeoptions)",
    re.DOTALL,
)
_NEVER: Mapping[str, str] = {"hook": "enabled=false", "branch": "mergeOptions="}
"""Settings that override unwanted configuration: hooks, which git 2.54 and later also take from there, and merge
options that would check signatures or produce a different merge than was computed."""
_HARMLESS = (
    "detected dubious ownership in repository",
    "Your local changes to the following files would be overwritten",
    "The following untracked working tree files would be overwritten",
    "The following untracked working tree files would be removed",
    "Updating the following directories would lose untracked files in them",
    "Not possible to fast-forward",
    "Diverging branches can't be fast-forwarded",
    "Committer identity unknown",
    "Author identity unknown",
    "unable to auto-detect email address",
    "Please commit your changes or stash them before you merge",
    "Please move or remove them before you merge",
    "Aborting",
    "No space left on device",
)
"""Git errors that reveal nothing about files elsewhere. Below them, a line with a tab names a file."""
NON_INTERACTIVE: Mapping[str, str] = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GCM_INTERACTIVE": "never",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
}
"""Variables that keep git from prompting and make it print English."""
_VARIABLES: Mapping[str, str] = {
    **NON_INTERACTIVE,
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    # Do not fetch objects that a partial clone omitted; before git 2.39.4 only the second setting prevents it.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a git run."""

    code: int
    output: str
    """Its output; non-UTF-8 bytes are kept as surrogates, so that file names stay intact."""
    errors: str
    enclosed: bool = False
    """Whether git could see no more than the session can."""
    directory: str = field(default="", compare=False)
    """Where it ran, for the log."""

    @property
    def reason(self) -> str:
        """Why it failed, in a few lines that reveal nothing about files that the session may not see."""
        lines = [line for line in self.errors.splitlines() if line.strip() and not line.startswith("hint:")]
        shown = lines if self.enclosed else [line for line in lines if _is_harmless(line)]
        if not shown:
            log.warning("git failed with code %d in %s: %s", self.code, self.directory, " ".join(lines)[:2000])
        return "\n".join(shown[:20]) or f"git exited with code {self.code}; see the server's log"


def _is_harmless(line: str) -> bool:
    return line.startswith("\t") or any(part in line for part in _HARMLESS)


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git for the sessions of one home, which may change these directories."""

    home: Home
    directories: tuple[str, ...]

    async def read(self, *arguments: str, cwd: str, **how: object) -> str:
        """What git prints; InvalidArgument with its reason if it fails."""
        reply = await self.run(*arguments, cwd=cwd, **how)  # type: ignore[arg-type]
        if reply.code:
            raise InvalidArgument(f"git {arguments[0]}: {reply.reason}", field="worktree")
        return reply.output

    async def run(
        self,
        *arguments: str,
        cwd: str,
        git_dir: str | None = None,
        stdin: bytes = b"",
        variables: Mapping[str, str] | None = None,
    ) -> Reply:
        """Runs git in a directory. With a `git_dir`, the directory is the top of the worktree that belongs to it.

        ProcessFailed if git cannot be run, takes too long or prints too much. A cancelled caller leaves no process
        behind.
        """
        overridden: Iterable[str] = ()
        alone = True
        touches_files = arguments[0] not in _FILES_UNTOUCHED
        if touches_files:
            # A session may change its configuration between this check and the run. In a sandbox, a program started
            # that way has only the session's rights and time limit. Without a sandbox, git can execute only itself,
            # unless a trusted configuration names a program.
            programs = await self._programs(cwd, git_dir)
            overridden = _without_programs(programs)
            alone = not any(program.usual for program in programs.values())
        seconds = _LONG_SECONDS if touches_files else _SECONDS
        how = (arguments, cwd, git_dir, overridden, stdin, variables or {}, seconds)
        for pause in _PAUSES:
            reply = await self._git(*how, alone=alone)
            if not (reply.code and _UNFINISHED_WORKTREE.search(reply.errors)):
                return reply
            await asyncio.sleep(pause)
        return await self._git(*how, alone=alone)

    async def own_filters(self, cwd: str, git_dir: str | None = None) -> list[str]:
        """The filters from the repository's own configuration that apply to one of its files. They are not run, so a
        checkout or commit made here would be wrong."""
        programs = await self._programs(cwd, git_dir)
        names = sorted(
            {name for (kind, name, key), value in programs.items() if kind == "filter" and not value.trusted}
        )
        if not names:
            return []
        plain = [name for name in names if re.fullmatch(r"[A-Za-z0-9_.-]+", name)]
        patterns = [f":(attr:filter={name})" for name in plain]
        found = [name for name in names if name not in plain]
        if patterns and await self.read(
            "ls-files", "-z", "-c", "-o", "--exclude-standard", "--", *patterns, cwd=cwd, git_dir=git_dir
        ):
            found += plain
        return found

    async def _programs(self, cwd: str, git_dir: str | None) -> "Mapping[tuple[str, str, str], _Program]":
        """The programs configured to run on files, by kind, name and key: for each, the value without the repository's
        own configuration, and whether that is the effective value."""
        reply = await self._git(("config", "--list", "-z", "--show-scope"), cwd, git_dir, (), b"", {}, _SECONDS)
        if reply.code:
            raise InvalidArgument(f"git config: {reply.reason}", field="worktree")
        trusted = ("system",) if self.home.sandbox is not None else ("system", "global")
        fields = reply.output.split("\0")
        programs: dict[tuple[str, str, str], _Program] = {}
        for scope, setting in zip(fields[::2], fields[1::2], strict=False):
            name, _, value = setting.partition("\n")
            found = _RUNS_PROGRAMS.fullmatch(name)
            if found is not None:
                kind, title, key = (part for part in found.groups() if part is not None)
                before = programs.get((kind, title, key), _Program())
                # Later scopes win, but a value from the repository itself never becomes the usual value.
                own = scope not in trusted or kind in _NEVER
                programs[kind, title, key] = _Program(before.usual if own else value, not own)
        return programs

    async def _git(
        self,
        arguments: Sequence[str],
        cwd: str,
        git_dir: str | None,
        overridden: Iterable[str],
        stdin: bytes,
        variables: Mapping[str, str],
        seconds: float,
        *,
        alone: bool = True,
    ) -> Reply:
        """Runs git with the home's environment and the safe configuration. With `alone`, git and everything that it
        starts can execute only git, if the kernel supports this; in a sandbox this restriction is not applied."""
        inherited = {name: value for name, value in self.home.environment.items() if not name.startswith("GIT_")}
        environment = {**inherited, **_VARIABLES, **variables}
        place = [] if git_dir is None else [f"--git-dir={git_dir}", f"--work-tree={cwd}"]
        settings = [part for setting in (*_CONFIGURED, *overridden) for part in ("-c", setting)]
        argv = [git_program(environment), "--no-pager", *place, *settings, *arguments]
        executables = await asyncio.to_thread(_executables, argv[0]) if alone else ()
        return await run_in_home(self.home, self.directories, argv, cwd, environment, stdin, seconds, executables)


async def run_in_home(
    home: Home,
    directories: tuple[str, ...],
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    stdin: bytes,
    seconds: float,
    executables: tuple[str, ...] = (),
) -> Reply:
    """Runs a program to its end where the home's sessions run: in their sandbox, if they have one, with these
    directories. Without a sandbox it can execute only the `executables`, if any are named. Raises the same errors as
    `run_program`."""
    if home.sandbox is None:
        options = ChildOptions(limits=home.limits, executables=executables)
        return await run_program(argv, cwd, environment, stdin, seconds, options)
    mark = new_mark()
    environment = build_environment(environment, {}, mark)
    listener = _Listener()
    scratch = scratch_path(mark)
    child = ChildProcess(listener, os.path.basename(argv[0]), mark=mark, scratch=scratch, owner=cwd)
    session_options = SessionOptions(additional_directories=directories)
    entered = home.sandbox.entered(argv, session_options, cwd, (), scratch, environment, connected=False)
    async with entered as (isolated, _):
        options = ChildOptions(isolated.descriptors, limits=home.limits, removal=isolated.removal)
        reply = await _finish(child, listener, isolated, "/", stdin, options, seconds)
    return replace(reply, enclosed=True, directory=cwd)


async def run_program(
    argv: Sequence[str],
    cwd: str,
    environment: Mapping[str, str],
    stdin: bytes,
    seconds: float,
    options: ChildOptions,
) -> Reply:
    """Runs a program to its end without a sandbox, like `Git.run`; ProcessFailed if it cannot be run, takes too long or
    prints too much."""
    mark = new_mark()
    listener = _Listener()
    child = ChildProcess(listener, os.path.basename(argv[0]), mark=mark, owner=cwd)
    command = IsolatedCommand(argv, build_environment(environment, {}, mark))
    return replace(await _finish(child, listener, command, cwd, stdin, options, seconds), directory=cwd)


@dataclass(frozen=True, slots=True)
class _Program:
    """A configured command: its value without the repository's own configuration, and whether that is the effective
    one."""

    usual: str = ""
    trusted: bool = True


def _without_programs(programs: "Mapping[tuple[str, str, str], _Program]") -> list[str]:
    """Settings that disable every hook and every program from the repository's own configuration. A merge driver of the
    repository is replaced by one that reports a conflict: with no driver, the merge would take one side as the
    result."""
    own = {place: program for place, program in programs.items() if not program.trusted}
    names = {place[:2] for place in own}
    # A setting on the command line ends at its first `=`: such a name could not be overridden.
    if len(own) > _MAX_OVERRIDDEN or any("=" in name or "\n" in name for _, name in names):
        raise InvalidArgument("worktree: the repository's own configuration names too many programs.", field="worktree")
    settings = [f"{kind}.{name}.{_NEVER[kind]}" for kind, name in names if kind in _NEVER]
    for (kind, name, key), program in own.items():
        if kind not in _NEVER:
            settings.append(f"{kind}.{name}.{key}={program.usual or _NOTHING[key]}")
    return settings


_NOTHING = {"clean": "", "smudge": "", "process": "", "required": "false", "driver": "false"}


def git_program(environment: Mapping[str, str]) -> str:
    program = shutil.which("git", path=environment.get("PATH", os.defpath))
    if program is None:
        raise ProcessFailed("git is not installed, or not in the PATH of this server.")
    return os.path.abspath(program)


@functools.lru_cache(maxsize=8)
def _executables(program: str) -> tuple[str, ...]:
    """The files that git must execute: its program, the copy in its directory of parts, and the replacement for a merge
    driver (see `_NOTHING`); empty if unknown. Blocks on the disk."""
    place = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    parts = [os.path.join(place, name, "git-core", "git") for name in ("lib", "libexec")]
    needed = [needed_to_start(path) for path in (program, *filter(os.path.isfile, parts))]
    if len(needed) < 2 or not all(needed):
        return ()
    false = os.path.realpath(shutil.which("false") or "")
    # In BusyBox it is the same program as the shell and cannot be permitted separately: such a merge then fails.
    needed += [needed_to_start(false)] if os.path.basename(false) == "false" else []
    return tuple(dict.fromkeys(path for paths in needed for path in paths))


class _Listener:
    def __init__(self) -> None:
        self.output = bytearray()
        self.too_much = False
        self.ended = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        if len(self.output) + len(data) > _MAX_OUTPUT:
            # Ends the wait, and with it the process.
            self.too_much = True
            self.ended.set()
        else:
            self.output += data

    def output_ended(self) -> None:
        """Only its exit matters."""

    def input_closed(self) -> None:
        """It need not read its input."""

    def child_ended(self, _: Exit) -> None:
        self.ended.set()


async def _finish(
    child: ChildProcess,
    listener: _Listener,
    command: IsolatedCommand,
    cwd: str,
    stdin: bytes,
    options: ChildOptions,
    seconds: float,
) -> Reply:
    starting = asyncio.ensure_future(
        child.start(command.argv, cwd=cwd, environment=command.environment, options=options)
    )
    try:
        # Shielded: if the caller is cancelled while the child is being started, the child must still be ended.
        await asyncio.shield(starting)
        child.write(stdin)
        child.close_input()
        async with asyncio.timeout(seconds):
            await listener.ended.wait()
    except TimeoutError:
        raise ProcessFailed(f"{os.path.basename(command.argv[0])} took more than {seconds:g} s.") from None
    except (OSError, ValueError) as error:
        raise ProcessFailed(f"{os.path.basename(command.argv[0])} could not be started: {error}") from None
    finally:
        await asyncio.shield(_end(starting, child))
    if listener.too_much:
        raise ProcessFailed(f"{os.path.basename(command.argv[0])} printed too much output.")
    return Reply(child.returncode or 0, os.fsdecode(bytes(listener.output)), child.stderr)


async def _end(starting: "asyncio.Future[None]", child: ChildProcess) -> None:
    await asyncio.wait([starting])
    if child.started:
        await child.stop(_GRACE)


# -- repository -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Repository:
    """The checkout that a directory is in."""

    top: str
    git_dir: str
    common_dir: str
    """The main checkout's, for one of several worktrees; otherwise `git_dir`."""


def find_repository(directory: str, permitted: Callable[[str], bool]) -> Repository | None:
    """The repository of a directory, whose path has no links; None if there is no repository, or if any part of it is
    not permitted."""
    for place in (Path(directory), *Path(directory).parents):
        kind = _kind(place / ".git")
        if kind is None:
            continue
        git_dir = str(place / ".git") if kind == "directory" else named_in(place / ".git", GIT_FILE)
        # The nearest `.git` decides, as in git: if it is not permitted, the search does not continue above it.
        if git_dir is None or not permitted(str(place)) or not permitted(git_dir):
            return None
        common_dir = git_dir
        if _kind(Path(git_dir, "commondir")) is not None:
            named = named_in(Path(git_dir, "commondir"))
            if named is None or not permitted(named):
                return None
            common_dir = named
        parts = [Path(git_dir, "HEAD"), Path(common_dir, "objects"), Path(common_dir, "config")]
        return Repository(str(place), git_dir, common_dir) if all(map(_kind, parts)) else None
    return None


def _kind(path: Path) -> str | None:
    """`file` or `directory`; None for a link, for any other kind, and for a missing path."""
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return None
    return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else None


def foreign_settings(configuration: str, repository: Repository) -> Iterator[str]:
    """Settings of a repository's own configuration that refer to paths outside of it, by name; `configuration` is the
    output of `git config --list -z --no-includes`. Git's messages about an included file reveal whether it exists."""
    for setting in configuration.split("\0"):
        name, _, value = setting.partition("\n")
        if name == "include.path" or (name.startswith("includeif.") and name.endswith(".path")):
            yield name
        if name == "core.worktree":
            place = os.path.realpath(os.path.join(repository.git_dir, value))
            if place != repository.top:
                yield name
