"""Pull requests for the branch of a session's worktree, pushed with git and opened with the user's own `gh`.

Only for sessions of the server's own user that run in no sandbox: what is pushed with is that user's sign-in.

A session can write whatever it wants into the configuration of its repository: another address, a program to connect
with, a credential helper, a hook. So nothing is pushed from there. An empty repository of our own, in a private
directory that is gone afterwards, borrows the objects; it has no configuration but the user's, runs no hook, and speaks
https, http and ssh alone. The address is that of the remote `origin`, which a session may have changed too: a person
sees where the branch goes, and agrees to just that. Nothing is ever pushed with force.
"""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import InvalidArgument, PermissionDenied, ProcessFailed
from ..model.options import Worktree
from ..processes.supervision import ChildOptions
from .git import NON_INTERACTIVE, Reply, git_program, run_program
from .homes import Home
from .worktree_changes import git_for

_SECONDS = 120.0
_REMOTE = "origin"
_ADDRESS = re.compile(
    r"(?:(?:https?|ssh)://(?:[\w.~%:-]{1,200}@)?(?P<host>[\w.-]{1,200}(?::\d{1,5})?)/"
    r"|(?:[\w.-]{1,100}@)(?P<ssh>[\w][\w.-]{0,200}):)"
    r"(?P<owner>[\w][\w.-]{0,100})/(?P<name>[\w][\w.-]{0,100}?)(?:\.git)?/?",
    re.ASCII,
)
_WITHHELD = ("GIT_", "ANTHROPIC_", "CLAUDE")
_VARIABLES: Mapping[str, str] = {
    **NON_INTERACTIVE,
    "GIT_ALLOW_PROTOCOL": "https:http:ssh",
    "GH_PROMPT_DISABLED": "1",
    "GH_NO_UPDATE_NOTIFIER": "1",
    "NO_COLOR": "1",
}


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a branch is pushed to."""

    url: str
    repository: str
    """`host/owner/name`, for people and for `gh`; without what an address may have of credentials."""


class PullRequests:
    """Those of one home."""

    def __init__(self, home: Home, worktree: Worktree) -> None:
        self._home, self._worktree = home, worktree

    async def remote(self) -> Remote | None:
        """Where a pull request would be opened; None if it cannot be done here: no `gh`, no such address, a sandbox."""
        if self._home.enclosure is not None or self._home.own or self._worktree.into is None or self._gh() is None:
            return None
        git = git_for(self._home, self._worktree)
        found = await git.run("config", "--get", f"remote.{_REMOTE}.url", cwd=self._worktree.repository)
        return remote_at(found.output.strip()) if not found.code else None

    def _gh(self) -> str | None:
        program = shutil.which("gh", path=self._home.environment.get("PATH", os.defpath))
        return os.path.abspath(program) if program is not None else None

    async def open(self, commit: str, title: str, body: str, agreed: str) -> str:
        """Pushes the commit to the branch's name at the remote and opens a pull request; returns its address.

        `agreed` is `Remote.repository`; PermissionDenied if the remote is another one by now. InvalidArgument with the
        words of git or gh if one of them fails; what was pushed by then stays pushed.
        """
        remote, gh, worktree = await self.remote(), self._gh(), self._worktree
        if remote is None or gh is None or worktree.into is None:
            raise InvalidArgument("A pull request cannot be opened from here; ask the session to do it.")
        if remote.repository != agreed:
            raise PermissionDenied(f"The remote is {remote.repository} now; nothing was pushed. Look again.")
        git = git_for(self._home, worktree)
        if await git.read("ls-files", "-z", "--", ":(attr:filter=lfs)", cwd=worktree.path, git_dir=worktree.git_dir):
            raise InvalidArgument("Files of Git LFS would not be pushed from here; ask the session to do it.")
        # What signs in to the model is no business of git's, gh's or their helpers'.
        inherited = {name: value for name, value in self._home.environment.items() if not name.startswith(_WITHHELD)}
        environment = {**inherited, **_VARIABLES}
        place = await asyncio.to_thread(tempfile.mkdtemp, prefix="claude-code-mcp-push-")
        try:
            await self._push(place, environment, remote.url, commit)
            flags = {"repo": remote.repository, "head": worktree.branch, "base": worktree.into, "title": title}
            arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
            reply = await self._run([gh, "pr", "create", *arguments, "--body-file", "-"], place, environment, body)
        finally:
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, place, ignore_errors=True))
        return reply.output.strip().rpartition("\n")[2]

    async def _push(self, place: str, environment: Mapping[str, str], url: str, commit: str) -> None:
        git = [git_program(environment), "-c", f"core.hooksPath={os.devnull}", "-c", "push.gpgSign=false"]
        await self._run([*git, "init", "--quiet", "--bare", "--template=", "."], place, environment)
        objects = os.path.join(self._worktree.common_dir, "objects")
        if "\n" in objects:
            raise InvalidArgument("The repository has a name that git cannot borrow objects from.")
        alternates = Path(place, "objects", "info", "alternates")
        await asyncio.to_thread(_write, alternates, os.fsencode(objects) + b"\n")
        target = f"{commit}:refs/heads/{self._worktree.branch}"
        await self._run([*git, "push", "--quiet", "--no-signed", "--", url, target], place, environment)

    async def _run(self, argv: list[str], cwd: str, environment: Mapping[str, str], stdin: str = "") -> Reply:
        options = ChildOptions(limits=self._home.limits)
        try:
            reply = await run_program(argv, cwd, environment, stdin.encode(), _SECONDS, options)
        except ProcessFailed as error:
            raise InvalidArgument(f"The pull request was not opened: {error.message}") from None
        if reply.code:
            name = os.path.basename(argv[0])
            reason = " ".join((reply.errors.strip() or reply.output.strip()).splitlines()[-10:])[:1500]
            raise InvalidArgument(f"The pull request was not opened: {name} ended with code {reply.code}: {reason}")
        return reply


def remote_at(url: str) -> Remote | None:
    """The repository at an address; None for one that is not on the web or behind ssh, or has no owner."""
    found = _ADDRESS.fullmatch(url)
    if found is None:
        return None
    return Remote(url, f"{found['host'] or found['ssh']}/{found['owner']}/{found['name']}")


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
