"""The hub: one connection to every configured MCP server, shared by all sessions, clients and commands.

This is the public face of the package. `Hub` finds the server and checks what the configuration allows;
`server_pool.py` says who shares a connection, `upstream.py` has the connections, `session_endpoint.py` the view of one
session.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
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
from ..model.mcp_servers import ToolNames, normalise
from ..model.question import AskPerson
from .auth.credentials import NeedsAuthMemory
from .auth.oauth import own_storage
from .auth.sign_in import deliver_redirect, sign_in
from .auth.stored_oauth import ShowAddress
from .client_session import UpstreamClient
from .config_entry import OAuthServerConfig, fingerprint
from .config_files import ConfiguredServer, HubConfig
from .dependencies import ConnectThrottle, HubDeps
from .elicitation import request_with_input, wants_input
from .server_memory import ServerMemory
from .server_pool import Route, ServerPool
from .session_endpoint import CONNECT_TIMEOUT, Push, SessionEndpoint
from .streams import JsonObject
from .trimming import named_arguments, prompt_text
from .upstream import Upstream, UpstreamContext, Watcher

log = logging.getLogger(__name__)

OnServersChanged = Callable[[frozenset[str]], None]
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
        self._needs_auth = NeedsAuthMemory(deps.documents("sign-in needed"))
        self._memory = ServerMemory(deps.documents("server"))
        self._context = UpstreamContext(
            deps,
            ConnectThrottle(settings.mcp_local_batch, settings.mcp_remote_batch),
            self._needs_auth,
            self._memory,
            settings.mcp_timeout,
            deps.directory,
        )
        self._watchers: set[Watcher] = set()
        """Of every server, those that come later too."""
        self._set_watchers: set[OnServersChanged] = set()
        self._problems = tuple(configuration.problems)
        self._pools = {name: self._pool(server) for name, server in configuration.servers.items()}
        self._tasks: TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._endpoints = itertools.count(1)
        self._followed: dict[tuple[str, str], Route] = {}
        self._sign_ins: dict[str, tuple[str, asyncio.Event]] = {}
        """Those under way, by the address that a person was brought to: the server, and when it is over."""

    def _pool(self, server: ConfiguredServer) -> ServerPool:
        pool = ServerPool(server, self._context, self._start_owner)
        for watcher in self._watchers:
            pool.watch(watcher)
        return pool

    def _start_owner(self, upstream: Upstream) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(_run_owner, upstream)

    async def __aenter__(self) -> "Hub":
        await self._memory.load(pool.key for pool in self._pools.values())
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
            for pool in self._pools.values():
                self._start_owner(pool.primary)
            started.set()
            await self._closing.wait()
            for pool in self._pools.values():
                pool.close()
        await self._deps.renewals.done()  # tokens that are on their way would be lost

    # -- looking ----------------------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._pools)

    @property
    def problems(self) -> tuple[object, ...]:
        """The entries of the configuration that cannot be used, and why."""
        return self._problems

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """The status of all servers, or of one. Connects to none."""
        return [_status(pool) for pool in self._select(server)]

    def watch(self, server: str, watcher: Watcher) -> Callable[[], None]:
        """Calls back with `state`, `tools`, `resources`, `templates` or `prompts` when that changes, and with
        `UPDATED` and the address of a resource that is followed when it does."""
        return self._find(server).watch(watcher)

    def watch_all(self, watcher: Watcher) -> None:
        """The same for every server, also for those that are added later."""
        self._watchers.add(watcher)
        for pool in self._pools.values():
            pool.watch(watcher)

    def watch_servers(self, watcher: OnServersChanged) -> Callable[[], None]:
        """Calls back with the names of servers that were added, replaced, removed or enabled, until the function that
        it returns is called. What `servers` and `offered` say has changed by then."""
        self._set_watchers.add(watcher)
        return lambda: self._set_watchers.discard(watcher)

    def _servers_changed(self, names: Collection[str]) -> None:
        for watcher in list(self._set_watchers):
            watcher(frozenset(names))

    async def connect(self, timeout: float | None = None) -> list[ServerStatus]:
        """Connects to all that are enabled, a few at a time, and waits for that until the timeout; attempts go on."""
        await self._connect(list(self._pools.values()), timeout)
        return self.status()

    async def connect_to(self, names: Collection[str], timeout: float | None = None) -> None:
        """The same for some servers; names that there are not are ignored."""
        await self._connect([pool for name, pool in self._pools.items() if name in names], timeout)

    async def tools(self, server: str | None = None, timeout: float | None = CONNECT_TIMEOUT) -> list[HubTool]:
        """The tools of all servers, or of one. A server that is not connected in time is left out; its attempt goes on.

        Raises UpstreamUnavailable for a single server that is unavailable.
        """
        if server is not None:
            await self._client(server)
        tools: dict[str, list[types.Tool]] = await self.lists("tools", timeout, server)
        names = ToolNames((name, tool.name) for name in sorted(tools) for tool in tools[name])
        return [
            HubTool(names.name(name, tool.name), name, tool) for name in self._pools for tool in tools.get(name, ())
        ]

    async def lists(self, kind: str, timeout: float | None, server: str | None = None) -> dict[str, list[Any]]:
        """The `tools`, `resources`, `templates` or `prompts` of all servers, or of one, by server. One that is not
        connected in time, or fails, is left out; its attempt goes on."""
        lists: dict[str, list[Any]] = {}

        async def fetch(name: str) -> None:
            try:
                with anyio.move_on_after(timeout):
                    lists[name] = await getattr(await self._client(name), kind)()
            except (UpstreamUnavailable, MCPError, ValueError) as error:
                log.info("the %s of %s are left out: %s", kind, name, error)

        async with anyio.create_task_group() as tasks:
            for pool in self._select(server):
                tasks.start_soon(fetch, pool.server.name)
        return {name: lists[name] for name in self._pools if name in lists}

    async def _client(self, server: str) -> UpstreamClient:
        """The connection for callers that are in no directory and ask nobody."""
        with closing(self._find(server).route()) as route:
            return await route.connected()

    async def _connect(self, pools: list[ServerPool], timeout: float | None) -> None:
        async def connect_one(pool: ServerPool) -> None:
            try:
                await self._client(pool.server.name)
            except UpstreamUnavailable as error:
                log.info("%s", error.message)

        with anyio.move_on_after(timeout):
            async with anyio.create_task_group() as tasks:
                for pool in pools:
                    tasks.start_soon(connect_one, pool)

    # -- using ------------------------------------------------------------------------------------------------

    async def call(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        caller: str = "",
        directory: str | None = None,
        on_progress: ProgressFnT | None = None,
        ask: AskPerson | None = None,
        input_responses: Mapping[str, Any] | None = None,
        request_state: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Calls a tool by its own name, for a caller in a directory (ours unless it is named), and returns the whole
        result, however long. Cancelling the caller cancels the call at the server.

        With `ask`, questions of the server are put to it. Without, a result that wants input first is returned, to be
        answered by calling again with `input_responses` and `request_state`. Raises InvalidArgument for a tool that the
        configuration does not let through, UpstreamUnavailable, and MCPError with what the server answered.
        """
        pool = self._find(server)
        if not pool.server.config.allows(tool):
            raise InvalidArgument(f"The MCP server {server!r} offers no tool {tool!r}.", field="tool")
        tool_arguments = dict(arguments or {})
        optional = {"inputResponses": input_responses, "requestState": request_state, "_meta": meta}
        params = {key: value for key, value in optional.items() if value is not None}
        params |= {"name": tool, "arguments": tool_arguments}

        with closing(pool.route(caller, directory)) as route:

            async def send(answers: JsonObject) -> JsonObject:
                return await route.request("tools/call", {**params, **answers}, on_progress, ask)

            result = await (request_with_input(send, ask, route.roots) if ask is not None else send({}))
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
        return await (await self._client(server)).resources()

    async def resource_templates(self, server: str) -> list[types.ResourceTemplate]:
        return await (await self._client(server)).templates()

    async def read(self, server: str, uri: str) -> types.ReadResourceResult:
        result = await self._request(server, "resources/read", {"uri": uri})
        return types.ReadResourceResult.model_validate(result)

    async def prompts(self, server: str) -> list[types.Prompt]:
        return await (await self._client(server)).prompts()

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str] | None = None) -> types.GetPromptResult:
        params = {"name": name, "arguments": dict(arguments or {})}
        return types.GetPromptResult.model_validate(await self._request(server, "prompts/get", params))

    async def expand_prompt(
        self, server: str, prompt: str, arguments: Sequence[str], *, caller: str = "", directory: str | None = None
    ) -> str | None:
        """The text of a prompt, by its name as it is in commands, with its arguments in order; None if there is none
        of that name. Raises UpstreamUnavailable, also with what the server refused."""
        with closing(self._find(server).route(caller, directory)) as route:
            offered = await (await route.connected()).prompts()
            found = next((each for each in offered if normalise(each.name) == prompt), None)
            if found is None:
                return None
            params = {"name": found.name, "arguments": named_arguments(found, arguments)}
            try:
                return prompt_text(types.GetPromptResult.model_validate(await route.request("prompts/get", params)))
            except MCPError as error:
                raise UpstreamUnavailable(f"The MCP server {server!r} refused the prompt: {error.message}") from None

    async def complete(self, server: str, params: JsonObject) -> types.CompleteResult:
        """Completes an argument of a prompt or of a template's address; `params` are those of `completion/complete`."""
        return types.CompleteResult.model_validate(await self._request(server, "completion/complete", params))

    async def _request(self, server: str, method: str, params: JsonObject) -> JsonObject:
        with closing(self._find(server).route()) as route:
            return await route.request(method, params)

    async def follow(self, server: str, uri: str) -> None:
        """Asks a server to tell when a resource changes, on this connection and each that comes after it; watchers
        are then called with `updated` and the address. Raises UpstreamUnavailable, or MCPError if it cannot."""
        pool = self._find(server)
        if (server, uri) not in self._followed:
            route = pool.route()  # stays open, so that the connection does
            self._followed[server, uri] = route
            try:
                await route.follow(uri)
            except BaseException:
                del self._followed[server, uri]
                route.close()
                raise

    async def notify(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        """Sends a notification of any kind to a server that is connected."""
        client = self._find(server).shown.client
        if client is None:
            raise UpstreamUnavailable(f"The MCP server {server!r} is not connected.", state="pending")
        await client.notify(method, dict(params))

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The servers that a session gets: all that may be used, or those of them it wants."""
        return tuple(
            name for name, pool in self._pools.items() if not pool.is_disabled and (wanted is None or name in wanted)
        )

    def endpoint(
        self,
        server: str,
        push: Push,
        *,
        caller: str = "",
        directory: str | None = None,
        ask: AskPerson | None = None,
        timeout: float = CONNECT_TIMEOUT,
    ) -> SessionEndpoint:
        """The server for one session in a directory; to be closed with the session."""
        # One without a name is somebody all the same, and nobody else.
        route = self._find(server).route(caller or f"endpoint:{next(self._endpoints)}", directory)
        return SessionEndpoint(route, push, ask=ask, timeout=timeout)

    # -- steering ---------------------------------------------------------------------------------------------

    async def reconnect(self, server: str) -> ServerStatus:
        """Makes the connection anew, waits for the outcome, and returns it."""
        pool = self._find(server)
        for upstream in pool.connections:
            if upstream is pool.shown or not upstream.is_idle:
                upstream.reconnect()
        await self._connect([pool], None)
        return _status(pool)

    def disable(self, server: str) -> ServerStatus:
        pool = self._find(server)
        for upstream in pool.connections:
            upstream.disable()
        return _status(pool)

    def enable(self, server: str) -> ServerStatus:
        """Lets a disabled server be used again. Raises PermissionDenied where only the configuration can."""
        pool = self._unlocked(server)
        for upstream in pool.connections:
            upstream.enable()
        self._servers_changed([server])
        return _status(pool)

    def apply(self, configuration: HubConfig) -> None:
        """Has the hub be as a new configuration says: adds, replaces and removes servers. What has not changed keeps
        its connections, and stays enabled or disabled as it was steered meanwhile."""
        removed = [name for name in self._pools if name not in configuration.servers]
        changed = [name for name, server in configuration.servers.items() if self._differs(server)]
        for name in removed:
            self._close_pool(name)
        for name in changed:
            self._replace(configuration.servers[name])
        self._pools = {name: self._pools[name] for name in configuration.servers}
        self._problems = tuple(configuration.problems)
        if removed or changed:
            self._servers_changed([*removed, *changed])
            for watcher in list(self._watchers):
                for kind in ("tools", "resources", "prompts"):
                    watcher(kind)

    def replace(self, server: ConfiguredServer) -> None:
        """Adds a server, or replaces one whose configuration has changed; an unchanged one keeps its connection."""
        if self._differs(server):
            self._replace(server)
            self._servers_changed([server.name])

    def remove(self, server: str) -> None:
        """Ends the connections to a server and forgets it."""
        self._find(server)
        self._close_pool(server)
        self._servers_changed([server])

    def _differs(self, server: ConfiguredServer) -> bool:
        old = self._pools.get(server.name)
        if old is None or old.key != fingerprint(server.name, server.config):
            return True
        return (old.server.barred, old.server.locked) != (server.barred, server.locked)

    def _replace(self, server: ConfiguredServer) -> None:
        if server.name in self._pools:
            self._close_pool(server.name)
        pool = self._pools[server.name] = self._pool(server)
        self._start_owner(pool.primary)

    def _close_pool(self, name: str) -> None:
        self._pools.pop(name).close()
        for followed in [key for key in self._followed if key[0] == name]:
            self._followed.pop(followed).close()

    async def authenticate(self, server: str, show: ShowAddress, timeout: float = _SIGN_IN_TIMEOUT) -> ServerStatus:
        """Signs in: brings a person to an address, keeps the tokens, enables the server and connects anew. For a server
        with cross-app access the person is brought to the organisation's identity provider, once for all of them.

        Raises PermissionDenied for a locked server, InvalidArgument for one without OAuth, UpstreamUnavailable where
        signing in failed or took longer than the timeout.
        """
        pool = self._unlocked(server)
        config = self._with_oauth(pool)
        shown: list[str] = []

        def over() -> None:
            for address in shown:
                self._sign_ins.pop(address)[1].set()
            shown.clear()

        async def show_and_note(address: str) -> None:
            over()  # one that was shown before, and led nowhere
            shown.append(address)
            self._sign_ins[address] = (server, asyncio.Event())
            await show(address)

        try:
            await self._sign_in(server, config, show_and_note, timeout)
        except OAuthFlowError as error:
            raise UpstreamUnavailable(f"Signing in to {server!r} failed: {error}", state="needs-auth") from None
        else:
            await self._needs_auth.forget(pool.key)
            self.enable(server)
            return await self.reconnect(server)
        finally:
            over()

    async def _sign_in(self, server: str, config: OAuthServerConfig, show: ShowAddress, timeout: float) -> None:
        if not config.oauth.xaa:
            await sign_in(config, own_storage(server, config, self._deps), show, timeout, self._deps.client_document)
        elif self._deps.identity_provider is None:
            raise OAuthFlowError("there is no identity provider")
        else:
            await self._deps.identity_provider.sign_in(show, timeout)

    async def finish_sign_in(self, server: str, redirected_to: str) -> ServerStatus:
        """Ends a sign-in that is under way for a person whose browser is on another machine and cannot come back to
        this one: with the address that it ended up at. InvalidArgument if that belongs to no such sign-in."""
        for address, (name, done) in list(self._sign_ins.items()):
            if name == server and await deliver_redirect(address, redirected_to):
                await done.wait()
                return _status(self._find(server))
        raise InvalidArgument(
            f"No sign-in to {server!r} is under way that ends at this address: it begins with http://127.0.0.1 and has "
            "a code in it.",
            field="redirect",
        )

    async def logout(self, server: str) -> ServerStatus:
        """Forgets the tokens for a server, and gives up the connection that was made with them. The sign-in of Claude
        Code itself stays."""
        pool = self._find(server)
        config = self._with_oauth(pool)
        await own_storage(server, config, self._deps).delete()
        if config.oauth.xaa and self._deps.identity_provider is not None:
            await self._deps.identity_provider.sign_out()
        await self._needs_auth.forget(pool.key)
        for upstream in pool.connections:
            upstream.reset("signed out")
        return _status(pool)

    @staticmethod
    def _with_oauth(pool: ServerPool) -> OAuthServerConfig:
        config = pool.server.config
        if not isinstance(config, OAuthServerConfig):
            raise InvalidArgument(f"Nobody can sign in to {pool.server.name!r}, a server of type {config.type}.")
        return config

    def _unlocked(self, server: str) -> ServerPool:
        """The server, unless it is locked: raises PermissionDenied where only its configuration can put it to use."""
        pool = self._find(server)
        if pool.server.locked:
            raise PermissionDenied(
                f"The MCP server {server!r} cannot be used: {pool.server.barred}. Only a person can change that, "
                "in Claude Code or in the configuration.",
                field="server",
            )
        return pool

    def _find(self, server: str) -> ServerPool:
        pool = self._pools.get(server)
        if pool is None:
            raise InvalidArgument(f"There is no MCP server called {server!r}.", field="server")
        return pool

    def _select(self, server: str | None) -> list[ServerPool]:
        return list(self._pools.values()) if server is None else [self._find(server)]


async def _run_owner(upstream: Upstream) -> None:
    try:
        await upstream.run()
    except Exception:
        log.exception("the owner of %s failed", upstream.name)  # a bug, but no reason to lose the other servers


def _status(pool: ServerPool) -> ServerStatus:
    server, connection, client = pool.server, pool.shown.connection, pool.shown.client
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
