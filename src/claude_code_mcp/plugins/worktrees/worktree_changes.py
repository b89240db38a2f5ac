"""Shows, commits, merges or discards the changes in the worktree of a session.

Nothing is lost without a person's consent:

- `commit` and `merge` change nothing unless everything can be done. A merge is first computed outside of the checkouts.
  Then git advances the target checkout in one step, and refuses if that would overwrite a change, an untracked file or
  an ignored file there. A conflict is never resolved here.
- The agreed state (`WorktreePlan.digest`) is compared with the objects that are then committed and merged, not with an
  earlier reading.
- `discard` counts the losses (`Unsaved`) and requires consent to exactly the losses at that moment.
"""

import asyncio
import contextlib
import os
import stat
import uuid
from collections.abc import Iterable, Mapping

from ...core import private_files
from ...core.errors import InvalidArgument, PermissionDenied, SessionBusy
from ...core.git import Git
from ...core.isolation import Home
from ...core.model.worktree import Unsaved, Worktree, WorktreePlan
from ...core.sessions.workplaces import Workplace

PLACE = os.path.join(".claude", "worktrees")
"""The directory of worktrees in a repository's main checkout."""


def git_for(home: Home, worktree: Worktree) -> Git:
    """Git for operations on a worktree. In a sandbox it gets the checkout around the worktree, because a directory that
    is mounted by itself cannot be removed there."""
    main = worktree.path.partition(f"{os.sep}{PLACE}{os.sep}")[0]
    return Git(home, (main, worktree.common_dir, worktree.repository))


_UNMERGED = frozenset({"DD", "AU", "UD", "UA", "DU", "AA", "UU"})
_DELETED = frozenset({"D ", " D"})
_MAX_NAMED = 10


class WorktreeView:
    """The contents of one session's worktree, for the sessions of one home. Read-only."""

    def __init__(self, home: Home, worktree: Worktree) -> None:
        self.worktree = worktree
        self._git = git_for(home, worktree)

    async def diff(self) -> str:
        """Everything since the branch was created: commits, changes and new files."""
        await self._check_there()
        tree = await self._whole_tree()
        base = await self._fork_point()
        how = ("--no-ext-diff", "--no-textconv", "--submodule=short", "--no-color", "--find-renames")
        shown = ("--stat", "--patch", base, tree)
        return _printable(await self._git.read("diff", *how, *shown, cwd=self.worktree.repository))

    async def unsaved(self) -> Unsaved:
        """What a removal would lose now."""
        commits = await self._own_commits()
        if not await self._is_there():
            return Unsaved(commits=commits)
        # Files marked to be ignored by git: it does not report whether they have changed.
        flagged = (await self._in_worktree("ls-files", "-v", "-z")).split("\0")
        names = [line[2:] for line in flagged if line and (line[0].islower() or line[0] == "S")]
        hidden = await asyncio.to_thread(self._there, names)
        staged = (await self._in_worktree("ls-files", "--stage", "-z")).split("\0")
        modules = [line.partition("\t")[2] for line in staged if line.startswith("160000 ")]
        repositories = await asyncio.to_thread(self._there, [f"{name}/.git" for name in modules])
        # Last, because this is the most likely to change before the caller acts on it.
        states = await self._states("--ignored=matching")
        ignored = sum(state == "!!" for state, _ in states)
        return Unsaved(len(states) - ignored + hidden, ignored, commits, repositories)

    async def _states(self, *more: str, variables: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
        """The state and name of every file that differs from the last commit. Changes inside of submodules are ignored,
        because git would run with the submodule's own configuration."""
        how = ("--porcelain", "-z", "--untracked-files=all", "--no-renames", "--ignore-submodules=dirty")
        output = await self._in_worktree("status", *how, *more, variables=variables)
        return [(line[:2], line[3:]) for line in output.split("\0") if line]

    def _there(self, names: Iterable[str]) -> int:
        """The number of these files that are in the worktree. An index written by a session may contain any name,
        including ones that lead out, and so may links in the worktree: files elsewhere do not count."""
        inside = (name for name in names if not {"", ".", ".."} & set(name.split("/")))
        return sum(private_files.exists_at(os.path.join(self.worktree.path, name)) for name in inside)

    async def _own_commits(self) -> int:
        worktree = self.worktree
        own = [tip for tip in (await self._tip(), await self._head()) if tip]
        if not own:
            return 0
        others = (f"--exclude={worktree.branch}", "--branches", "--remotes", "--tags")
        counted = await self._git.read("rev-list", "--count", *own, "--not", *others, cwd=worktree.repository)
        return int(counted)

    async def _tip(self) -> str:
        """The last commit of the branch; empty if the branch is gone."""
        return await self._commit(f"refs/heads/{self.worktree.branch}")

    async def _commit(self, name: str) -> str:
        asked = ("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        return (await self._git.run(*asked, cwd=self.worktree.repository)).output.strip()

    async def _head(self) -> str:
        """What is checked out in the worktree; empty if it is gone."""
        if not await self._is_there():
            return ""
        asked = ("rev-parse", "--verify", "--quiet", "HEAD^{commit}")
        return (await self._git.run(*asked, cwd=self.worktree.path, git_dir=self.worktree.git_dir)).output.strip()

    async def _fork_point(self) -> str:
        worktree = self.worktree
        if worktree.into is not None:
            bases = await self._git.run(
                "merge-base", f"refs/heads/{worktree.into}", await self._head(), cwd=worktree.repository
            )
            if not bases.code:
                return bases.output.strip()
        return worktree.base

    async def _whole_tree(self) -> str:
        """Everything in the worktree that is not ignored, as a tree, built in a separate index. Does not use `git add`,
        which runs git in each submodule with the submodule's own configuration: of submodules only the checked-out
        commit counts."""
        index = os.path.join(self.worktree.git_dir, f"index-{uuid.uuid4().hex}")
        beside = {"GIT_INDEX_FILE": index}
        try:
            await self._in_worktree("read-tree", "-m", "HEAD", variables=beside)
            states = await self._states(variables=beside)
            removed = [name for state, name in states if state[1] == "D"]
            present = [name.removesuffix("/") for state, name in states if state[1] not in " D"]
            # First deletions: a link may have replaced a directory.
            for how, names in (("--force-remove",), removed), (("--add", "--replace", "--remove"), present):
                if names:
                    listed = os.fsencode("".join(f"{name}\0" for name in names))
                    await self._in_worktree("update-index", *how, "-z", "--stdin", variables=beside, stdin=listed)
            return (await self._in_worktree("write-tree", variables=beside)).strip()
        finally:
            for leftover in (index, f"{index}.lock"):
                with contextlib.suppress(OSError):
                    os.unlink(leftover)

    async def _in_worktree(self, *arguments: str, **how: object) -> str:
        return await self._git.read(*arguments, cwd=self.worktree.path, git_dir=self.worktree.git_dir, **how)

    async def _is_there(self) -> bool:
        return await asyncio.to_thread(_is_directory, self.worktree.path)

    async def _check_there(self) -> None:
        if not await self._is_there():
            raise _refused(f"the worktree {self.worktree.path} no longer exists")


class WorktreeChanges(WorktreeView, Workplace):
    """Operations on one session's worktree: commit, merge or discard."""

    async def plan(self) -> WorktreePlan:
        """What would be committed and merged. Changes nothing, except that git may store unreferenced objects."""
        await self._check_there()
        worktree, tip = self.worktree, await self._checked_tip()
        names = tuple(_printable(name) for _, name in await self._states())
        tree = await self._whole_tree() if names else await self._tree(tip)
        target, refusal, commits = "", "", 0
        try:
            target = await self._checked_target()
            await self._check_filters()
            work = await self._work_to_merge(tip, "as it would be")
            await self._merged(target, work)
            listed = await self._git.read("rev-list", "--count", tip, f"^{target}", cwd=worktree.repository)
            commits = int(listed)
        except InvalidArgument as error:
            refusal = error.message
        digest = _digest(tip, tree, target)
        return WorktreePlan(worktree.branch, worktree.into, worktree.repository, digest, names, commits, refusal)

    async def commit(self, message: str | None, agreed: str | None = None) -> str:
        """Commits everything that is not ignored on the worktree's branch; returns its last commit, which is the
        previous one if there was nothing to commit. `agreed` is the digest of a plan; raises PermissionDenied, with
        nothing changed, if the branch or a file has changed since. Raises InvalidArgument without a required message,
        or during a merge in the worktree."""
        await self._check_there()
        tip = await self._checked_tip()
        await self._check_filters()
        work = await self._work_to_merge(tip, message)
        if agreed is not None and agreed.split(":")[:2] != [tip, await self._tree(work)]:
            raise _changed_since_review("committed")
        if work != tip and not await self._advance(tip, work):
            raise _refused(f"{self.worktree.branch} was changed in the meantime; nothing was committed")
        return work

    async def merge(self, message: str | None, agreed: str | None = None) -> str:
        """Merges the branch into the branch from which the session started, where that is checked out; returns a
        report. Uncommitted files are committed with this message. Raises InvalidArgument without a required message and
        for every other obstacle, such as conflicts. `agreed` is the digest of a plan; raises PermissionDenied if
        something else would be merged, or into another commit. On an error nothing has changed."""
        await self._check_there()
        worktree, tip = self.worktree, await self._checked_tip()
        target = await self._checked_target()
        await self._check_filters()
        work = await self._work_to_merge(tip, message)
        if agreed is not None and agreed != _digest(tip, await self._tree(work), target):
            raise _changed_since_review("merged")
        merged = await self._merged(target, work)
        if merged == target:
            return f"{worktree.into} already contains {worktree.branch}."
        how = ("--ff-only", "--no-overwrite-ignore", "--no-autostash", "--no-verify-signatures", "--quiet")
        # Git refuses if the branch has moved since it was read: then this is no longer a fast-forward.
        reply = await self._git.run("merge", *how, merged, cwd=worktree.repository)
        if reply.code:
            raise _refused(f"git cannot update the checkout {worktree.repository}: {reply.reason}")
        # After the merge: if that is refused, nothing has changed. A branch with new commits stays where it is.
        if work != tip:
            await self._advance(tip, work)
        return f"{worktree.branch} is merged into {worktree.into} in {worktree.repository}, now at {merged[:12]}."

    async def _advance(self, tip: str, work: str) -> bool:
        """Moves the branch on from `tip`, and the index with it; changes no file. False if the branch is elsewhere."""
        moved = await self._git.run(
            "update-ref", f"refs/heads/{self.worktree.branch}", work, tip, cwd=self.worktree.repository
        )
        if not moved.code:
            await self._in_worktree("reset", "--quiet", "--mixed")
        return not moved.code

    async def _tree(self, commit: str) -> str:
        named = await self._git.read("rev-parse", "--verify", f"{commit}^{{tree}}", cwd=self.worktree.repository)
        return named.strip()

    async def _check_filters(self) -> None:
        """Files with a filter of the repository's own would be committed and checked out without it."""
        worktree = self.worktree
        filters = await self._git.own_filters(worktree.path, worktree.git_dir)
        filters = filters or await self._git.own_filters(worktree.repository)
        if filters:
            raise _refused(
                f"the repository's own configuration has filters for its files ({', '.join(filters)}), which are not "
                f"run here; merge {worktree.branch} yourself"
            )

    async def _checked_tip(self) -> str:
        """The last commit of the branch, which must be checked out in the worktree."""
        worktree = self.worktree
        on = await self._git.run("symbolic-ref", "--quiet", "HEAD", cwd=worktree.path, git_dir=worktree.git_dir)
        if on.output.strip() != f"refs/heads/{worktree.branch}":
            now = on.output.strip().removeprefix("refs/heads/") or "a detached HEAD"
            raise _refused(f"the worktree has {now} checked out instead of its branch {worktree.branch}")
        return await self._tip()

    async def _checked_target(self) -> str:
        """The last commit of the target branch, which must be checked out where the session started."""
        worktree = self.worktree
        if worktree.into is None:
            raise _refused(f"the session started from a detached HEAD; merge {worktree.branch} where you want it")
        if not await asyncio.to_thread(_is_directory, worktree.repository):
            raise _refused(
                f"the checkout {worktree.repository} no longer exists; merge {worktree.branch} where you want it"
            )
        on = await self._git.run("symbolic-ref", "--quiet", "--short", "HEAD", cwd=worktree.repository)
        if on.output.strip() != worktree.into:
            now = on.output.strip() or "a detached HEAD"
            raise _refused(
                f"the session started from {worktree.into}, and {worktree.repository} has {now} checked out. Check out "
                f"{worktree.into} there, or merge {worktree.branch} yourself"
            )
        return await self._commit("HEAD")

    async def _work_to_merge(self, tip: str, message: str | None) -> str:
        """The last commit, or a new unreferenced one with everything uncommitted."""
        states = await self._states()
        if not states:
            return tip
        await asyncio.to_thread(self._check_committable, states)
        if not message:
            names = ", ".join(name for _, name in states[:_MAX_NAMED])
            more = f" and {len(states) - _MAX_NAMED} more" if len(states) > _MAX_NAMED else ""
            raise _refused(
                f"these files are not committed: {names}{more}. To commit them, pass a commit message as text"
            )
        tree = await self._whole_tree()
        return (await self._in_worktree("commit-tree", tree, "-p", tip, "-m", message)).strip()

    def _check_committable(self, states: list[tuple[str, str]]) -> None:
        unmerged = [name for state, name in states if state in _UNMERGED]
        if unmerged or private_files.exists_at(os.path.join(self.worktree.git_dir, "MERGE_HEAD")):
            raise _refused("the worktree is in the middle of a merge; have the session finish it")
        inside = [name for state, name in states if state == "??" and name.endswith("/")]
        if inside:
            raise _refused(f"{inside[0]} is a separate repository, which would not be committed; move or ignore it")

    async def _merged(self, target: str, work: str) -> str:
        """A commit that contains both, without changing files; the existing one if there is one."""
        worktree, repository = self.worktree, self.worktree.repository
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
            raise _refused(f"git cannot merge diverged branches (this needs git 2.38 or later): {reply.reason}")
        title = f"Merge branch '{worktree.branch}' into {worktree.into}"
        made = await self._git.read("commit-tree", tree, "-p", target, "-p", work, "-m", title, cwd=repository)
        return made.strip()

    # -- discarding -----------------------------------------------------------------------------------------------

    async def discard(self, agreed: Unsaved | None) -> str:
        """Removes the worktree and its branch; returns a report. No session may run there. `agreed` is what may be
        lost, None for everything; raises PermissionDenied if something else would be lost, SessionBusy while a process
        works there, and InvalidArgument if it is locked or contains another worktree."""
        worktree = self.worktree
        others = await self._check_removable()
        # Recorded now: the branch is deleted only if it has not moved since it was checked.
        tip = await self._tip()
        # Counted again, because the consent may be minutes old. Last, because the removal itself checks nothing.
        lost = await self.unsaved()
        if agreed is not None and lost != agreed:
            raise PermissionDenied(f"This would lose {lost}, which was not confirmed. Nothing was discarded.")
        await self._remove()
        if not tip or worktree.branch in others:
            return f"The worktree {worktree.path} is removed; the branch {worktree.branch} stays."
        await self._git.read("update-ref", "-d", f"refs/heads/{worktree.branch}", tip, cwd=worktree.repository)
        return f"The worktree {worktree.path} and its branch {worktree.branch}, which was at {tip[:12]}, are removed."

    async def take_back(self) -> None:
        """Removes the worktree and its branch if it has only what its creation checked out; otherwise raises
        InvalidArgument. A branch with its own commit stays."""
        worktree = self.worktree
        if await self._is_there():
            new = [name for state, name in await self._states() if state not in _DELETED]
            if new:
                raise _refused(f"it has {len(new)} new files")
            await self._remove()
        # Only while the branch is at its initial commit.
        gone = ("update-ref", "-d", f"refs/heads/{worktree.branch}", worktree.base)
        await self._git.run(*gone, cwd=worktree.repository)

    async def _remove(self) -> None:
        """With force, because otherwise git looks for changes with the worktree's own configuration. Losses were
        checked right before."""
        worktree = self.worktree
        reply = await self._git.run("worktree", "remove", "--force", worktree.path, cwd=worktree.repository)
        if reply.code:
            raise _refused(f"git cannot remove it: {reply.reason}")

    async def _check_removable(self) -> set[str]:
        """The branches that other worktrees have checked out."""
        worktree = self.worktree
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
                raise _refused(f"it contains another worktree: {path}")
            else:
                branches.add(facts.get("branch", "").removeprefix("refs/heads/"))
        if not known:
            raise _refused(f"git has no worktree {worktree.path}")
        pid = await asyncio.to_thread(process_in, worktree.path)
        if pid is not None:
            raise SessionBusy(f"Process {pid} is using {worktree.path}; stop it first.", pid=pid)
        return branches


def process_in(directory: str) -> int | None:
    """A process of this user whose working directory is there; None without one. Blocks briefly."""
    import psutil  # noqa: PLC0415 - takes a while, and few sessions have a worktree

    for process in psutil.process_iter():
        # Processes of other users, and processes that have just ended.
        with contextlib.suppress(psutil.Error, OSError):
            place = process.cwd()
            if place == directory or place.startswith(directory + os.sep):
                return process.pid
    return None


def _is_directory(path: str) -> bool:
    """Whether there is a directory at this path, which contained no link when it was recorded. Raises InvalidArgument
    if something else is there now or it cannot be checked: that is not the same as being gone."""
    try:
        is_directory = stat.S_ISDIR(private_files.stat_at(path).st_mode)
    except FileNotFoundError:
        return False
    except OSError:
        is_directory = False
    if not is_directory:
        raise _refused(f"{path} is no longer a directory, or cannot be read")
    return True


def _printable(text: str) -> str:
    """The text without bytes that are not UTF-8, which file names and contents may contain."""
    return os.fsencode(text).decode("utf-8", "replace")


def _digest(tip: str, tree: str, target: str) -> str:
    return f"{tip}:{tree}:{target}"


def _changed_since_review(done: str) -> PermissionDenied:
    return PermissionDenied(
        f"The worktree changed since you reviewed it; nothing was {done}. Review it again.", field="agreed"
    )


def _refused(reason: str) -> InvalidArgument:
    return InvalidArgument(f"worktree: {_printable(reason)}.", field="worktree")
