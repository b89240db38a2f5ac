"""Git, run by the server for a session.

It gets the environment of the session without any variable of git's own, asks nobody anything, and runs no program that
a repository names: no hook, pager, editor or file monitor, no filter, merge driver or converter of a repository's own
configuration, nothing to fetch what a partial clone has left out. Filters that the user or the system has configured do
run (`git lfs install`), as a checkout is wrong without them. In a sandbox a session writes the configuration of its
user too, so that only the system's counts. For a caller whose sessions are in a sandbox, all of git is in that sandbox.

Every run has a time. Why git failed is passed on only where that tells nothing: outside of a sandbox git says of files
whether they exist, wherever they are.
"""

import asyncio
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..errors import InvalidArgument, ProcessFailed
from ..model.options import SessionOptions
from ..processes.child import ChildProcess, Exit
from ..processes.environment import build_environment
from ..processes.leftovers import new_mark, scratch_path
from ..processes.limits import EnforcedLimits
from ..processes.sandbox_view import Isolated
from ..processes.supervision import ChildOptions
from .homes import Home

log = logging.getLogger(__name__)

_FILES_UNTOUCHED = frozenset(
    {"check-ignore", "commit-tree", "config", "merge-base", "rev-list", "rev-parse", "symbolic-ref", "update-ref"}
)
"""Commands that read no file of a tree. All others may run a filter or a driver on each, also those that only write an
index: they look again at files that changed in the same moment."""
_SECONDS, _LONG_SECONDS = 10.0, 60.0
_GRACE = 2.0
_MOST_OUTPUT = 16 << 20
_MOST_OVERRIDDEN = 200
_CONFIGURED = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "submodule.recurse=false",
    "commit.gpgSign=false",  # may ask for a passphrase
    "merge.verifySignatures=false",  # runs the program that checks them
    "gc.auto=0",
    "maintenance.auto=false",
)
_RUNS_PROGRAMS = re.compile(r"(filter|merge)\.(.+)\.(clean|smudge|process|required|driver)", re.DOTALL)
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
"""Of git's reasons those that say nothing about files elsewhere. Below them, a line with a tab names a file."""
_VARIABLES: Mapping[str, str] = {
    "LC_ALL": "C.UTF-8",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "",
    "SSH_ASKPASS": "",
    "GCM_INTERACTIVE": "never",
    "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_PAGER": "cat",
    "GIT_OPTIONAL_LOCKS": "0",
    # Objects that a partial clone has left out are not fetched; before git 2.39.4 only the second does that.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a run of git came to."""

    code: int
    output: str
    """What it printed; bytes that are no UTF-8 are kept as surrogates, so that names of files stay what they are."""
    errors: str
    enclosed: bool = False
    """Whether git could see no more than the session can."""

    @property
    def reason(self) -> str:
        """Why it failed, in a few lines that tell nothing about files that the session may not see."""
        lines = [line for line in self.errors.splitlines() if line.strip() and not line.startswith("hint:")]
        shown = lines if self.enclosed else [line for line in lines if _is_harmless(line)]
        if not shown:
            log.warning("git failed with code %d: %s", self.code, " ".join(lines)[:2000])
        return "\n".join(shown[:20]) or f"git ended with code {self.code}; the log of the server has its words"


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
        """Runs git in a directory; with a `git_dir`, that directory is the top of a worktree with that one.

        ProcessFailed if git cannot be run, takes too long or prints too much. A caller that is cancelled leaves no
        process behind.
        """
        overridden: Iterable[str] = ()
        touches_files = arguments[0] not in _FILES_UNTOUCHED
        if touches_files:
            # A session may change its configuration between this look and the run; what runs then runs where the
            # session does, and no longer than any other.
            overridden = _without_programs(await self._programs(cwd, git_dir))
        seconds = _LONG_SECONDS if touches_files else _SECONDS
        return await self._git(arguments, cwd, git_dir, overridden, stdin, variables or {}, seconds)

    async def own_filters(self, cwd: str, git_dir: str | None = None) -> list[str]:
        """The filters of the repository's own configuration that apply to a file of it: they are not run, so that what
        is checked out or committed here would be wrong."""
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
        """What is configured to run on files, by kind, name and key: what it would be without the repository's own
        configuration, and whether it is that."""
        reply = await self._git(("config", "--list", "-z", "--show-scope"), cwd, git_dir, (), b"", {}, _SECONDS)
        if reply.code:
            raise InvalidArgument(f"git config: {reply.reason}", field="worktree")
        trusted = ("system",) if self.home.enclosure is not None else ("system", "global")
        fields = reply.output.split("\0")
        programs: dict[tuple[str, str, str], _Program] = {}
        for scope, setting in zip(fields[::2], fields[1::2], strict=False):
            name, _, value = setting.partition("\n")
            found = _RUNS_PROGRAMS.fullmatch(name)
            if found is not None:
                before = programs.get((found[1], found[2], found[3]), _Program())
                own = scope not in trusted
                programs[found[1], found[2], found[3]] = _Program(before.usual if own else value, not own)
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
    ) -> Reply:
        environment = self._environment(variables)
        place = [] if git_dir is None else [f"--git-dir={git_dir}", f"--work-tree={cwd}"]
        settings = [part for setting in (*_CONFIGURED, *overridden) for part in ("-c", setting)]
        argv = [_program(environment), "--no-pager", *place, *settings, *arguments]
        return await self._run(argv, cwd, environment, stdin, seconds)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in self.home.environment.items() if not name.startswith("GIT_")}
        return {**inherited, **_VARIABLES, **variables}

    async def _run(
        self, argv: Sequence[str], cwd: str, environment: Mapping[str, str], stdin: bytes, seconds: float
    ) -> Reply:
        mark = new_mark()
        environment = build_environment(environment, {}, mark)
        listener = _Listener()
        if self.home.enclosure is None:
            child = ChildProcess(listener, "git", mark=mark)
            command = Isolated(argv, environment)
            return await _finish(child, listener, command, cwd, stdin, self.home.limits, seconds)
        scratch = scratch_path(mark)
        child = ChildProcess(listener, "git", mark=mark, scratch=scratch)
        options = SessionOptions(additional_directories=self.directories)
        entered = self.home.enclosure.entered(argv, options, cwd, (), scratch, environment, connected=False)
        async with entered as (isolated, _):
            reply = await _finish(child, listener, isolated, "/", stdin, self.home.limits, seconds)
        return replace(reply, enclosed=True)


@dataclass(frozen=True, slots=True)
class _Program:
    """A command of the configuration: what it would be without the repository's own, and whether it is that."""

    usual: str = ""
    trusted: bool = True


def _without_programs(programs: "Mapping[tuple[str, str, str], _Program]") -> list[str]:
    """Settings with which nothing of a repository's own configuration runs. A driver of its own makes a conflict: no
    driver at all would take one side for the merge of both."""
    own = {place: program for place, program in programs.items() if not program.trusted}
    names = {place[:2] for place in own}
    if len(own) > _MOST_OVERRIDDEN or any("=" in name or "\n" in name for _, name in names):
        raise InvalidArgument("worktree: the repository's own configuration names too many programs.", field="worktree")
    return [f"{kind}.{name}.{key}={program.usual or _NOTHING[key]}" for (kind, name, key), program in own.items()]


_NOTHING = {"clean": "", "smudge": "", "process": "", "required": "false", "driver": "false"}


def _program(environment: Mapping[str, str]) -> str:
    program = shutil.which("git", path=environment.get("PATH", os.defpath))
    if program is None:
        raise ProcessFailed("git is not installed, or not in the PATH of this server.")
    return os.path.abspath(program)


class _Listener:
    def __init__(self) -> None:
        self.output = bytearray()
        self.too_much = False
        self.ended = asyncio.Event()

    def output_received(self, data: bytes) -> None:
        if len(self.output) + len(data) > _MOST_OUTPUT:
            self.too_much = True
            self.ended.set()
        else:
            self.output += data

    def output_ended(self) -> None:
        """Its end is what counts."""

    def input_closed(self) -> None:
        """It need not read its input."""

    def child_ended(self, _: Exit) -> None:
        self.ended.set()


async def _finish(
    child: ChildProcess,
    listener: _Listener,
    command: Isolated,
    cwd: str,
    stdin: bytes,
    limits: EnforcedLimits,
    seconds: float,
) -> Reply:
    options = ChildOptions(command.descriptors, limits=limits, removal=command.removal)
    starting = asyncio.ensure_future(
        child.start(command.argv, cwd=cwd, environment=command.environment, options=options)
    )
    try:
        await asyncio.shield(starting)
        child.write(stdin)
        child.close_input()
        async with asyncio.timeout(seconds):
            await listener.ended.wait()
    except TimeoutError:
        raise ProcessFailed(f"git took more than {seconds:g} s.") from None
    except (OSError, ValueError) as error:
        raise ProcessFailed(f"git could not be started: {error}") from None
    finally:
        await asyncio.shield(_end(starting, child))
    if listener.too_much:
        raise ProcessFailed("git printed too much to be read.")
    return Reply(child.returncode or 0, os.fsdecode(bytes(listener.output)), child.stderr)


async def _end(starting: "asyncio.Future[None]", child: ChildProcess) -> None:
    await asyncio.wait([starting])
    if child.started:
        await child.stop(_GRACE)
