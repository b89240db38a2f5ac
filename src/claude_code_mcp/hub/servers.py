"""All servers of a hub: starts, watches and ends them, and applies configuration changes."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup
from pydantic import BaseModel

from ..core.config import Settings
from ..core.errors import InvalidArgument, PermissionDenied
from .auth.credentials import NeedsAuthMemory
from .config_entry import fingerprint
from .config_files import ConfiguredServer, HubConfig
from .connect_throttle import ConnectThrottle
from .hub_deps import HubDeps
from .server_memory import ServerMemory
from .server_pool import Route, ServerPool
from .upstream import ConnectionOwner, Upstream, UpstreamContext, Watcher

OnServersChanged = Callable[[frozenset[str]], None]


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """The state of a server's connection, and what is known about the server; contains no secrets."""

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
    """The number of its tools; None if they have not been listed yet."""


class HubServers:
    """The servers of a hub, as configured; an asynchronous context manager.

    Methods that name a server raise InvalidArgument if there is no server with that name.
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
            samples=bool({"hub-tools", "hub-search"} & {*settings.toolsets}),
        )
        self._watchers: set[Watcher] = set()
        """The watchers of all servers, including later ones."""
        self._set_watchers: set[OnServersChanged] = set()
        self._problems = tuple(configuration.problems)
        self._pools = {name: self._pool(server) for name, server in configuration.servers.items()}
        self._tasks: TaskGroup | None = None
        self._running: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._followed: dict[tuple[str, str], Route] = {}
        """The routes of the resources that servers have confirmed subscriptions to, by server and address."""
        self._being_followed: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def _pool(self, server: ConfiguredServer) -> ServerPool:
        pool = ServerPool(server, self._context, self._start_owner)
        for watcher in self._watchers:
            pool.watch(watcher)
        return pool

    def _start_owner(self, upstream: Upstream) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(ConnectionOwner(upstream).run)

    async def __aenter__(self) -> Self:
        # Before the first caller: traits that are not loaded by then are read on the event loop.
        await self._memory.load(pool.key for pool in self._pools.values())
        started = asyncio.Event()
        self._running = asyncio.get_running_loop().create_task(self._run(started))
        try:
            await started.wait()
        except BaseException:
            # `__aexit__` is not called if entering failed. Shielded: its tasks must not outlive this.
            self._closing.set()
            with anyio.CancelScope(shield=True):
                await self._running
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all connections. All waits are bounded, and a cancellation does not interrupt it."""
        assert self._running is not None
        self._closing.set()
        await asyncio.shield(self._running)

    async def _run(self, started: asyncio.Event) -> None:
        """Run the owner tasks of all connections, in a separate task: the hub may be left in another task than the one
        that entered it."""
        async with anyio.create_task_group() as self._tasks:
            for pool in self._pools.values():
                self._start_owner(pool.primary)
            started.set()
            await self._closing.wait()
            for pool in self._pools.values():
                pool.close()
        await self._deps.renewals.done()  # otherwise tokens that are being renewed would be lost

    # -- status ------------------------------------------------------------------------------------------

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(self._pools)

    @property
    def problems(self) -> tuple[object, ...]:
        """The configuration entries that cannot be used, with the reasons."""
        return self._problems

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """The servers that a session gets: all usable ones, or the `wanted` ones among them."""
        return tuple(
            name for name, pool in self._pools.items() if not pool.is_disabled and (wanted is None or name in wanted)
        )

    def status(self, server: str | None = None) -> list[ServerStatus]:
        """The status of all servers, or of one. Never connects."""
        return [status_of(pool) for pool in self._select(server)]

    def watch(self, server: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with `state`, `tools`, `resources`, `templates` or `prompts` when that changes, and with
        `UPDATED` and the address when a followed resource changes."""
        return self._find(server).watch(watcher)

    def watch_all(self, watcher: Watcher) -> None:
        """Call `watcher` as `watch` does, for every server, including those that are added later."""
        self._watchers.add(watcher)
        for pool in self._pools.values():
            pool.watch(watcher)

    def watch_servers(self, watcher: OnServersChanged) -> Callable[[], None]:
        """Call `watcher` with the names of servers that were added, replaced, removed or enabled. Returns a function
        that ends this. `servers` and `offered` already return the new state when it is called."""
        self._set_watchers.add(watcher)
        return lambda: self._set_watchers.discard(watcher)

    def _servers_changed(self, names: Collection[str]) -> None:
        for watcher in list(self._set_watchers):
            watcher(frozenset(names))

    # -- control -----------------------------------------------------------------------------------------

    def disable(self, server: str) -> ServerStatus:
        pool = self._find(server)
        for upstream in pool.connections:
            upstream.disable()
        return status_of(pool)

    def enable(self, server: str) -> ServerStatus:
        """Enable a disabled server. Raises PermissionDenied if only a configuration change can."""
        pool = self._unlocked(server)
        for upstream in pool.connections:
            upstream.enable()
        self._servers_changed([server])
        return status_of(pool)

    # -- the configuration ---------------------------------------------------------------------------------

    def apply(self, configuration: HubConfig) -> None:
        """Apply a new configuration: add, replace and remove servers. Unchanged servers keep their connections, and
        stay enabled or disabled as callers have set them."""
        removed = [name for name in self._pools if name not in configuration.servers]
        changed = [name for name, server in configuration.servers.items() if self._differs(server)]
        for name in removed:
            self._close_pool(name)
        for name in changed:
            self._replace(configuration.servers[name])
        self._pools = {name: self._pools[name] for name in configuration.servers}
        self._problems = tuple(configuration.problems)
        # Only after all changes: watchers read the state of the hub.
        if removed or changed:
            self._servers_changed([*removed, *changed])
            for watcher in list(self._watchers):
                for kind in ("tools", "resources", "prompts"):
                    watcher(kind)

    def replace(self, server: ConfiguredServer) -> None:
        """Add a server, or replace it if its configuration has changed; an unchanged one keeps its connection."""
        if self._differs(server):
            self._replace(server)
            self._servers_changed([server.name])

    def remove(self, server: str) -> None:
        """End the connections to a server and forget it."""
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

    # -- finding -------------------------------------------------------------------------------------------

    def _unlocked(self, server: str) -> ServerPool:
        """The connections to a server. Raises PermissionDenied for a locked one, which only a configuration change can
        unlock, and InvalidArgument if there is no server with that name."""
        pool = self._find(server)
        if pool.server.locked:
            raise PermissionDenied(
                f"The MCP server {server!r} cannot be used: {pool.server.barred}. Only a person can change this, in "
                "Claude Code or in the configuration.",
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


def status_of(pool: ServerPool) -> ServerStatus:
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
