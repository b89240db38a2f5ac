"""The worktree of a session, and its contents."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict


class Worktree(BaseModel):
    """A separate checkout with a separate branch, made for a session. All paths are absolute and real."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str
    branch: str
    base: str
    """The commit that it began with."""
    into: str | None = None
    """The branch that was checked out where it began, into which it is merged; None for a detached HEAD."""
    repository: str
    """The checkout that it began in, and is merged into."""
    common_dir: str
    """The directory of the repository that all its checkouts share."""
    git_dir: str
    """What git keeps of this worktree alone. Named to git in every later call: the `.git` file in the worktree is as
    easily changed as any other file there."""


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


@dataclass(frozen=True, slots=True)
class WorktreePlan:
    """What a commit, a merge or a pull request would be made of, as things are now."""

    branch: str
    into: str | None
    """The branch that the session began on; None at a detached HEAD."""
    repository: str
    """The checkout that a merge changes."""
    digest: str
    """Identifies its complete state: the last commit, everything in the worktree, and the branch to merge into."""
    uncommitted: tuple[str, ...]
    """Files that are changed or not tracked, and would be committed."""
    commits: int
    """Those that the branch to merge into does not have."""
    refusal: str = ""
    """Why it cannot be merged; empty if it can."""
