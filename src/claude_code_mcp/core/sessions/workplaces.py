"""Workplaces of sessions: the extension point, and its default.

A session can ask for a separate checkout (`SessionOptions.worktree`). `Workplaces` creates it, and a `Workplace` shows
its changes, merges it or removes it. The default supports none and refuses the option and every action on it. The
plug-in `worktrees` creates git worktrees.
"""

from typing import NoReturn

from ..errors import InvalidArgument
from ..isolation import Home
from ..model.worktree import Unsaved, Worktree, WorktreePlan
from .callers.policy_enforcer import PolicyEnforcer


class Workplace:
    """The checkout of one session. The session is locked while it is used."""

    async def diff(self) -> str:
        """All changes since the checkout was made, as a git diff."""
        raise NotImplementedError

    async def plan(self) -> WorktreePlan:
        """The changes that would be committed and merged now. Modifies nothing."""
        raise NotImplementedError

    async def commit(self, message: str | None, agreed: str | None = None) -> str:
        """Commit everything; return the last commit. `agreed` is the digest of a plan; PermissionDenied, with nothing
        changed, if something else would be committed."""
        raise NotImplementedError

    async def merge(self, message: str | None, agreed: str | None = None) -> str:
        """Merge the branch into the one on which the session began; return a report. Uncommitted files are committed
        with this message first. Raises the errors of `commit`, and InvalidArgument if it cannot be merged."""
        raise NotImplementedError

    async def request_target(self) -> str | None:
        """Where a pull request would be opened, as `host/owner/name`; None if that is not possible."""
        raise NotImplementedError

    async def request_program(self) -> str:
        """The program that opens pull or merge requests for this repository, installed or not."""
        raise NotImplementedError

    async def open_request(self, title: str, body: str, agreed: str, target: str) -> str:
        """Commit uncommitted changes with the title and open a pull request; return its URL. `agreed` is the digest of
        a plan and `target` the result of `request_target`; PermissionDenied, with nothing pushed, if either has
        changed."""
        raise NotImplementedError

    async def unsaved(self) -> Unsaved:
        """The changes that `discard` would lose now."""
        raise NotImplementedError

    async def discard(self, agreed: Unsaved | None) -> str:
        """Remove the checkout and its branch; return a report. `agreed` are the changes that may be lost, None means
        all; PermissionDenied, with nothing removed, if others would be lost."""
        raise NotImplementedError


class Workplaces:
    """Creates the workplaces of all sessions. This default supports none."""

    async def make(
        self, home: Home, enforcer: PolicyEnforcer, principal: str, cwd: str, session_id: str
    ) -> tuple[Worktree, str]:
        """Create a checkout for a new session requested in `cwd`; returns it and the same directory in it.
        InvalidArgument if that is not possible; PermissionDenied if the policy does not let the caller write there."""
        _refuse()

    async def take_back(self, home: Home, worktree: Worktree) -> None:
        """Remove a checkout in which no session started, unless it contains anything new."""

    def of(self, home: Home, worktree: Worktree) -> Workplace:
        """The workplace of a session of this home."""
        _refuse()


def _refuse() -> NoReturn:
    raise InvalidArgument(
        "worktree: this server has no worktrees because the plug-in `worktrees` is not enabled. Enable it, or work in "
        "a directory that exists.",
        field="worktree",
    )
