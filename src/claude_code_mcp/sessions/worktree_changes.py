"""What a session has done in its worktree: seen, merged, or discarded.

Nothing is lost by any of it without somebody's yes:

- `merge` changes nothing at all unless everything can be merged. It is worked out beside the checkouts first; then the
  checkout that it goes to is moved forward by git in one step, which refuses where that would overwrite a change, an
  untracked or an ignored file there.
- `discard` counts what would be gone (`Unsaved`) and needs that to be agreed to, as it is at that moment.
"""

import asyncio
import contextlib
import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import psutil

from ..errors import InvalidArgument, PermissionDenied, SessionBusy
from ..model.worktree import Worktree
from .homes import Home
from .worktrees import git_for

_UNMERGED = frozenset({"DD", "AU", "UD", "UA", "DU", "AA", "UU"})
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Unsaved:
    """What would be gone with a worktree and its branch."""

    uncommitted: int = 0
    """Files that are changed or not tracked."""
    ignored: int = 0
    """Files, and directories that are ignored as a whole."""
    commits: int = 0
    """Those that no other branch, tag or remote has."""
    repositories: int = 0
    """Submodules and other repositories that are checked out inside."""

    def __bool__(self) -> bool:
        return bool(self.uncommitted or self.ignored or self.commits or self.repositories)

    def __str__(self) -> str:
        parts = (
            (self.uncommitted, "uncommitted file", "uncommitted files"),
            (self.ignored, "ignored path", "ignored paths"),
            (self.commits, "commit that no other branch has", "commits that no other branch has"),
            (self.repositories, "repository inside", "repositories inside"),
        )
        named = [f"{count} {singular if count == 1 else plural}" for count, singular, plural in parts if count]
        return ", ".join(named) or "nothing"


class WorktreeChanges:
    """The changes in the worktree of one session, for the sessions of one home."""

    def __init__(self, home: Home, worktree: Worktree) -> None:
        self._worktree = worktree
        self._git = git_for(home, worktree)

    # -- looking ------------------------------------------------------------------------------------------------

    async def diff(self) -> str:
        """Everything since the branch left the one that it is to be merged into: commits, changes and new files."""
        self._check_there()
        tree = await self._whole_tree()
        base = await self._fork_point()
        how = ("--no-ext-diff", "--no-textconv", "--no-color", "--find-renames", "--stat", "--patch")
        return _printable(await self._git.read("diff", *how, base, tree, cwd=self._worktree.repository))

    async def unsaved(self) -> Unsaved:
        """What a removal would lose as things are now."""
        commits = await self._own_commits()
        if not self._is_there:
            return Unsaved(commits=commits)
        states = await self._states(ignored=True)
        ignored = sum(state == "!!" for state, _ in states)
        hidden = await self._hidden_files()
        return Unsaved(len(states) - ignored + hidden, ignored, commits, await self._repositories())

    async def _states(self, *, ignored: bool = False) -> list[tuple[str, str]]:
        """Of every file that differs from the last commit, its state and its name. What is changed inside of a
        submodule is not looked at, for which git would run by the submodule's own configuration."""
        how = ["--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty"]
        output = await self._in_worktree("status", *how, *(["--ignored=matching"] if ignored else []))
        return [(line[:2], line[3:]) for line in output.split("\0") if line]

    async def _hidden_files(self) -> int:
        """Files that git was told not to look at: it does not say whether they have changed."""
        lines = (await self._in_worktree("ls-files", "-v", "-z")).split("\0")
        return self._there(line[2:] for line in lines if line and (line[0].islower() or line[0] == "S"))

    def _there(self, names: Iterable[str]) -> int:
        """How many of these are in the worktree."""
        return sum(os.path.lexists(os.path.join(self._worktree.path, name)) for name in names)

    async def _repositories(self) -> int:
        lines = (await self._in_worktree("ls-files", "--stage", "-z")).split("\0")
        names = [line.partition("\t")[2] for line in lines if line.startswith("160000 ")]
        return self._there(f"{name}/.git" for name in names)

    async def _own_commits(self) -> int:
        worktree = self._worktree
        own = [tip for tip in (await self._tip(), await self._head()) if tip]
        if not own:
            return 0
        others = (f"--exclude={worktree.branch}", "--branches", "--remotes", "--tags")
        counted = await self._git.read("rev-list", "--count", *own, "--not", *others, cwd=worktree.repository)
        return int(counted)

    async def _tip(self) -> str:
        """The last commit of the branch; empty if there is no such branch any more."""
        return await self._commit(f"refs/heads/{self._worktree.branch}")

    async def _commit(self, name: str) -> str:
        asked = ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return (await self._git.run(*asked, cwd=self._worktree.repository)).output.strip()

    async def _head(self) -> str:
        """What is checked out in the worktree; empty if that is gone."""
        if not self._is_there:
            return ""
        asked = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return (await self._git.run(*asked, cwd=self._worktree.path, git_dir=self._worktree.git_dir)).output.strip()

    async def _fork_point(self) -> str:
        worktree = self._worktree
        if worktree.into is not None:
            bases = await self._git.run(
                "merge-base", f"refs/heads/{worktree.into}", await self._head(), cwd=worktree.repository
            )
            if not bases.code:
                return bases.output.strip()
        return worktree.base

    async def _whole_tree(self) -> str:
        """Everything in the worktree that is not ignored, as a tree, worked out in an index beside the real one."""
        index = os.path.join(self._worktree.git_dir, f"index-{uuid.uuid4().hex}")
        beside = {"GIT_INDEX_FILE": index}
        try:
            await self._in_worktree("read-tree", "-m", "HEAD", variables=beside)
            await self._in_worktree("add", "--all", variables=beside)
            return (await self._in_worktree("write-tree", variables=beside)).strip()
        finally:
            for leftover in (index, f"{index}.lock"):
                with contextlib.suppress(OSError):
                    os.unlink(leftover)

    async def _in_worktree(self, *arguments: str, **how: object) -> str:
        return await self._git.read(*arguments, cwd=self._worktree.path, git_dir=self._worktree.git_dir, **how)

    @property
    def _is_there(self) -> bool:
        return os.path.isdir(self._worktree.path)

    def _check_there(self) -> None:
        if not self._is_there:
            raise _refused(f"the worktree {self._worktree.path} is gone")

    # -- merging ------------------------------------------------------------------------------------------------

    async def merge(self, message: str | None) -> str:
        """Merges the branch into the one that the session began on, where that is checked out; returns what was done.

        Uncommitted files are committed with this message; without one InvalidArgument, as for everything else that
        stands in the way, conflicts first. Then nothing has changed anywhere.
        """
        self._check_there()
        worktree, tip = self._worktree, await self._checked_tip()
        target = await self._checked_target()
        await self._check_filters()
        work = await self._work_to_merge(tip, message)
        merged = await self._merged(target, work)
        if merged == target:
            return f"{worktree.into} has everything of {worktree.branch} already."
        how = ("--ff-only", "--no-overwrite-ignore", "--no-autostash", "--quiet")
        reply = await self._git.run("merge", *how, merged, cwd=worktree.repository)
        if reply.code:
            raise _refused(f"git does not change the checkout {worktree.repository}: {reply.reason}")
        if work != tip:
            await self._move_branch(tip, work)
        return f"{worktree.branch} is merged into {worktree.into} in {worktree.repository}, now at {merged[:12]}."

    async def _check_filters(self) -> None:
        """Files that go through a filter of the repository's own would be committed and checked out without it."""
        worktree = self._worktree
        filters = await self._git.own_filters(worktree.path, worktree.git_dir)
        filters = filters or await self._git.own_filters(worktree.repository)
        if filters:
            raise _refused(
                f"the repository's own configuration has filters for its files ({', '.join(filters)}), which are not "
                f"run here; merge {worktree.branch} yourself"
            )

    async def _move_branch(self, tip: str, work: str) -> None:
        """Moves the branch on to what was merged, and the index with it; no file changes. A branch that somebody has
        committed to meanwhile stays where it is."""
        moved = await self._git.run(
            "update-ref", f"refs/heads/{self._worktree.branch}", work, tip, cwd=self._worktree.repository
        )
        if not moved.code:
            await self._in_worktree("reset", "--quiet", "--mixed")

    async def _checked_tip(self) -> str:
        """The last commit of the branch, which must be what is checked out in the worktree."""
        worktree = self._worktree
        on = await self._git.run("symbolic-ref", "--quiet", "HEAD", cwd=worktree.path, git_dir=worktree.git_dir)
        if on.output.strip() != f"refs/heads/{worktree.branch}":
            now = on.output.strip().removeprefix("refs/heads/") or "a detached HEAD"
            raise _refused(f"the worktree has {now} checked out instead of its branch {worktree.branch}")
        return await self._tip()

    async def _checked_target(self) -> str:
        """The last commit of the branch that it is merged into, which must be checked out where the session began."""
        worktree = self._worktree
        if worktree.into is None:
            raise _refused(f"the session began at a detached HEAD; merge {worktree.branch} where you want it")
        if not await asyncio.to_thread(os.path.isdir, worktree.repository):
            raise _refused(f"the checkout {worktree.repository} is gone; merge {worktree.branch} where you want it")
        on = await self._git.run("symbolic-ref", "--quiet", "--short", "HEAD", cwd=worktree.repository)
        if on.output.strip() != worktree.into:
            now = on.output.strip() or "a detached HEAD"
            raise _refused(
                f"the session began on {worktree.into}, and {worktree.repository} has {now} checked out. Check out "
                f"{worktree.into} there, or merge {worktree.branch} yourself"
            )
        return await self._commit("HEAD")

    async def _work_to_merge(self, tip: str, message: str | None) -> str:
        """The last commit, or one of everything that is not committed yet, which nothing refers to so far."""
        states = await self._states()
        if not states:
            return tip
        self._check_committable(states)
        if not message:
            names = ", ".join(name for _, name in states[:_MOST_NAMED])
            more = f" and {len(states) - _MOST_NAMED} more" if len(states) > _MOST_NAMED else ""
            raise _refused(f"these files are not committed: {names}{more}. A commit message as text commits them")
        tree = await self._whole_tree()
        return (await self._in_worktree("commit-tree", tree, "-p", tip, "-m", message)).strip()

    def _check_committable(self, states: list[tuple[str, str]]) -> None:
        unmerged = [name for state, name in states if state in _UNMERGED]
        if unmerged or os.path.exists(os.path.join(self._worktree.git_dir, "MERGE_HEAD")):
            raise _refused("the worktree is in the middle of a merge; have the session finish it")
        inside = [name for state, name in states if state == "??" and name.endswith("/")]
        if inside:
            raise _refused(f"{inside[0]} is a repository of its own, which would not be committed; move or ignore it")

    async def _merged(self, target: str, work: str) -> str:
        """A commit that has both, without touching any file; the one that has both already, if there is one."""
        worktree, repository = self._worktree, self._worktree.repository
        for older, newer in ((work, target), (target, work)):
            if not (await self._git.run("merge-base", "--is-ancestor", older, newer, cwd=repository)).code:
                return newer
        reply = await self._git.run(
            "merge-tree", "--write-tree", "--name-only", "--no-messages", target, work, cwd=repository
        )
        tree, *names = reply.output.split("\n")
        if reply.code == 1 and names:
            conflicts = ", ".join(dict.fromkeys(name for name in names if name))
            raise _refused(
                f"{worktree.branch} conflicts with {worktree.into} in {conflicts}. Nothing was changed; have the "
                f"session merge {worktree.into} into its branch first"
            )
        if reply.code:
            raise _refused(f"git cannot merge branches that have diverged (it takes 2.38 or later): {reply.reason}")
        title = f"Merge branch '{worktree.branch}' into {worktree.into}"
        made = await self._git.read("commit-tree", tree, "-p", target, "-p", work, "-m", title, cwd=repository)
        return made.strip()

    # -- discarding -----------------------------------------------------------------------------------------------

    async def discard(self, agreed: Unsaved | None) -> str:
        """Removes the worktree and its branch; returns what was done. No session may run there any more.

        `agreed` is what may be lost by it, None everything; PermissionDenied if that is not what would be lost.
        SessionBusy while a process works there, InvalidArgument if it is locked or another worktree lies in it.
        """
        worktree = self._worktree
        others = await self._check_removable()
        lost = await self.unsaved()
        if agreed is not None and lost != agreed:
            raise PermissionDenied(f"This would lose {lost}, which nobody has agreed to; nothing was discarded.")
        tip, force = await self._tip(), ["--force"] if lost else []
        reply = await self._git.run("worktree", "remove", *force, worktree.path, cwd=worktree.repository)
        if reply.code:
            raise _refused(f"git does not remove it: {reply.reason}")
        if not tip or worktree.branch in others:
            return f"The worktree {worktree.path} is removed; the branch {worktree.branch} stays."
        await self._git.read("update-ref", "-d", f"refs/heads/{worktree.branch}", tip, cwd=worktree.repository)
        return f"The worktree {worktree.path} and its branch {worktree.branch}, which was at {tip[:12]}, are removed."

    async def _check_removable(self) -> set[str]:
        """The branches that other worktrees have checked out."""
        worktree = self._worktree
        output = await self._git.read("worktree", "list", "--porcelain", cwd=worktree.repository)
        branches: set[str] = set()
        known = False
        for entry in output.split("\n\n"):
            facts = dict(line.partition(" ")[::2] for line in entry.splitlines())
            path = facts.get("worktree", "")
            if path == worktree.path:
                known = True
                if "locked" in facts:
                    raise _refused(f"it is locked ({facts['locked'] or 'without a reason'}); `git worktree unlock` it")
            elif path.startswith(worktree.path + os.sep):
                raise _refused(f"another worktree lies in it: {path}")
            else:
                branches.add(facts.get("branch", "").removeprefix("refs/heads/"))
        if not known:
            raise _refused(f"git knows no worktree {worktree.path}")
        pid = await asyncio.to_thread(process_in, worktree.path)
        if pid is not None:
            raise SessionBusy(f"Process {pid} works in {worktree.path}; end it first.", pid=pid)
        return branches


def process_in(directory: str) -> int | None:
    """A process of this user whose working directory is there, None if there is none. Blocks for a moment."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            place = process.cwd()
            if place == directory or place.startswith(directory + os.sep):
                return process.pid
    return None


def _printable(text: str) -> str:
    """Without the bytes that are no UTF-8, which names of files and their contents may have."""
    return os.fsencode(text).decode("utf-8", "replace")


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"worktree: {_printable(reason)}.", field="worktree")
