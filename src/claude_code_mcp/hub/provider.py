"""Provides the hubs of sessions: one for this process, and one for each client with a different environment.

Without configured MCP servers the hub's modules are not loaded; sessions then have a `LazyHub` without servers. When
the hub's own file appears, the hub is loaded and replaces it, also in running sessions.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..core.config import Settings
from ..core.errors import InvalidArgument
from ..core.model.caller import LOCAL, ClientEnvironment
from ..core.model.question import AskPerson
from ..core.service import Service

if TYPE_CHECKING:
    from .channel_relay import ChannelRelay
    from .client_hubs import Hubs
    from .config_changes import HubSource
    from .config_files import HubConfig
    from .hub import Hub
    from .session_endpoint import SessionEndpoint

log = logging.getLogger(__name__)

_OnServersChanged = Callable[[frozenset[str]], None]


def uses_hub(settings: Settings) -> bool:
    """Whether there is a hub now: there are servers, or clients may ask for them. Blocks on the disk."""
    toolsets = {"hub", "hub-tools", "hub-search"} & set(settings.toolsets)
    return settings.hub != "off" and bool(settings.hub == "all" or toolsets or settings.hub_file.exists())


def signs_in_apart(settings: Settings) -> bool:
    """Whether callers with separate tokens sign in to servers separately. Not by default if others are admitted too:
    callers with OAuth or through a proxy use the shared servers."""
    others = settings.oauth or settings.oauth_issuer is not None or settings.proxy_user_header is not None
    default = settings.http_tokens_file is not None and not others
    wanted = default if settings.principal_sign_in is None else settings.principal_sign_in
    return wanted and settings.hub != "off"


class LazyHub:
    """A placeholder without servers that becomes a hub later and then notifies its watchers."""

    def __init__(self) -> None:
        self.opened: Hub | None = None
        """What it has become; None until then."""
        self._watchers: dict[_OnServersChanged, Callable[[], None] | None] = {}
        """The watchers, each with the function that ends its watch of the hub."""

    def become(self, hub: "Hub") -> None:
        # Before they are notified: they read the servers at once.
        self.opened = hub
        # A copy: a notified watcher may end its watch.
        for watcher in list(self._watchers):
            self._watchers[watcher] = hub.watch_servers(watcher)
            if hub.servers:
                watcher(frozenset(hub.servers))

    @property
    def servers(self) -> tuple[str, ...]:
        return () if self.opened is None else self.opened.servers

    def offered(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        return () if self.opened is None else self.opened.offered(wanted)

    def watch_servers(self, watcher: _OnServersChanged) -> Callable[[], None]:
        self._watchers[watcher] = None if self.opened is None else self.opened.watch_servers(watcher)

        def unwatch() -> None:
            end = self._watchers.pop(watcher, None)
            if end is not None:
                end()

        return unwatch

    async def expand_prompt(
        self, server: str, prompt: str, arguments: Sequence[str], *, caller: str, directory: str
    ) -> str | None:
        if self.opened is None:
            return None
        return await self.opened.expand_prompt(server, prompt, arguments, caller=caller, directory=directory)

    def endpoint(
        self, server: str, push: Callable[[dict[str, Any]], None], *, caller: str, directory: str, ask: AskPerson
    ) -> "SessionEndpoint":
        if self.opened is None:
            raise InvalidArgument(f"There is no MCP server called {server!r}.", field="server")
        return self.opened.endpoint(server, push, caller=caller, directory=directory, ask=ask)


@dataclass(eq=False)
class _WaitingClient:
    """A client without a hub so far, for as long as its placeholder is in use."""

    environment: ClientEnvironment
    placeholder: LazyHub = field(default_factory=LazyHub)
    _context: AsyncExitStack = field(default_factory=AsyncExitStack)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _left: bool = False

    async def open(self, hubs: "Hubs") -> None:
        async with self._lock:
            # It may have disconnected during the wait for the lock; then a hub opened here would never be closed.
            if not self._left:
                self.placeholder.become(await self._context.enter_async_context(hubs.use(self.environment)))

    async def leave(self) -> None:
        # Before the lock: an opening that has not begun need not begin any more.
        self._left = True
        async with self._lock:
            await self._context.aclose()


class HubProvider:
    """An async context manager: within it `shared_hub` and `use` provide the hubs of sessions."""

    def __init__(
        self,
        settings: Settings,
        serving_at: tuple[str, int] | None = None,
        principals: Collection[str] = (),
        open_to_sessions: Callable[[str], Collection[str]] | None = None,
    ) -> None:
        """`serving_at` is this server's own host and port; `principals` are the callers with separate tokens;
        `open_to_sessions` returns the directories that sandboxed sessions can write to, given the default directory."""
        self._settings = settings
        self._open_to_sessions = open_to_sessions
        self._serving_at = serving_at
        self._context = AsyncExitStack()
        self._awaited = LazyHub()
        self._waiting: set[_WaitingClient] = set()
        self._hubs: Hubs | None = None
        self._relay: ChannelRelay | None = None
        self._service: Service | None = None
        self._opening = asyncio.Lock()
        self._awaiting: asyncio.Task[None] | None = None
        self.hub: Hub | None = None
        """The hub of this process; None before it is opened."""
        self._apart = signs_in_apart(settings)
        apart = sorted({*principals} - {LOCAL}) if self._apart else ()
        self.hubs_by_principal: dict[str, Hub | LazyHub] = {principal: LazyHub() for principal in apart}
        """The hubs of callers that sign in separately."""

    async def __aenter__(self) -> "HubProvider":
        if await asyncio.to_thread(uses_hub, self._settings):
            await self._open(strict=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close this process's hub. Call this after `close`, when no session is left."""
        await self._context.aclose()

    @property
    def shared_hub(self) -> "Hub | LazyHub | None":
        """The hub of callers without a separate environment; None if there is no hub."""
        if self._settings.hub == "off":
            return None
        return self.hub or self._awaited

    def connect(self, service: Service) -> None:
        """Connect the running service: servers may send messages to its sessions; starts waiting for a missing hub."""
        self._service = service
        if self.hub is not None:
            self._connect_relay()
        elif self._settings.hub != "off":
            self._awaiting = asyncio.create_task(self._await_servers())

    def _connect_relay(self) -> None:
        if self._relay is not None and self._service is not None and self.hub is not None:
            self._relay.connect(self._service, self.hub)

    def connections(self) -> Iterator[tuple[str, str]]:
        """The servers of the shared and all separate hubs, with their connection states."""
        for hub in (self.hub, *self.hubs_by_principal.values()):
            if hub is not None and hub.opened is not None:
                yield from ((status.name, status.state) for status in hub.opened.status())

    # -- the hub of this process ----------------------------------------------------------------------------------

    async def _open(self, *, strict: bool) -> None:
        """Create and open the hubs, all or none. With `strict`, the hub's own file must be readable; otherwise the
        servers appear as soon as it is."""
        for module in (".client_hubs", ".channel_relay"):  # in a thread, since it takes a while
            await asyncio.to_thread(import_module, module, __package__)
        from .channel_relay import ChannelRelay  # noqa: PLC0415 - a server without a hub does not pay for one
        from .client_hubs import Hubs  # noqa: PLC0415
        from .config_changes import following  # noqa: PLC0415
        from .factory import make_hub  # noqa: PLC0415

        settings = self._settings
        relay = ChannelRelay(settings.channels, settings.permission_channels)
        source = self._source()
        configuration = await asyncio.to_thread(source.read)
        for problem in configuration.problems:
            if strict and problem.entry is None and problem.file == settings.hub_file:
                raise InvalidArgument(f"The hub's file cannot be used: {problem}", field="hub_file")
            log.warning("an MCP server is skipped: %s", problem)
        programs = await asyncio.to_thread(source.programs)
        hub = make_hub(settings, configuration, os.environ, relay.on_notification, programs=programs)
        hubs = Hubs(settings, self._serving_at, open_to_sessions=self._open_to_sessions)
        updated = partial(hubs.updated, hub, environment=os.environ)
        own: dict[str, Hub] = {}
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(hub)
            hubs.adopt(hub, configuration, os.environ)
            await opened.enter_async_context(following(hub, configuration, source, updated))
            for principal in self.hubs_by_principal:
                own[principal] = await self._own_hub(principal, source, configuration, opened)
            self._context.push_async_exit(opened.pop_all())
        # Only when all are open, without an await in between: if one fails, all are tried again. Before waiters are
        # notified: `shared_hub` and `use` must have it by then.
        self.hub, self._hubs, self._relay = hub, hubs, relay
        awaited = [
            (self._awaited, hub),
            *((self.hubs_by_principal[principal], made) for principal, made in own.items()),
        ]
        self.hubs_by_principal |= own
        for waiting, made in awaited:
            if isinstance(waiting, LazyHub):
                waiting.become(made)

    def _source(self) -> "HubSource":
        from .config_changes import HubSource  # noqa: PLC0415

        settings = self._settings
        return HubSource(settings, os.environ, settings.default_cwd, self._serving_at, self._open_to_sessions)

    async def _own_hub(
        self, principal: str, source: "HubSource", configuration: "HubConfig", opened: AsyncExitStack
    ) -> "Hub":
        """A separate hub for one caller, open for as long as `opened` is."""
        from .config_changes import following  # noqa: PLC0415
        from .factory import make_hub  # noqa: PLC0415

        programs = await asyncio.to_thread(source.programs)
        made = make_hub(self._settings, configuration, os.environ, principal=principal, programs=programs)
        hub = await opened.enter_async_context(made)
        await opened.enter_async_context(following(made, configuration, source))
        return hub

    async def open_for(self, principal: str) -> str | None:
        """Open the hub of a caller added after the start, if each has one; returns why that is not possible before a
        restart, or None. Call this before admitting the caller."""
        if not self._apart or principal == LOCAL:
            return None
        # The lock is needed because the hubs may be opening right now, and must then include this caller's.
        async with self._opening:
            if principal in self.hubs_by_principal:
                return None
            if self.hub is None:
                self.hubs_by_principal[principal] = LazyHub()
                return None
            try:
                source = self._source()
                configuration = await asyncio.to_thread(source.read)
                async with AsyncExitStack() as opened:
                    own = await self._own_hub(principal, source, configuration, opened)
                    self._context.push_async_exit(opened.pop_all())
            except Exception:
                log.exception("the caller %s has no MCP servers", principal)
                return "its MCP servers cannot be opened; see the log"
            self.hubs_by_principal[principal] = own
        return None

    async def _await_servers(self) -> None:
        """Open the hubs when the hub's own file exists. Failures are logged and retried when the file changes; a client
        that connects in the meantime tries itself."""
        from ..core.transcripts.watched_files import FileFollower, facts_of, followable  # noqa: PLC0415

        file, follower, tried = self._settings.hub_file, FileFollower(), None
        while self.hub is None:
            target = await asyncio.to_thread(followable, str(file))
            async with follower.follow(target) as following:
                # Checked again now that the file is watched: it may have been created in between.
                if await asyncio.to_thread(followable, str(file)) != target:
                    continue
                # Checked before it is read: changes during the read count as another change.
                facts = await asyncio.to_thread(facts_of, file)
                if facts != tried and await self._try_to_open():
                    return
                tried = facts
                await following.changed()

    async def _try_to_open(self) -> bool:
        """Try to open the hub; return whether it is open. A failure is logged: there is no caller to report it to."""
        try:
            if not await asyncio.to_thread(uses_hub, self._settings):
                return False
            await self._open_late()
        except Exception:
            log.exception("the MCP servers in %s are unavailable until it is corrected", self._settings.hub_file)
            return False
        return True

    async def _open_late(self) -> None:
        """Open the hub once, now that there are servers, and pass it to the waiting clients."""
        async with self._opening:
            if self.hub is not None:
                return
            log.info("MCP servers are configured now: %s", self._settings.hub_file)
            await self._open(strict=False)
        self._connect_relay()
        assert self._hubs is not None
        for client in list(self._waiting):
            try:
                await client.open(self._hubs)
            except Exception:  # one client's files or environment must not affect others
                log.exception("the client in %s has no MCP servers", client.environment.directory)

    # -- the hubs of clients --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def use(self, environment: ClientEnvironment) -> "AsyncIterator[Hub | LazyHub | None]":
        """Context with the hub for this client, or a placeholder until there are servers."""
        if self._settings.hub == "off":
            yield None
            return
        if self._hubs is None and await asyncio.to_thread(uses_hub, self._settings):
            await self._open_late()  # the file was just written
        # Checked again: another client may have opened it during the disk access.
        if self._hubs is not None:
            async with self._hubs.use(environment) as hub:
                yield hub
        else:
            client = _WaitingClient(environment)
            self._waiting.add(client)
            try:
                yield client.placeholder
            finally:
                self._waiting.discard(client)
                await client.leave()

    async def close(self) -> None:
        """Close the hubs of clients, and stop waiting for servers."""
        if self._awaiting is not None:
            self._awaiting.cancel()
            # Awaited: it may be opening hubs, which are closed below.
            await asyncio.wait([self._awaiting])
        if self._hubs is not None:
            await self._hubs.close()
