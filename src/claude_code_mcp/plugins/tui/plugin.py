"""The plug-in of the terminal interface."""

from collections.abc import Sequence

from ...plugin import Command, Plugin


class TuiPlugin(Plugin):
    """Shows and answers sessions in the terminal, as a client of a server."""

    name = "tui"

    def commands(self) -> Sequence[Command]:
        return (Command("tui", "claude_code_mcp.plugins.tui.commands:add_tui"),)


PLUGIN = TuiPlugin
