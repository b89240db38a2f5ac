"""The connections of a hub to one server: a shared one, and separate ones where callers must not share.

A server that depends on its caller's directory (it has a relative path among its arguments or a reference such as
`${workspaceFolder}`, or it has asked for roots) has one connection for each directory. A server on a pipe that asks
questions does not say which call a question belongs to, so each caller gets a separate connection. Requests for roots
and questions are detected in use and remembered; until then all callers share. A `Route` leads one caller to the
right connection of a server.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from .client_session import NO_SIDE, CallerSide, MovedElsewhere, Requester, UpstreamClient, request_with_input
from .config_entry import HttpConfig, depends_on_directory, fingerprint
from .config_files import ConfiguredServer
from .reconnection import ConnectionState
from .server_memory import Offer
from .streams import JsonObject
from .upstream import Upstream, UpstreamContext, Watcher

log = logging.getLogger(__name__)

_IDLE = 300.0
"""Seconds for which an unused connection of one directory or caller is kept."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares a connection: all callers, the callers in one directory, one caller, or one caller in one
    directory."""

    directory: str | None = None
    caller: str | None = None


class ServerPool:
    """All connections to one server. `primary` is the first of them; it exists even while it is not connected."""

    def __init__(self, server: ConfiguredServer, context: UpstreamContext, start: Callable[[Upstream], None]) -> None:
        """`start` runs the owner task of a connection that is added after the hub was entered."""
        self.server = server
        self.key = fingerprint(server.name, server.config)
        self.traits = context.memory.traits(self.key)
        self._context = context
        self._start = start
        self._names_directory = depends_on_directory(server.config)
        self._watchers: set[Watcher] = set()
        self._users: dict[Upstream, int] = {}
        self.primary = self._new(context.deps.directory)
        # If the server depends on the directory, this is the connection for ours: otherwise a second one would be made.
        own = Sharing(context.deps.directory if self.depends_on_directory else None)
        self._connections: dict[Sharing, Upstream] = {own: self.primary}

    @property
    def connections(self) -> list[Upstream]:
        return list(self._connections.values())

    @property
    def shown(self) -> Upstream:
        """The connection whose status is shown for the server: a working one, if there is one."""
        connected = (each for each in self.connections if each.client is not None)
        return next(connected, self.primary)

    @property
    def is_disabled(self) -> bool:
        return self.primary.connection.state is ConnectionState.DISABLED

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` on every change of any connection. Returns a function that ends this."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def own_name(self, tool: str) -> str | None:
        """The server's own name for a tool with this name here; None if there is no such usable tool."""
        config = self.server.config
        has_rules = config.tool_overrides or config.exclude_tools or config.include_tools is not None
        return config.own_name(tool) if has_rules else tool

    def route(self, caller: str = "", directory: str | None = None) -> "Route":
        """The route of a caller to the server; the caller must close it."""
        return Route(self, caller, directory or self._context.deps.directory)

    # -- which connection ---------------------------------------------------------------------------------------

    def select(self, caller: str, directory: str) -> Upstream:
        """The connection for a caller in a directory; created if it does not exist."""
        sharing = self._sharing(caller, directory)
        found = self._connections.get(sharing)
        if found is None:
            return self._add(sharing, directory)
        if sharing.directory is None and found.is_idle:
            found.directory = directory  # unused so far: this caller's, unless the directory does not matter
        return found

    def existing(self, caller: str, directory: str | None) -> Upstream:
        """A caller's existing connection, to read what the server offers; the primary one if the caller has none, so
        that reading never starts a program for each caller."""
        found = self._connections.get(self._sharing(caller, directory or self._context.deps.directory))
        return found if found is not None and found.client is not None else self.primary

    def _sharing(self, caller: str, directory: str) -> Sharing:
        mixes_callers = self.traits.asks_questions and not isinstance(self.server.config, HttpConfig)
        return Sharing(directory if self.depends_on_directory else None, caller if mixes_callers else None)

    def own(self, caller: str, directory: str) -> Upstream:
        """The connection that only this caller uses."""
        sharing = Sharing(directory if self.depends_on_directory else None, caller)
        return self._connections.get(sharing) or self._add(sharing, directory)

    @property
    def depends_on_directory(self) -> bool:
        return self._names_directory or self.traits.asks_for_roots

    def _add(self, sharing: Sharing, directory: str) -> Upstream:
        upstream = self._connections[sharing] = self._new(directory)
        if self.is_disabled:
            upstream.disable(self.primary.connection.reason or "disabled")
        self._start(upstream)
        return upstream

    def _new(self, directory: str) -> Upstream:
        upstream = Upstream(self.server, self._context, directory)
        upstream.on_roots_asked = lambda: self._roots_asked(upstream)
        upstream.watch(self._changed)
        return upstream

    def _roots_asked(self, upstream: Upstream) -> None:
        """Note that the server depends on the directory; from now on, the connection it asked on serves one only."""
        for sharing, connection in list(self._connections.items()):
            if connection is upstream and sharing.directory is None:
                del self._connections[sharing]
                self._connections[Sharing(upstream.directory, sharing.caller)] = upstream

    def _changed(self, what: str) -> None:
        for watcher in list(self._watchers):
            watcher(what)

    # -- users of a connection ---------------------------------------------------------------------------------------

    def enter(self, upstream: Upstream) -> None:
        self._users[upstream] = self._users.get(upstream, 0) + 1

    def leave(self, upstream: Upstream) -> None:
        """End a connection of one directory or caller `_IDLE` seconds after its last user has left."""
        self._users[upstream] -= 1
        if not self._users[upstream] and upstream is not self.primary:
            asyncio.get_running_loop().call_later(_IDLE, self._end_unused, upstream)

    def _end_unused(self, upstream: Upstream) -> None:
        # It may be in use again, or an earlier timer may have ended it.
        if self._users.get(upstream) == 0:
            del self._users[upstream]
            self._connections = {key: each for key, each in self._connections.items() if each is not upstream}
            upstream.close()
            for kind in ("tools", "resources", "prompts"):  # this connection may have offered other ones
                self._changed(kind)

    def close(self) -> None:
        for upstream in self.connections:
            upstream.close()


class Route:
    """Leads one caller in one directory to a server's connection. It keeps the same connection as long as possible,
    since a server may keep the state of earlier calls in memory."""

    def __init__(self, pool: ServerPool, caller: str, directory: str) -> None:
        self._pool = pool
        self._caller = caller
        self._directory = directory
        self._watcher: Watcher | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._upstream = pool.select(caller, directory)
        pool.enter(self._upstream)

    @property
    def name(self) -> str:
        return self._pool.server.name

    @property
    def offer(self) -> Offer | None:
        """What the server offered when it was last connected; None if that is unknown or not usable."""
        pending = self._upstream.connection.state is ConnectionState.PENDING
        return self._pool.traits.offer if pending else None

    def allows(self, tool: object) -> bool:
        """Whether the configuration allows a tool with this name."""
        return isinstance(tool, str) and self._pool.own_name(tool) is not None

    def roots(self) -> JsonObject:
        """The result of `roots/list` for this caller."""
        return self._fitting().roots.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def connected(self) -> UpstreamClient:
        """The connection; connects first if needed. Raises UpstreamUnavailable."""
        return await self._fitting().connected()

    async def request(self, method: str, params: JsonObject, side: CallerSide = NO_SIDE) -> JsonObject:
        """Send a request as `Upstream.request` does, with the server's own name for a tool. If a question of the server
        cannot be assigned to one of several callers' calls, the call is abandoned on the shared connection and sent
        again on a connection that only this caller uses."""
        if method == "tools/call":
            params = {**params, "name": self._pool.own_name(str(params.get("name"))) or params.get("name")}
        requester = Requester(self._caller, self._directory)
        try:
            return await self._fitting().request(method, params, side, requester)
        except MovedElsewhere:
            self._move_to(self._pool.own(self._caller, self._directory))
        return await self._upstream.request(method, params, side, requester)

    async def answered(self, method: str, params: JsonObject, side: CallerSide) -> JsonObject:
        """Send a request, and repeat it with the answers of `side` while the result requests input."""

        async def send(answers: JsonObject) -> JsonObject:
            return await self.request(method, {**params, **answers}, side)

        return await request_with_input(send, side, self.roots)

    async def follow(self, uri: str) -> None:
        """Subscribe to the changes of a resource, on this connection and all later ones. Raises UpstreamUnavailable, or
        MCPError if the server refuses."""
        upstream = self._fitting()
        await upstream.changes.follow(await upstream.connected(), uri)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` on every change of the connection in use, until `close`."""
        self._watcher = watcher
        self._unwatch()
        self._unwatch = self._upstream.watch(watcher)

    def close(self) -> None:
        self._unwatch()
        self._unwatch = lambda: None
        self._pool.leave(self._upstream)

    def _fitting(self) -> Upstream:
        """The connection in use; another one if that now belongs to another directory."""
        if self._pool.depends_on_directory and self._upstream.directory != self._directory:
            self._move_to(self._pool.select(self._caller, self._directory))
        return self._upstream

    def _move_to(self, upstream: Upstream) -> None:
        # The new connection is counted first: if both are the same, its count must not drop to zero in between.
        self._pool.enter(upstream)
        self._pool.leave(self._upstream)
        self._upstream = upstream
        if self._watcher is not None:
            self.watch(self._watcher)
