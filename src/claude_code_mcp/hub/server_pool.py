"""The servers of a hub, and the connections to each: one that all share, and others where sharing would mix what
belongs apart.

A server that depends on the directory of its caller (a relative path among its arguments, a reference such as
`${workspaceFolder}`, or a question for roots at any time) has one connection for each directory. A server on a pipe
that asks questions does not say whose call it asks for, so each caller gets one of its own. Both show in use only, and
are remembered; until then everybody shares. A `Route` is the way of one caller to a server.
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
"""Seconds for which a connection of one directory or caller is kept when nobody uses it any more."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Who shares a connection: all, those in one directory, one caller, or one caller in one directory."""

    directory: str | None = None
    caller: str | None = None


class ServerPool:
    """All connections to one server. `primary` is the first of them, and is there even when nobody is connected."""

    def __init__(self, server: ConfiguredServer, context: UpstreamContext, start: Callable[[Upstream], None]) -> None:
        """`start` runs the owner task of a connection that was added after the hub was entered."""
        self.server = server
        self.key = fingerprint(server.name, server.config)
        self.traits = context.memory.traits(self.key)
        self._context = context
        self._start = start
        self._names_directory = depends_on_directory(server.config)
        self._watchers: set[Watcher] = set()
        self._users: dict[Upstream, int] = {}
        self.primary = self._new(context.deps.directory)
        # Of a server that depends on the directory it is the one of our own, or a second would be made for that.
        own = Sharing(context.deps.directory if self.depends_on_directory else None)
        self._connections: dict[Sharing, Upstream] = {own: self.primary}

    @property
    def connections(self) -> list[Upstream]:
        return list(self._connections.values())

    @property
    def shown(self) -> Upstream:
        """The connection that stands for the server in a status: one that works, if there is one."""
        connected = (each for each in self.connections if each.client is not None)
        return next(connected, self.primary)

    @property
    def is_disabled(self) -> bool:
        return self.primary.connection.state is ConnectionState.DISABLED

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        """Calls back on every change of any connection, until the function that it returns is called."""
        self._watchers.add(watcher)
        return lambda: self._watchers.discard(watcher)

    def own_name(self, tool: str) -> str | None:
        """The server's own name for a tool that is called so here; None where none is that may be used."""
        config = self.server.config
        has_rules = config.tool_overrides or config.exclude_tools or config.include_tools is not None
        return config.own_name(tool) if has_rules else tool

    def route(self, caller: str = "", directory: str | None = None) -> "Route":
        """The way of a caller to the server; to be closed."""
        return Route(self, caller, directory or self._context.deps.directory)

    # -- which connection ---------------------------------------------------------------------------------------

    def select(self, caller: str, directory: str) -> Upstream:
        """The connection for a caller in a directory, made if there is none yet."""
        sharing = self._sharing(caller, directory)
        found = self._connections.get(sharing)
        if found is None:
            return self._add(sharing, directory)
        if sharing.directory is None and found.is_idle:
            found.directory = directory  # nobody uses it yet: it is the caller's, until it turns out not to matter
        return found

    def existing(self, caller: str, directory: str | None) -> Upstream:
        """The connection that a caller has already, to look at what the server offers it; the first of all where it has
        none, so that a look starts no program for each caller."""
        found = self._connections.get(self._sharing(caller, directory or self._context.deps.directory))
        return found if found is not None and found.client is not None else self.primary

    def _sharing(self, caller: str, directory: str) -> Sharing:
        mixes_callers = self.traits.asks_questions and not isinstance(self.server.config, HttpConfig)
        return Sharing(directory if self.depends_on_directory else None, caller if mixes_callers else None)

    def own(self, caller: str, directory: str) -> Upstream:
        """The connection of this caller alone."""
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
        """The server depends on the directory after all: the connection it asks on belongs to one from now on."""
        for sharing, connection in list(self._connections.items()):
            if connection is upstream and sharing.directory is None:
                del self._connections[sharing]
                self._connections[Sharing(upstream.directory, sharing.caller)] = upstream

    def _changed(self, what: str) -> None:
        for watcher in list(self._watchers):
            watcher(what)

    # -- how long -----------------------------------------------------------------------------------------------

    def enter(self, upstream: Upstream) -> None:
        self._users[upstream] = self._users.get(upstream, 0) + 1

    def leave(self, upstream: Upstream) -> None:
        """Ends a connection of one directory or caller, a while after the last of its users left."""
        self._users[upstream] -= 1
        if not self._users[upstream] and upstream is not self.primary:
            asyncio.get_running_loop().call_later(_IDLE, self._end_unused, upstream)

    def _end_unused(self, upstream: Upstream) -> None:
        # It may be in use again, or an earlier timer has ended it.
        if self._users.get(upstream) == 0:
            del self._users[upstream]
            self._connections = {key: each for key, each in self._connections.items() if each is not upstream}
            upstream.close()
            for kind in ("tools", "resources", "prompts"):  # what it had alone is gone with it
                self._changed(kind)

    def close(self) -> None:
        for upstream in self.connections:
            upstream.close()


class Route:
    """The way of one caller in one directory to a server. It stays on its connection for as long as that fits, since a
    server may keep what earlier calls did in its memory."""

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
        """What the server offered when it was last connected to; None where that is not known or of no use."""
        pending = self._upstream.connection.state is ConnectionState.PENDING
        return self._pool.traits.offer if pending else None

    def allows(self, tool: object) -> bool:
        """Whether the configuration lets a tool through under this name."""
        return isinstance(tool, str) and self._pool.own_name(tool) is not None

    def roots(self) -> JsonObject:
        """The result of `roots/list` for this caller."""
        return self._fitting().roots.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def connected(self) -> UpstreamClient:
        """The connection, made now if there is none. Raises UpstreamUnavailable."""
        return await self._fitting().connected()

    async def request(self, method: str, params: JsonObject, side: CallerSide = NO_SIDE) -> JsonObject:
        """Sends a request, as `Upstream.request` does, a call of a tool by the server's own name for it. A call that
        cannot be told from the calls of others when the server asks about all of them is given up there, and sent again
        on a connection of this caller alone."""
        if method == "tools/call":
            params = {**params, "name": self._pool.own_name(str(params.get("name"))) or params.get("name")}
        requester = Requester(self._caller, self._directory)
        try:
            return await self._fitting().request(method, params, side, requester)
        except MovedElsewhere:
            self._move_to(self._pool.own(self._caller, self._directory))
        return await self._upstream.request(method, params, side, requester)

    async def answered(self, method: str, params: JsonObject, side: CallerSide) -> JsonObject:
        """Sends a request, and again with what `side` answers for as long as the server wants to know more."""

        async def send(answers: JsonObject) -> JsonObject:
            return await self.request(method, {**params, **answers}, side)

        return await request_with_input(send, side, self.roots)

    async def follow(self, uri: str) -> None:
        """Asks the server to tell when a resource changes, and again whenever a connection is made anew. Raises
        UpstreamUnavailable, or MCPError where the server refuses."""
        upstream = self._fitting()
        await upstream.changes.follow(await upstream.connected(), uri)

    def watch(self, watcher: Watcher) -> None:
        """Calls back on every change of the connection in use, until `close`."""
        self._watcher = watcher
        self._unwatch()
        self._unwatch = self._upstream.watch(watcher)

    def close(self) -> None:
        self._unwatch()
        self._unwatch = lambda: None
        self._pool.leave(self._upstream)

    def _fitting(self) -> Upstream:
        """The connection in use, or another where it has turned out to be that of another directory."""
        if self._pool.depends_on_directory and self._upstream.directory != self._directory:
            self._move_to(self._pool.select(self._caller, self._directory))
        return self._upstream

    def _move_to(self, upstream: Upstream) -> None:
        # Entered first: the count of a connection must not touch zero on the way.
        self._pool.enter(upstream)
        self._pool.leave(self._upstream)
        self._upstream = upstream
        if self._watcher is not None:
            self.watch(self._watcher)
