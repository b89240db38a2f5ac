"""The worktree of a session."""

from pydantic import BaseModel, ConfigDict


class Worktree(BaseModel):
    """A checkout of its own with a branch of its own, made for a session. All paths are absolute and real."""

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
