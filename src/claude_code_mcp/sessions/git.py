"""Git, run by the server for a session.

It gets the environment of the session without any variable of git's own, asks nobody anything, and runs no hook, no
pager, no editor and no file monitor, whatever the configuration says. Filters and merge drivers of the repository do
run, as a checkout is wrong without them; for a caller whose sessions are in a sandbox, all of git is in that sandbox.
"""

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidArgument, ProcessFailed
from ..model.options import SessionOptions
from ..processes.child import ChildProcess, Exit
from ..processes.environment import build_environment
from ..processes.leftovers import new_mark, scratch_path
from ..processes.limits import EnforcedLimits
from ..processes.sandbox_view import Isolated
from ..processes.supervision import ChildOptions
from .homes import Home

_TIMEOUT = 120.0
_GRACE = 2.0
_MOST_OUTPUT = 16 << 20
_CONFIGURED = (
    f"core.hooksPath={os.devnull}",
    "core.fsmonitor=false",
    "core.quotePath=false",
    "submodule.recurse=false",
    "commit.gpgSign=false",  # may ask for a passphrase
    "gc.auto=0",
    "maintenance.auto=false",
)
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
}
_NOT_FETCHING: Mapping[str, str] = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
"""Objects that a partial clone has left out are not fetched; before git 2.39.4 only the second does that."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a run of git came to."""

    code: int
    output: str
    """What it printed; bytes that are no UTF-8 are kept as surrogates, so that names of files stay what they are."""
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed, in a few lines."""
        lines = [line for line in self.errors.splitlines() if line.strip() and not line.startswith("hint:")]
        return "\n".join(lines[:20]) or f"git ended with code {self.code}"


@dataclass(frozen=True, slots=True)
class Git:
    """Runs git for the sessions of one home, which may change these directories."""

    home: Home
    directories: tuple[str, ...]
    fetches: bool = True
    """Whether it may fetch what a partial clone has left out, in the way that the repository is configured for."""

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
        environment = self._environment(variables or {})
        place = [] if git_dir is None else [f"--git-dir={git_dir}", f"--work-tree={cwd}"]
        settings = [part for setting in _CONFIGURED for part in ("-c", setting)]
        argv = [_program(environment), "--no-pager", *place, *settings, *arguments]
        return await self._run(argv, cwd, environment, stdin)

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        inherited = {name: value for name, value in self.home.environment.items() if not name.startswith("GIT_")}
        return {**inherited, **_VARIABLES, **({} if self.fetches else _NOT_FETCHING), **variables}

    async def _run(self, argv: Sequence[str], cwd: str, environment: Mapping[str, str], stdin: bytes) -> Reply:
        mark = new_mark()
        environment = build_environment(environment, {}, mark)
        listener = _Listener()
        if self.home.enclosure is None:
            child = ChildProcess(listener, "git", mark=mark)
            return await _finish(child, listener, Isolated(argv, environment), cwd, stdin, self.home.limits)
        scratch = scratch_path(mark)
        child = ChildProcess(listener, "git", mark=mark, scratch=scratch)
        options = SessionOptions(additional_directories=self.directories)
        async with self.home.enclosure.entered(argv, options, cwd, (), scratch, environment) as (isolated, model):
            if model is not None:
                model.close()
            return await _finish(child, listener, isolated, "/", stdin, self.home.limits)


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
) -> Reply:
    options = ChildOptions(command.descriptors, limits=limits, removal=command.removal)
    starting = asyncio.ensure_future(
        child.start(command.argv, cwd=cwd, environment=command.environment, options=options)
    )
    try:
        await asyncio.shield(starting)
        child.write(stdin)
        child.close_input()
        async with asyncio.timeout(_TIMEOUT):
            await listener.ended.wait()
    except TimeoutError:
        raise ProcessFailed(f"git took more than {_TIMEOUT:g} s.") from None
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
