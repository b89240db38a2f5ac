"""The worktrees plug-in: git worktrees for sessions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...plugin import Command, Plugin

if TYPE_CHECKING:
    from ...core.sessions.workplaces import Workplaces


_COMMANDS = "claude_code_mcp.plugins.worktrees.commands"


class WorktreesPlugin(Plugin):
    """Gives sessions a separate git worktree and branch, and merges or discards them."""

    name = "worktrees"

    def commands(self) -> Sequence[Command]:
        return (
            Command("sessions diff", f"{_COMMANDS}:add_diff"),
            Command("sessions merge", f"{_COMMANDS}:add_merge"),
            Command("sessions discard", f"{_COMMANDS}:add_discard"),
        )

    def workplaces(self) -> "Workplaces | None":
        from .worktrees import Worktrees  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return Worktrees()


PLUGIN = WorktreesPlugin
