"""The plug-in for Claude Code sessions in terminals."""

import logging
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from ...plugin import Command, Finding, Plugin, RunningServer

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.settings_section import Section

log = logging.getLogger(__name__)


class TerminalPlugin(Plugin):
    """Shows the sessions of Claude Code in terminals, and answers their questions."""

    name = "terminal"

    def commands(self) -> Sequence[Command]:
        return (Command("terminal", "claude_code_mcp.plugins.terminal.commands:add_terminal"),)

    def section(self) -> "type[Section]":
        from .settings import TerminalSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return TerminalSettings

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .commands import check_terminal  # noqa: PLC0415

        return check_terminal(settings)

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        from .settings import TerminalSettings  # noqa: PLC0415

        settings = server.settings
        in_fleet = server.service.outside.are_replicated and not settings.section(TerminalSettings).terminal_in_fleet
        if sys.platform == "win32" or in_fleet:
            yield
            return
        from .listener import HookListener  # noqa: PLC0415
        from .terminals import Terminals  # noqa: PLC0415

        terminals = Terminals(server.service)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(
                    HookListener(terminals, server.service.start_task).listening(settings.state_dir)
                )
                stack.callback(terminals.close)
                server.service.start_task(terminals.find_open())
            except OSError as error:
                log.warning("terminals cannot report to this server: %s", error)
            yield


PLUGIN = TerminalPlugin
