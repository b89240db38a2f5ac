"""The plug-in: several machines behind one address."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...plugin import Command, Finding, Plugin

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.section import Section

_COMMANDS = "claude_code_mcp.plugins.fleet.commands"


class FleetPlugin(Plugin):
    """Runs sessions on several machines that share one NATS server."""

    name = "fleet"

    def commands(self) -> Sequence[Command]:
        return Command("fleet", f"{_COMMANDS}:add_fleet"), Command("runner", f"{_COMMANDS}:add_runner")

    def section(self) -> "type[Section]":
        from .settings import FleetSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return FleetSettings

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .doctor import check_fleet  # noqa: PLC0415

        return check_fleet(settings)


PLUGIN = FleetPlugin
