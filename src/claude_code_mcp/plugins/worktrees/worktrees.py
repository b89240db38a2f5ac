"""Creates git worktrees for sessions, and removes them if no session has begun.

A worktree is `.claude/worktrees/mcp-…` in the main checkout of the repository, on its own branch, which begins at the
commit that is checked out in the session's requested directory. Uncommitted changes there are not included. Git ignores
the worktrees directory: by an existing rule, or by a `.gitignore` in it that ignores everything including itself.

The whole worktree must be within the caller's roots. If its creation fails, nothing of it is left.
"""

import asyncio
import contextlib
import logging
import os
import stat

from ...core import private_files
from ...core.errors import ClaudeCodeError, InvalidArgument, PermissionDenied
from ...core.git import Git, Repository, find_repository, foreign_settings
from ...core.isolation import Home
from ...core.model.worktree import Worktree
from ...core.sessions.callers.policy_enforcer import PolicyEnforcer
from ...core.sessions.workplaces import Workplaces
from .pull_requests import PullRequests
from .worktree_changes import PLACE, WorktreeChanges

log = logging.getLogger(__name__)

_IGNORE_ALL = b"""diff --git a/.claude/worktrees/.gitignore b/.claude/worktrees/.gitignore
new file mode 100644
--- /dev/null
+++ b/.claude/worktrees/.gitignore
@@ -0,0 +1 @@
+*
"""
"""As a patch: git writes it without following a link, wherever git runs."""


class Worktrees(Workplaces):
    """Creates git worktrees."""

    async def make(
        self, home: Home, enforcer: PolicyEnforcer, principal: str, cwd: str, session_id: str
    ) -> tuple[Worktree, str]:
        found = await _find(home, enforcer, principal, cwd)
        worktree = _planned(found, f"mcp-{session_id.replace('-', '')[:12]}")
        git = Git(home, found.places)
        await _check_own_filters(git, found.repository)
        # Before the worktree exists: from then on a `git add` in the checkout could add it.
        await _have_ignored(git, found.main, worktree.path[len(found.main) + 1 :].replace(os.sep, "/"))
        # The branch separately: `worktree add -b` could fail after creating the branch, and could then not be repeated.
        branch = ("update-ref", f"refs/heads/{worktree.branch}", worktree.base, "0" * len(worktree.base))
        try:
            await git.read(*branch, cwd=found.repository)
            how = ("worktree", "add", "--no-checkout", worktree.path, worktree.branch)
            await git.read(*how, cwd=found.repository)
            # Read from git, which chooses another name than planned if that is taken.
            worktree = worktree.model_copy(update={"git_dir": await _git_dir(git, worktree)})
            # Separately, because another configuration may apply to the new branch than to the one that is checked out.
            await git.read("reset", "--hard", "--quiet", cwd=worktree.path, git_dir=worktree.git_dir)
            await _check_own_filters(git, worktree.path, worktree.git_dir)
            return worktree, await asyncio.to_thread(_directory_in, worktree, found)
        except BaseException:
            # Shielded: no other code knows of it.
            await asyncio.shield(self.take_back(home, worktree))
            raise

    async def take_back(self, home: Home, worktree: Worktree) -> None:
        try:
            await WorktreeChanges(home, worktree).take_back()
        except ClaudeCodeError as error:
            log.warning("the worktree %s was left behind: %s", worktree.path, error.message)

    def of(self, home: Home, worktree: Worktree) -> "SessionWorktree":
        return SessionWorktree(home, worktree)


class SessionWorktree(WorktreeChanges):
    """The worktree of one session, with the pull requests for its branch."""

    def __init__(self, home: Home, worktree: Worktree) -> None:
        super().__init__(home, worktree)
        self._requests = PullRequests(home, worktree)

    async def request_target(self) -> str | None:
        remote = await self._requests.remote()
        return remote.repository if remote is not None else None

    async def request_program(self) -> str:
        return await self._requests.program_name()

    async def open_request(self, title: str, body: str, agreed: str, target: str) -> str:
        return await self._requests.open(await self.commit(title, agreed), title, body, target)


async def _check_own_filters(git: Git, cwd: str, git_dir: str | None = None) -> None:
    filters = await git.own_filters(cwd, git_dir)
    if filters:
        raise _invalid(
            f"the repository's own configuration has filters for its files ({', '.join(filters)}), which are not run "
            "here; configure them with `git config --global` instead, or work without a worktree"
        )


async def _git_dir(git: Git, worktree: Worktree) -> str:
    """The directory in which git stores the data of a new worktree. Another session may have changed the worktree's
    `.git` file, and that directory's configuration would be used from then on."""
    git_dir = (await git.read("rev-parse", "--absolute-git-dir", cwd=worktree.path)).rstrip("\n")
    common_dir = await asyncio.to_thread(os.path.realpath, worktree.common_dir)
    if os.path.dirname(git_dir) != os.path.join(common_dir, "worktrees"):
        raise _invalid(f"{worktree.path} was changed while it was being created")
    return git_dir


def _planned(found: "_Found", name: str) -> Worktree:
    path = os.path.join(found.main, PLACE, name)
    if os.path.realpath(path) != path:
        raise _invalid(f"{os.path.join(found.main, PLACE)} is a link or is behind one")
    return Worktree(
        path=path,
        branch=f"worktree-{name}",
        base=found.head,
        into=found.branch,
        repository=found.repository,
        common_dir=found.common_dir,
        git_dir=os.path.join(found.common_dir, "worktrees", name),
    )


def _directory_in(worktree: Worktree, found: "_Found") -> str:
    """If a commit has a link on the way, says only that, neither whether nor where it leads."""
    inside = os.path.normpath(os.path.join(worktree.path, found.below))
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(private_files.stat_at(inside).st_mode):
            return inside
    raise _invalid(f"the directory {found.below} is not in the last commit")


class _Found:
    """The repository of a directory."""

    def __init__(self, repository: Repository, cwd: str) -> None:
        self.repository = repository.top
        self.common_dir = repository.common_dir
        self.below = os.path.relpath(cwd, self.repository)
        """The directory's path in the checkout."""
        linked = repository.git_dir != self.common_dir
        main = os.path.dirname(self.common_dir)
        usual = linked and os.path.basename(self.common_dir) == ".git" and os.path.isdir(main)
        # Never inside another worktree there: that one could be removed.
        self.main = main if usual else self.repository.partition(f"{os.sep}{PLACE}{os.sep}")[0]
        self.head = ""
        self.branch: str | None = None

    @property
    def places(self) -> tuple[str, str, str]:
        return self.main, self.common_dir, self.repository


async def _find(home: Home, enforcer: PolicyEnforcer, principal: str, cwd: str) -> _Found:
    """The repository of a directory, which the caller may change. Callers with restricted directories get the same
    answer for a repository elsewhere and for none: it must not reveal what exists outside."""
    everywhere = home.enclosure is None and enforcer.may_work_in(os.sep, principal)

    def permitted(path: str) -> bool:
        return enforcer.may_work_in(path, principal) and enforcer.may_change(path, principal)

    def look() -> tuple[Repository, _Found] | None:
        real = os.path.realpath(cwd)
        repository = find_repository(real, (lambda _: True) if everywhere else permitted)
        return None if repository is None else (repository, _Found(repository, real))

    looked = await asyncio.to_thread(look)
    if looked is None and everywhere:
        raise _invalid(f"{cwd} is not in a git checkout")
    refused = [] if looked is None else [path for path in looked[1].places if not permitted(path)]
    if looked is not None and refused and everywhere:
        raise PermissionDenied(f"worktree: you may not change the repository at {refused[0]}.", field="worktree")
    if looked is None or refused:
        reason = f"{cwd} is not in a git checkout that you may change entirely"
        raise PermissionDenied(f"worktree: {reason}.", field="worktree")
    repository, found = looked
    git = Git(home, found.places)
    # In a sandbox git sees no more than the session does; a caller without restrictions learns nothing new.
    if home.enclosure is None and not everywhere:
        await _check_configuration(git, repository)
    await _read_head(git, found, cwd)
    return found


async def _check_configuration(git: Git, repository: Repository) -> None:
    for name in ("config", "config.worktree"):
        file = os.path.join(repository.common_dir if name == "config" else repository.git_dir, name)
        if await asyncio.to_thread(os.path.lexists, file):
            listed = await git.run("config", "--file", file, "--no-includes", "--list", "-z", cwd=repository.top)
            leading = sorted(set(foreign_settings(listed.output, repository)))
            if listed.code or leading:
                raise _invalid(f"the repository's own configuration points outside it ({', '.join(leading) or file})")


async def _read_head(git: Git, found: _Found, cwd: str) -> None:
    usable = await git.run("rev-parse", "--git-dir", cwd=cwd)
    if usable.code:
        raise _invalid(f"git cannot use the repository at {found.repository} ({usable.reason})")
    head = await git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", cwd=cwd)
    if head.code:
        raise _invalid(f"the repository at {found.repository} has no commit yet")
    found.head = head.output.strip()
    branch = await git.run("symbolic-ref", "--quiet", "--short", "HEAD", cwd=cwd)
    found.branch = branch.output.strip() or None


async def _have_ignored(git: Git, main: str, path: str) -> None:
    """Makes git ignore the worktrees; otherwise `git add` in the main checkout would add them as repositories."""
    if not (await git.run("check-ignore", "--quiet", path, cwd=main)).code:
        return
    reply = await git.run("apply", "--whitespace=nowarn", "-", cwd=main, stdin=_IGNORE_ALL)
    # Fails if the file exists: another session may have just created it.
    if (await git.run("check-ignore", "--quiet", path, cwd=main)).code:
        raise _invalid(f"git cannot be configured to ignore {os.path.dirname(path)}: {reply.reason}")


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(f"worktree: {reason}.", field="worktree")
