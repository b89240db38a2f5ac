"""The plug-in: git worktrees for sessions."""

from typing import TYPE_CHECKING

from ...plugin import Plugin

if TYPE_CHECKING:
    from ...core.sessions.workplaces import Workplaces


class WorktreesPlugin(Plugin):
    """Gives sessions a git worktree and a branch of their own, and merges or discards them."""

    name = "worktrees"

    def workplaces(self) -> "Workplaces | None":
        from .worktrees import Worktrees  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return Worktrees()


PLUGIN = WorktreesPlugin
