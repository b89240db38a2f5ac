"""The hub: every configured MCP server once, for all who use them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.client.auth import OAuthFlowError
from mcp.shared.dispatcher import ProgressFnT
from pydantic import BaseModel

from ..config import Settings
from ..errors import InvalidArgument, PermissionDenied, UpstreamUnavailable
from ..model.tool_names import ToolNames
from .auth.credentials import NeedsAuthMemory
from .auth.sign_in import ShowAddress, sign_in
from .client_session import UpstreamClient
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer, HubConfig
from .connection_state import ConnectionState
from .dependencies import ConnectThrottle, HubDeps
from .elicitation import Ask, with_input
from .session_endpoint import PATIENCE, Push, SessionEndpoint
from .transport_factory import credential_storage, has_oauth
from .trimming import cut_result
from .upstream import Upstream, Watcher

log = logging.getLogger(__name__)

_SIGN_IN_TIME = 300.0


@dataclass(frozen=True, slots=True)
class HubTool:
    """A tool under its name in the hub."""

    name: str
    server: str
    tool: types.Tool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a server stands; nothing in it is secret."""

    name: str
    state: str
    reason: str | None
    attempt: int
    scope: str
    file: str | None
    config: Mapping[str, object]
    server_info: Mapping[str, Any] | None = None
    protocol_version: str | None = None
    capabilities: Mapping[str, Any] | None = None
    instructions: str | None = None
    tools: int | None = None
    """How many tools it has, if they have been asked for."""


class Hub:
    """An asynchronous context manager. Servers are connected to when somebody needs them."""

    def __init__(self, configuration: HubConfig, settings: Settings, means: HubDeps) -> None:
        self._settings = settings
        self._means = means
        self._turns = ConnectThrottle(settings.mcp_local_batch, settings.mcp_remote_batch)
        self._memory = NeedsAuthMemory(means.state_directory / "needs-auth.json")
        self._problems = tuple(configuration.problems)
        self._upstreams = {name: self._upstream(server) for name, server in configuration.servers.items()}
        self._tasks: TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def _upstream(self, server: ConfiguredServer) -> Upstream:
        return Upstream(server, self._means, self._turns, self._memory, self._settings.mcp_timeout)

    async def __aenter__(self) -> "Hub":
        began = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(began))
        await began.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends every connection. All waits on the way are bounded, and being cancelled does not stop it half way."""
        assert self._running is not None
        self._closing.set()
        await asyncio.shield(self._running)

    async def _run(self, began: asyncio.Event) -> None:
        """The task that all owners belong to, so that whoever leaves the hub need not be the one who entered it."""
        async with anyio.create_task_group() as self._tasks:
            for upstream in self._upstreams.values():
                self._tasks.start_soon(_own, upstream)
            began.set()
            await self._closing.wait()
            for upstream in self._upstreams.values():
                upstream.close()

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._upstreams)

    @property
    def problems(self) -> tuple[object, ...]:
        """The entries of the configuration that cannot be used, and why."""
        return self._problems

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """How all servers stand, or one of them. Connects to none."""
        return [_status(upstream) for upstream in self._chosen(server)]

    def watch(self, server: str, watcher: Watcher) -> Callable[[], None]:
        """Calls back with `state`, `tools`, `resources`, `templates` or `prompts` when that changes."""
        return self._find(server).watch(watcher)

    def watch_all(self, watcher: Watcher) -> None:
        """The same for every server there is."""
        for upstream in self._upstreams.values():
            upstream.watch(watcher)

    async def connect(self, patience: float | None = None) -> list[ServerStatus]:
        """Connects to all that are enabled, a few at a time, and waits for it as long as patience lasts."""
        await self._links(list(self._upstreams.values()), patience)
        return self.status()

    async def connect_to(self, names: Collection[str], patience: float | None = None) -> None:
        """Connects to these of the servers, and waits for it as long as patience lasts."""
        await self._links([upstream for name, upstream in self._upstreams.items() if name in names], patience)

    async def tools(self, server: str | None = None, patience: float | None = PATIENCE) -> list[HubTool]:
        """The tools of all servers, or of one. A server that is not there in time is left out, and goes on trying.

        Raises UpstreamUnavailable for a single server that is not there.
        """
        if server is not None:
            await self._find(server).connected()
        found: dict[str, list[types.Tool]] = {}
        async with anyio.create_task_group() as tasks:
            for upstream in self._chosen(server):
                tasks.start_soon(self._collect, upstream, found, patience)
        names = ToolNames((name, tool.name) for name in sorted(found) for tool in found[name])
        return [
            HubTool(names.name(name, tool.name), name, tool) for name in self._upstreams for tool in found.get(name, ())
        ]

    async def _collect(self, upstream: Upstream, found: dict[str, list[types.Tool]], patience: float | None) -> None:
        try:
            with anyio.move_on_after(patience):
                found[upstream.name] = await (await upstream.connected()).tools()
        except (UpstreamUnavailable, MCPError, ValueError) as error:
            log.info("the tools of %s are left out: %s", upstream.name, error)

    async def _links(self, upstreams: list[Upstream], patience: float | None) -> None:
        async def reach(upstream: Upstream) -> None:
            try:
                await upstream.connected()
            except UpstreamUnavailable as error:
                log.info("%s", error.message)

        with anyio.move_on_after(patience):
            async with anyio.create_task_group() as tasks:
                for upstream in upstreams:
                    tasks.start_soon(reach, upstream)

    # -- using ------------------------------------------------------------------------------------------------

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        caller: str = "",
        on_progress: ProgressFnT | None = None,
        ask: Ask | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls a tool by its own name. Cancelling the caller cancels the call at the server.

        With `ask`, questions of the server are put to it. Without, a result that wants input first is returned, to be
        answered by calling again with `input_responses` and `request_state`.
        """
        upstream = self._find(server)
        if not upstream.server.config.allows(tool):
            raise InvalidArgument(f"The MCP server {server!r} offers no tool {tool!r}.", field="tool")
        given = dict(arguments or {})
        await self._means.permit(caller, server, tool, given)
        params = _present(
            name=tool, arguments=given, inputResponses=input_responses, requestState=request_state, _meta=meta
        )

        async def send(more: dict[str, Any]) -> dict[str, Any]:
            return await upstream.request("tools/call", {**params, **more}, on_progress, ask)

        result = cut_result(await (with_input(send, ask) if ask is not None else send({})))
        if result.get("resultType") == "input_required":
            return types.InputRequiredResult.model_validate(result)
        return types.CallToolResult.model_validate(result)

    async def resolve(self, name: str) -> tuple[str, str]:
        """The server and the tool behind `mcp__server__tool`."""
        for tool in await self.tools():
            if tool.name == name:
                return tool.server, tool.tool.name
        raise InvalidArgument(f"There is no tool {name!r}.", field="name")

    async def resources(self, server: str) -> list[types.Resource]:
        return await (await self._find(server).connected()).resources()

    async def resource_templates(self, server: str) -> list[types.ResourceTemplate]:
        return await (await self._find(server).connected()).templates()

    async def read(self, server: str, uri: str) -> types.ReadResourceResult:
        result = await self._find(server).request("resources/read", {"uri": uri})
        return types.ReadResourceResult.model_validate(result)

    async def prompts(self, server: str) -> list[types.Prompt]:
        return await (await self._find(server).connected()).prompts()

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> types.GetPromptResult:
        params = {"name": name, "arguments": dict(arguments or {})}
        return types.GetPromptResult.model_validate(await self._find(server).request("prompts/get", params))

    async def notify(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        """Sends a notification of any kind to a server that is connected."""
        link: UpstreamClient | None = self._find(server).link
        if link is None:
            raise UpstreamUnavailable(f"The MCP server {server!r} is not connected.", state="pending")
        await link.notify(method, dict(params))

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The servers that a session gets: all that may be used, or those of them it wants."""
        usable = [name for name, one in self._upstreams.items() if one.connection.state is not ConnectionState.DISABLED]
        return tuple(name for name in usable if wanted is None or name in wanted)

    def endpoint(
        self, server: str, push: Push, *, caller: str = "", ask: Ask | None = None, patience: float = PATIENCE
    ) -> SessionEndpoint:
        """The server as one session meets it; to be closed with the session."""
        return SessionEndpoint(
            self._find(server), push, permit=self._means.permit, caller=caller, ask=ask, patience=patience
        )

    # -- steering ---------------------------------------------------------------------------------------------

    async def reconnect(self, server: str) -> ServerStatus:
        """Makes the connection anew and tells how that went."""
        upstream = self._find(server)
        upstream.reconnect()
        await self._links([upstream], None)
        return _status(upstream)

    def disable(self, server: str) -> ServerStatus:
        upstream = self._find(server)
        upstream.disable()
        return _status(upstream)

    def enable(self, server: str) -> ServerStatus:
        """Lets a server be used again; it is connected to when somebody needs it."""
        upstream = self._unlocked(server)
        upstream.enable()
        return _status(upstream)

    def replace(self, server: ConfiguredServer) -> None:
        """Takes in a new server, or a changed one; one that is the same keeps its connection."""
        old = self._upstreams.get(server.name)
        if old is not None and old.key == fingerprint(server.name, server.config):
            return
        assert self._tasks is not None
        if old is not None:
            old.close()
        upstream = self._upstreams[server.name] = self._upstream(server)
        self._tasks.start_soon(_own, upstream)

    def remove(self, server: str) -> None:
        """Ends the connection to a server and forgets it."""
        self._find(server).close()
        del self._upstreams[server]

    async def authenticate(self, server: str, show: ShowAddress, timeout: float = _SIGN_IN_TIME) -> ServerStatus:
        """Signs in: brings a person to an address, keeps the tokens, and connects anew."""
        upstream = self._unlocked(server)
        config = self._with_oauth(upstream)
        try:
            await sign_in(config, credential_storage(server, config, self._means), show, timeout)
        except OAuthFlowError as error:
            raise UpstreamUnavailable(f"Signing in to {server!r} failed: {error}", state="needs-auth") from None
        await self._memory.forget(upstream.key)
        upstream.enable()
        return await self.reconnect(server)

    async def logout(self, server: str) -> ServerStatus:
        """Forgets the tokens for a server, and gives up the connection that was made with them."""
        upstream = self._find(server)
        await credential_storage(server, self._with_oauth(upstream), self._means).delete()
        await self._memory.forget(upstream.key)
        upstream.reset("signed out")
        return _status(upstream)

    @staticmethod
    def _with_oauth(upstream: Upstream) -> OAuthServerConfig:
        config = upstream.server.config
        if not has_oauth(config):
            raise InvalidArgument(f"Nobody can sign in to {upstream.name!r}, a server of type {config.type}.")
        assert isinstance(config, OAuthServerConfig)
        return config

    def _unlocked(self, server: str) -> Upstream:
        """A server that whoever steers the hub may put to use; PermissionDenied where only its configuration can."""
        upstream = self._find(server)
        if upstream.server.locked:
            raise PermissionDenied(
                f"The MCP server {server!r} cannot be used: {upstream.server.barred}. Only a person can change that, "
                "in Claude Code or in the configuration.",
                field="server",
            )
        return upstream

    def _find(self, server: str) -> Upstream:
        upstream = self._upstreams.get(server)
        if upstream is None:
            raise InvalidArgument(f"There is no MCP server called {server!r}.", field="server")
        return upstream

    def _chosen(self, server: str | None) -> Iterator[Upstream]:
        return iter(list(self._upstreams.values()) if server is None else [self._find(server)])


async def _own(upstream: Upstream) -> None:
    try:
        await upstream.run()
    except Exception:
        log.exception("the owner of %s failed", upstream.name)  # a bug, but no reason to lose the other servers


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _status(upstream: Upstream) -> ServerStatus:
    server, connection, link = upstream.server, upstream.connection, upstream.link
    status = ServerStatus(
        name=server.name,
        state=connection.state.value,
        reason=connection.reason,
        attempt=connection.attempt,
        scope=server.scope.value,
        file=str(server.file) if server.file else None,
        config=server.config.describe(),
    )
    return status if link is None else _with_link(status, link)


def _with_link(status: ServerStatus, link: UpstreamClient) -> ServerStatus:
    return replace(
        status,
        server_info=_dumped(link.server_info),
        protocol_version=link.protocol_version,
        capabilities=_dumped(link.capabilities),
        instructions=link.instructions,
        tools=link.known_tools,
    )


def _dumped(model: BaseModel | None) -> Mapping[str, Any] | None:
    return None if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)
