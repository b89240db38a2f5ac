"""The console plug-in: a page in the browser."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...plugin import Command, HttpPort, Plugin, RunningServer

if TYPE_CHECKING:
    from ...core.settings_section import Section
    from .console import Console, ConsolePort, Consoles


class ConsolePlugin(Plugin):
    """Shows and answers sessions in the browser. Its parts are loaded on first use."""

    name = "console"

    def __init__(self) -> None:
        self._consoles: Consoles | None = None
        self._port: ConsolePort | None = None

    def commands(self) -> Sequence[Command]:
        return (Command("web", "claude_code_mcp.plugins.console.commands:add_web"),)

    def section(self) -> "type[Section]":
        from .settings import ConsoleSettings  # noqa: PLC0415 - of a plug-in only this module is light

        return ConsoleSettings

    def page(self, server: RunningServer, port: HttpPort) -> "Console | None":
        from .guard import Accounts  # noqa: PLC0415 - of a plug-in only this module is light

        return self._made(server).open(port.address, Accounts(port.callers, by_socket=port.by_socket))

    def queries(self, server: RunningServer) -> "Mapping[str, Callable[[], Awaitable[Any]]]":
        async def link() -> dict[str, Any]:
            """A link for this server's user, who asked through the socket."""
            return await self._own_port(server).link()

        async def watched() -> dict[str, Any]:
            """Whether this server's user sees questions there."""
            from ...core.model.caller import LOCAL  # noqa: PLC0415

            return {"watched": self._consoles is not None and await self._consoles.watched_by(LOCAL)}

        return {"web": link, "watched": watched}

    def status(self) -> Mapping[str, Any]:
        return {"web": self._port.url if self._port is not None else None}

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        from .settings import ConsoleSettings  # noqa: PLC0415

        served = server.settings.section(ConsoleSettings).web
        used = server.shared is not None and served and not server.over_http
        # Over HTTP the console uses that port; otherwise its own port is reopened if it was open before.
        if used and await asyncio.to_thread((server.settings.state_dir / "web").exists):
            server.service.start_task(self._own_port(server).reopen())
        try:
            yield
        finally:
            self.stop()
            if self._port is not None:
                await self._port.close()

    async def is_needed(self, idle: float) -> bool:
        return self._consoles is not None and await self._consoles.in_use(idle)

    def stop(self) -> None:
        if self._consoles is not None:
            self._consoles.close()

    def _made(self, server: RunningServer) -> "Consoles":
        from .console import ConsolePort, Consoles  # noqa: PLC0415

        if self._consoles is None:
            self._consoles = Consoles(server.service, server.find_hub, server.api_parts())
            if server.shared is not None:
                self._port = ConsolePort(self._consoles, server.service, server.shared)
        return self._consoles

    def _own_port(self, server: RunningServer) -> "ConsolePort":
        self._made(server)
        assert self._port is not None  # only the shared server answers queries
        return self._port


PLUGIN = ConsolePlugin
