"""`claude_mcp_servers`: the hub's servers and their status."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import mcp_types as types

from ...core.config import Settings
from ...core.errors import ClaudeCodeError, InvalidArgument
from ...core.service import Service
from ...hub.hub import Hub
from ...hub.servers import ServerStatus
from .arguments import Arguments
from .call import Call
from .output import ErrorInfo, ToolOutput
from .tool import Reply, Tool

log = logging.getLogger(__name__)


_CONNECT_TIMEOUT = 30.0
NO_HUB = "This server has no hub; CLAUDE_CODE_MCP_HUB=own or all gives it one."


class Servers(Arguments):
    action: Literal["list", "status", "reconnect", "enable", "disable", "authenticate"]
    server: str | None = None
    redirect: str | None = None


class ServerReport(ToolOutput):
    name: str
    state: str
    reason: str | None = None
    type: str | None = None
    scope: str | None = None
    version: str | None = None
    tools: int | None = None
    tool_names: list[str] | None = None


class ServerReports(ToolOutput):
    servers: list[ServerReport] | None = None
    problems: list[str] | None = None
    url: str | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        lines = [
            f"{server.name}: {server.state}" + (f" ({server.reason})" if server.reason else "")
            for server in self.servers or []
        ]
        lines += [f"skipped: {problem}" for problem in self.problems or []]
        return "\n".join([*filter(None, [self.message, self.url]), *lines]) or "No MCP servers are configured."


async def claude_mcp_servers(call: Call, arguments: Servers) -> Reply:
    if call.hub is None:
        return await _without_hub(call.service.settings, arguments)
    hub = call.hub
    if arguments.action == "list":
        return server_reports(hub.status(), hub.problems)
    if arguments.action == "status":
        return await _connected(hub, arguments.server)
    if arguments.server is None:
        raise InvalidArgument(f"server: required for {arguments.action}", field="server")
    with call.service.policy_for(call.caller).steering(arguments.action, arguments.server):
        if arguments.action == "authenticate":
            return await sign_in(call.service, hub, arguments.server, arguments.redirect)
        if arguments.action == "reconnect":
            status = await hub.reconnect(arguments.server)
        else:
            status = (hub.enable if arguments.action == "enable" else hub.disable)(arguments.server)
        return server_reports([status])


async def _without_hub(settings: Settings, arguments: Servers) -> ServerReports:
    """The answer if no hub is open. Without the hub's file there are no servers."""
    if settings.hub == "off":
        raise InvalidArgument(NO_HUB)
    if settings.hub != "own" or not await asyncio.to_thread(_is_absent, settings.hub_file):
        # The file exists but was just written or cannot be used, which differs from having no servers.
        raise InvalidArgument("The MCP servers are still starting. If this does not change, see the server's log.")
    if arguments.server is not None:
        raise InvalidArgument(f"There is no MCP server called {arguments.server[:100]!r}.", field="server")
    if arguments.action not in ("list", "status"):
        raise InvalidArgument(f"server: required for {arguments.action}", field="server")
    return server_reports([])


def _is_absent(file: Path) -> bool:
    """Whether a file certainly does not exist; an error may hide an existing file."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


async def sign_in(service: Service, hub: Hub, server: str, redirect: str | None) -> ServerReports:
    """Return the sign-in URL; the sign-in continues in the background until the browser returns or a caller passes on
    the redirect address."""
    if redirect is not None:
        return server_reports([await hub.finish_sign_in(server, redirect)])
    shown: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def show(address: str) -> None:
        if not shown.done():
            shown.set_result(address)

    async def authenticate() -> None:
        try:
            await hub.authenticate(server, show)
        except ClaudeCodeError as error:
            log.info("%s", error.message)
            if not shown.done():
                shown.set_exception(error)

    # A task of the service: signing in takes longer than a client waits for a call.
    signing_in = service.start_task(authenticate())
    waiting: set[asyncio.Future[Any]] = {shown, signing_in}
    await asyncio.wait(waiting, timeout=_CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    if not shown.done():
        return server_reports(hub.status(server))
    message = (
        "Open this address in a browser to sign in; claude_mcp_servers shows when the sign-in is complete. A browser "
        "on another machine ends on a page that it cannot open: pass the address of that page as redirect."
    )
    return ServerReports(url=shown.result(), message=message, servers=server_reports(hub.status(server)).servers)


async def _connected(hub: Hub, server: str | None) -> ServerReports:
    """All servers, or one with the names of its tools, after an attempt to connect."""
    await hub.connect(_CONNECT_TIMEOUT, [status.name for status in hub.status(server)])
    if server is None:
        return server_reports(hub.status(), hub.problems)
    reports = server_reports(hub.status(server))
    if reports.servers and reports.servers[0].state == "connected":
        # The report has the server's status; the tool names are an addition.
        with contextlib.suppress(ClaudeCodeError):
            reports.servers[0].tool_names = [tool.name for tool in await hub.tools(server, _CONNECT_TIMEOUT)]
    return reports


def server_reports(statuses: list[ServerStatus], problems: Sequence[object] = ()) -> ServerReports:
    """`problems` are invalid entries; they are reported with the list of all servers."""
    servers = [
        ServerReport(
            name=status.name,
            state=status.state,
            reason=status.reason,
            type=str(status.config.get("type", "")) or None,
            scope=status.scope,
            version=(status.server_info or {}).get("version") or None,
            tools=status.tools,
        )
        for status in statuses
    ]
    return ServerReports(servers=servers, problems=[str(problem) for problem in problems] or None)


def hub_tools() -> Mapping[str, Tool[Any]]:
    """The tool of the toolset `hub`; the tools of the servers themselves are another toolset."""
    tool = Tool(
        "claude_mcp_servers",
        "Manage the hub's MCP servers",
        "The MCP servers that all sessions share: list them, see their status, reconnect, enable, disable, or sign in.",
        Servers,
        ServerReports,
        claude_mcp_servers,
        types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True),
    )
    return {tool.name: tool}
