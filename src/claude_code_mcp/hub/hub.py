"""The hub: one connection to every configured MCP server, shared by all sessions, clients and commands.

This is the public face of the package. `Hub` finds the server, checks what the configuration allows, and trims results;
`upstream.py` has the connections, `session_endpoint.py` the view of one session.
"""

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
from ..model.mcp_servers import ToolNames
from ..model.question import AskPerson
from .auth.credentials import NeedsAuthMemory
from .auth.oauth import credential_storage, has_oauth
from .auth.sign_in import ShowAddress, sign_in
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer, HubConfig
from .connection_state import ConnectionState
from .dependencies import ConnectThrottle, HubDeps
from .elicitation import request_with_input, wants_input
from .session_endpoint import CONNECT_TIMEOUT, Push, SessionEndpoint
from .streams import JsonObject
from .trimming import trim_result
from .upstream import Upstream, Watcher

log = logging.getLogger(__name__)

_SIGN_IN_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class HubTool:
    """A tool under its name in the hub."""

    name: str
    server: str
    tool: types.Tool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server's connection, and what is known of the server; nothing in it is secret."""

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
    """How many tools it has; None while they have not been listed."""


class Hub:
    """An asynchronous context manager. A server is connected to when a caller needs it.

    Methods that name a server raise InvalidArgument where there is none of that name.
    """

    def __init__(self, configuration: HubConfig, settings: Settings, deps: HubDeps) -> None:
        self._settings = settings
        self._deps = deps
        self._throttle = ConnectThrottle(settings.mcp_local_batch, settings.mcp_remote_batch)
        self._memory = NeedsAuthMemory(deps.state_directory / "needs-auth.json")
        self._problems = tuple(configuration.problems)
        self._upstreams = {name: self._upstream(server) for name, server in configuration.servers.items()}
        self._tasks: TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()

    def _upstream(self, server: ConfiguredServer) -> Upstream:
        return Upstream(server, self._deps, self._throttle, self._memory, self._settings.mcp_timeout)

    async def __aenter__(self) -> "Hub":
        started = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(started))
        await started.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends every connection. All waits on the way are bounded, and being cancelled does not stop it half way."""
        assert self._running is not None
        self._closing.set()
        await asyncio.shield(self._running)

    async def _run(self, started: asyncio.Event) -> None:
        """Runs the owner tasks of all connections; a task of its own, so that the hub may be left in another task than
        the one that entered it."""
        async with anyio.create_task_group() as self._tasks:
            for upstream in self._upstreams.values():
                self._tasks.start_soon(_run_owner, upstream)
            started.set()
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
        """The status of all servers, or of one. Connects to none."""
        return [_status(upstream) for upstream in self._select(server)]

    def watch(self, server: str, watcher: Watcher) -> Callable[[], None]:
        """Calls back with `state`, `tools`, `resources`, `templates` or `prompts` when that changes."""
        return self._find(server).watch(watcher)

    def watch_all(self, watcher: Watcher) -> None:
        """The same for every server."""
        for upstream in self._upstreams.values():
            upstream.watch(watcher)

    async def connect(self, timeout: float | None = None) -> list[ServerStatus]:
        """Connects to all that are enabled, a few at a time, and waits for that until the timeout; attempts go on."""
        await self._connect(list(self._upstreams.values()), timeout)
        return self.status()

    async def connect_to(self, names: Collection[str], timeout: float | None = None) -> None:
        """The same for some servers; names that there are not are ignored."""
        await self._connect([upstream for name, upstream in self._upstreams.items() if name in names], timeout)

    async def tools(self, server: str | None = None, timeout: float | None = CONNECT_TIMEOUT) -> list[HubTool]:
        """The tools of all servers, or of one. A server that is not connected in time is left out; its attempt goes on.

        Raises UpstreamUnavailable for a single server that is unavailable.
        """
        if server is not None:
            await self._find(server).connected()
        tools: dict[str, list[types.Tool]] = {}

        async def fetch(upstream: Upstream) -> None:
            try:
                with anyio.move_on_after(timeout):
                    tools[upstream.name] = await (await upstream.connected()).tools()
            except (UpstreamUnavailable, MCPError, ValueError) as error:
                log.info("the tools of %s are left out: %s", upstream.name, error)

        async with anyio.create_task_group() as tasks:
            for upstream in self._select(server):
                tasks.start_soon(fetch, upstream)
        names = ToolNames((name, tool.name) for name in sorted(tools) for tool in tools[name])
        return [
            HubTool(names.name(name, tool.name), name, tool) for name in self._upstreams for tool in tools.get(name, ())
        ]

    async def _connect(self, upstreams: list[Upstream], timeout: float | None) -> None:
        async def connect_one(upstream: Upstream) -> None:
            try:
                await upstream.connected()
            except UpstreamUnavailable as error:
                log.info("%s", error.message)

        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                for upstream in upstreams:
                    tasks.start_soon(connect_one, upstream)

    # -- using ------------------------------------------------------------------------------------------------

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        caller: str = "",
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls a tool by its own name. Cancelling the caller cancels the call at the server.

        With `ask`, questions of the server are put to it. Without, a result that wants input first is returned, to be
        answered by calling again with `input_responses` and `request_state`. Raises InvalidArgument for a tool that the
        configuration does not let through, UpstreamUnavailable, and MCPError with what the server answered.
        """
        upstream = self._find(server)
        if not upstream.server.config.allows(tool):
            raise InvalidArgument(f"The MCP server {server!r} offers no tool {tool!r}.", field="tool")
        tool_arguments = dict(arguments or {})
        await self._deps.permit(caller, server, tool, tool_arguments)
        optional = {"inputResponses": input_responses, "requestState": request_state, "_meta": meta}
        params = {key: value for key, value in optional.items() if value is not None}
        params |= {"name": tool, "arguments": tool_arguments}

        async def send(answers: JsonObject) -> JsonObject:
            return await upstream.request("tools/call", {**params, **answers}, on_progress, ask)

        result = trim_result(await (request_with_input(send, ask) if ask is not None else send({})))
        if wants_input(result):
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
        client = self._find(server).client
        if client is None:
            raise UpstreamUnavailable(f"The MCP server {server!r} is not connected.", state="pending")
        await client.notify(method, dict(params))

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The servers that a session gets: all that may be used, or those of them it wants."""
        return tuple(
            name
            for name, upstream in self._upstreams.items()
            if upstream.connection.state is not ConnectionState.DISABLED and (wanted is None or name in wanted)
        )

    def endpoint(
        self,
        server: str,
        push: Push,
        *,
        caller: str = "",
        ask: AskPerson | None = None,
        timeout: float = CONNECT_TIMEOUT,
    ) -> SessionEndpoint:
        """The server for one session; to be closed with the session."""
        return SessionEndpoint(
            self._find(server), push, permit=self._deps.permit, caller=caller, ask=ask, timeout=timeout
        )

    # -- steering ---------------------------------------------------------------------------------------------

    async def reconnect(self, server: str) -> ServerStatus:
        """Makes the connection anew, waits for the outcome, and returns it."""
        upstream = self._find(server)
        upstream.reconnect()
        await self._connect([upstream], None)
        return _status(upstream)

    def disable(self, server: str) -> ServerStatus:
        upstream = self._find(server)
        upstream.disable()
        return _status(upstream)

    def enable(self, server: str) -> ServerStatus:
        """Lets a disabled server be used again. Raises PermissionDenied where only the configuration can."""
        upstream = self._unlocked(server)
        upstream.enable()
        return _status(upstream)

    def replace(self, server: ConfiguredServer) -> None:
        """Adds a server, or replaces one whose configuration has changed; an unchanged one keeps its connection."""
        old = self._upstreams.get(server.name)
        if old is not None and old.key == fingerprint(server.name, server.config):
            return
        assert self._tasks is not None
        if old is not None:
            old.close()
        upstream = self._upstreams[server.name] = self._upstream(server)
        self._tasks.start_soon(_run_owner, upstream)

    def remove(self, server: str) -> None:
        """Ends the connection to a server and forgets it."""
        self._find(server).close()
        del self._upstreams[server]

    async def authenticate(self, server: str, show: ShowAddress, timeout: float = _SIGN_IN_TIMEOUT) -> ServerStatus:
        """Signs in: brings a person to an address, keeps the tokens, enables the server and connects anew.

        Raises PermissionDenied for a locked server, InvalidArgument for one without OAuth, UpstreamUnavailable where
        signing in failed or took longer than the timeout.
        """
        upstream = self._unlocked(server)
        config = self._with_oauth(upstream)
        try:
            await sign_in(config, credential_storage(server, config, self._deps), show, timeout)
        except OAuthFlowError as error:
            raise UpstreamUnavailable(f"Signing in to {server!r} failed: {error}", state="needs-auth") from None
        await self._memory.forget(upstream.key)
        upstream.enable()
        return await self.reconnect(server)

    async def logout(self, server: str) -> ServerStatus:
        """Forgets the tokens for a server, and gives up the connection that was made with them."""
        upstream = self._find(server)
        await credential_storage(server, self._with_oauth(upstream), self._deps).delete()
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
        """The server, unless it is locked: raises PermissionDenied where only its configuration can put it to use."""
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

    def _select(self, server: str | None) -> Iterator[Upstream]:
        return iter(list(self._upstreams.values()) if server is None else [self._find(server)])


async def _run_owner(upstream: Upstream) -> None:
    try:
        await upstream.run()
    except Exception:
        log.exception("the owner of %s failed", upstream.name)  # a bug, but no reason to lose the other servers


def _status(upstream: Upstream) -> ServerStatus:
    server, connection, client = upstream.server, upstream.connection, upstream.client
    status = ServerStatus(
        name=server.name,
        state=connection.state.value,
        reason=connection.reason,
        attempt=connection.attempt,
        scope=server.scope.value,
        file=str(server.file) if server.file else None,
        config=server.config.describe(),
    )
    if client is None:
        return status
    return replace(
        status,
        server_info=_dump(client.server_info),
        protocol_version=client.protocol_version,
        capabilities=_dump(client.capabilities),
        instructions=client.instructions,
        tools=client.known_tools,
    )


def _dump(model: BaseModel | None) -> Mapping[str, Any] | None:
    return None if model is None else model.model_dump(by_alias=True, mode="json", exclude_none=True)
