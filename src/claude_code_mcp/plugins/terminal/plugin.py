"""The plug-in for Claude Code sessions in terminals."""

import logging
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ...plugin import Command, Finding, HttpPort, Plugin, RunningServer

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ...core.config import Settings
    from ...core.settings_section import Section
    from .forwarded_terminals import ForwardedTerminals
    from .forwarder import Forwarder

log = logging.getLogger(__name__)


class TerminalPlugin(Plugin):
    """Shows the sessions of Claude Code in terminals, and answers their questions."""

    name = "terminal"

    def __init__(self) -> None:
        self._forwarder: Forwarder | None = None
        self._forwarded: list[ForwardedTerminals] = []

    def commands(self) -> Sequence[Command]:
        return (Command("terminal", "claude_code_mcp.plugins.terminal.commands:add_terminal"),)

    def section(self) -> "type[Section]":
        from .settings import TerminalSettings  # noqa: PLC0415 - of a plug-in only this module is loaded before it is used

        return TerminalSettings

    def checks(self, settings: "Settings") -> Iterable[Finding]:
        from .commands import check_terminal  # noqa: PLC0415

        return check_terminal(settings)

    def routes(self, server: RunningServer, port: HttpPort) -> "Iterable[BaseRoute]":
        from .forwarded_terminals import ForwardedTerminals  # noqa: PLC0415

        forwarded = ForwardedTerminals(server.service, port.callers)
        self._forwarded.append(forwarded)
        return forwarded.routes()

    def status(self) -> "Mapping[str, Any]":
        forwarder = self._forwarder
        if forwarder is None or (forwarder.target is None and forwarder.problem is None):
            return {}
        url = forwarder.target.url if forwarder.target is not None else None
        return {"forwardsTerminalsTo": url, "forwardingProblem": forwarder.problem}

    def stop(self) -> None:
        for forwarded in self._forwarded:
            forwarded.stop()

    @asynccontextmanager
    async def running(self, server: RunningServer) -> AsyncIterator[None]:
        try:
            async with self._showing_terminals(server):
                yield
        finally:
            for forwarded in self._forwarded:
                forwarded.close()

    @asynccontextmanager
    async def _showing_terminals(self, server: RunningServer) -> AsyncIterator[None]:
        from .settings import TerminalSettings  # noqa: PLC0415

        settings = server.settings
        in_fleet = server.service.outside.are_replicated and not settings.section(TerminalSettings).terminal_in_fleet
        if sys.platform == "win32" or in_fleet:
            yield
            return
        from .forwarder import Forwarder  # noqa: PLC0415
        from .forwarding_target import ForwardingPlace  # noqa: PLC0415
        from .listener import HookListener  # noqa: PLC0415
        from .terminals import Terminals  # noqa: PLC0415

        service = server.service
        terminals = Terminals(service)
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(
                    HookListener(terminals, service.start_task).listening(settings.state_dir)
                )
                stack.callback(terminals.close)
                service.start_task(terminals.find_open())
                self._forwarder = Forwarder(service, ForwardingPlace(settings.state_dir), terminals.joined)
                service.observe(self._forwarder)
                stack.callback(service.start_task(self._forwarder.run(), endless=True).cancel)
            except OSError as error:
                log.warning("terminals cannot report to this server: %s", error)
            yield


PLUGIN = TerminalPlugin
