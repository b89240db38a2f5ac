"""`claude_mcp_servers`: clients list the servers of the hub, reconnect, enable or disable them, and sign in."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import mcp_types as types

from ...errors import ClaudeCodeError, InvalidArgument
from ...hub.hub import Hub, ServerStatus
from ...service import Service
from .base import Arguments, Reply, Tool, ToolOutput, dump
from .context import Call
from .status import ErrorInfo

log = logging.getLogger(__name__)

_CONNECT_TIMEOUT = 30.0


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


class ServerReports(ToolOutput):
    servers: list[dict[str, Any]] | None = None
    problems: list[str] | None = None
    url: str | None = None
    message: str | None = None
    error: ErrorInfo | None = None

    def text(self) -> str:
        lines = [f"{server['name']}: {server['state']}" + _reason(server) for server in self.servers or []]
        lines += [f"left out: {problem}" for problem in self.problems or []]
        return "\n".join([*filter(None, [self.message, self.url]), *lines]) or "No MCP servers are configured."


def _reason(server: Mapping[str, Any]) -> str:
    return f" ({server['reason']})" if server.get("reason") else ""


async def claude_mcp_servers(call: Call, arguments: Servers) -> Reply:
    hub = _hub_of(call)
    if arguments.action == "list":
        return server_reports(hub.status(), hub.problems)
    if arguments.action == "status":
        return await _connected(hub, arguments.server)
    if arguments.server is None:
        raise InvalidArgument(f"server: required for {arguments.action}", field="server")
    with call.service.steering(call.principal, arguments.action, arguments.server):
        match arguments.action:
            case "reconnect":
                return server_reports([await hub.reconnect(arguments.server)])
            case "enable":
                return server_reports([hub.enable(arguments.server)])
            case "disable":
                return server_reports([hub.disable(arguments.server)])
            case "authenticate":
                return await sign_in(call.service, hub, arguments.server, arguments.redirect)


async def sign_in(service: Service, hub: Hub, server: str, redirect: str | None) -> ServerReports:
    """Returns the address to sign in at; the sign-in itself goes on in the background until the browser comes back, or
    somebody comes with the address that it was redirected to."""
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

    signing_in = service.start_task(authenticate())
    waiting: set[asyncio.Future[Any]] = {shown, signing_in}
    await asyncio.wait(waiting, timeout=_CONNECT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
    if not shown.done():
        return server_reports(hub.status(server))
    message = (
        "Open this address in a browser to sign in; claude_mcp_servers tells when it worked. A browser on another "
        "machine ends up on a page that it cannot open: pass the address of that page as redirect."
    )
    return ServerReports(url=shown.result(), message=message, servers=server_reports(hub.status(server)).servers)


async def _connected(hub: Hub, server: str | None) -> ServerReports:
    """All servers, or one with the names of its tools, after an attempt to connect."""
    await hub.connect_to([status.name for status in hub.status(server)], timeout=_CONNECT_TIMEOUT)
    if server is None:
        return server_reports(hub.status(), hub.problems)
    reports = server_reports(hub.status(server))
    if reports.servers and reports.servers[0]["state"] == "connected":
        with contextlib.suppress(ClaudeCodeError):
            reports.servers[0]["toolNames"] = [tool.name for tool in await hub.tools(server, _CONNECT_TIMEOUT)]
    return reports


def _hub_of(call: Call) -> Hub:
    if call.hub is None:
        raise InvalidArgument("This server has no hub; CLAUDE_CODE_MCP_HUB=own or all gives it one.")
    return call.hub


def server_reports(statuses: list[ServerStatus], problems: Sequence[object] = ()) -> ServerReports:
    """`problems` are the entries that cannot be used; a caller is told of them with the list of all servers."""
    servers = [dump(_report(status)) for status in statuses]
    return ServerReports(servers=servers, problems=[str(problem) for problem in problems] or None)


def _report(status: ServerStatus) -> ServerReport:
    info = status.server_info or {}
    return ServerReport(
        name=status.name,
        state=status.state,
        reason=status.reason,
        type=str(status.config.get("type", "")) or None,
        scope=status.scope,
        version=info.get("version") or None,
        tools=status.tools,
    )


def hub_tools() -> Mapping[str, Tool[Any]]:
    """The family; the tools of the servers themselves are another one."""
    tool = Tool(
        "claude_mcp_servers",
        "The MCP servers that all sessions share: list them, see their status, reconnect, enable, disable, or sign in.",
        Servers,
        ServerReports,
        claude_mcp_servers,
        types.ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True),
    )
    return {tool.name: tool}
