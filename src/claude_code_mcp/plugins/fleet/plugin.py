"""The fleet plug-in: several machines behind one address."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from ...plugin import Command, Finding, Plugin

if TYPE_CHECKING:
    from ...core.config import Settings
    from ...core.sessions.stored.session_library import SessionLibrary
    from ...core.settings_section import Section

_HERE = "claude_code_mcp.plugins.fleet"


class FleetPlugin(Plugin):
    """Runs sessions on several machines that share one NATS server."""

    name = "fleet"

    def commands(self) -> Sequence[Command]:
        return (
            Command("fleet", f"{_HERE}.commands:add_fleet"),
            Command("runner", f"{_HERE}.commands:add_runner"),
            Command("sessions move", f"{_HERE}.session_commands:add_move"),
        )

    def section(self) -> "type[Section]":
        from .settings import FleetSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return FleetSettings

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .doctor import check_fleet  # noqa: PLC0415

        return check_fleet(settings)

    @asynccontextmanager
    async def deleting(self, settings: "Settings", sessions: "SessionLibrary", session_id: str) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if (settings.state_dir / "fleet").is_dir():
                from .session_commands import removing_copy  # noqa: PLC0415

                await stack.enter_async_context(removing_copy(settings, sessions, session_id))
            yield


PLUGIN = FleetPlugin
