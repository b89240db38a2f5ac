"""The hubs of several clients: one for each environment and configuration, shared by equal ones."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from ..core.config import Settings, client_settings
from ..core.errors import UpstreamUnavailable
from ..core.model.caller import ClientEnvironment
from ..core.sessions.callers.client_environments import environment_key
from ..core.working_directory import default_directory
from .config_changes import HubSource, LaterDenials, OpenToSessions, following
from .config_entry import fingerprint
from .config_files import HubConfig
from .factory import make_hub
from .hub import Hub

log = logging.getLogger(__name__)

_LINGER = 60.0
"""Seconds for which an unused hub is kept: clients restart, and sessions are parked and resumed."""


@dataclass(eq=False)
class _SharedHub:
    hub: Hub
    users: int = 0
    adopted: bool = False
    key: tuple[object, ...] = ()
    _opening: asyncio.Task[None] | None = None
    _context: AsyncExitStack | None = None
    """Set when the hub is open, and not before."""

    async def open(self, follow: Callable[[Hub], AbstractAsyncContextManager[None]]) -> Hub:
        """Open the hub for its first user and follow its files from then on. A failure is raised for all waiters; later
        callers try again."""
        if self._context is None and not self.adopted:
            if self._opening is None or self._opening.done():  # done but not open: it has failed
                self._opening = asyncio.create_task(self._enter(follow))
            # In a separate, shielded task: the first caller may be cancelled, and a half-opened hub can be neither used
            # nor opened again.
            await asyncio.shield(self._opening)
        return self.hub

    async def _enter(self, follow: Callable[[Hub], AbstractAsyncContextManager[None]]) -> None:
        async with AsyncExitStack() as context:
            await context.enter_async_context(self.hub)
            await context.enter_async_context(follow(self.hub))
            self._context = context.pop_all()

    async def close(self) -> None:
        if self._opening is not None:
            # It may no longer be needed, but an opened hub must be closed.
            await asyncio.wait([self._opening])
        if self._context is not None:
            await self._context.aclose()


class Hubs:
    """One hub for each environment and configuration of clients, shared by equal ones.

    Clients with different credentials never share a connection to a server: `${VARIABLES}` in its configuration may be
    theirs, and its program inherits their environment. A hub is opened for its first user, a connection or a session's
    process, and closed `linger` seconds after its last. The files are read for every user, so that a client after a
    change gets the new configuration; with `hub = own`, an open hub also follows changes of its file.
    """

    def __init__(
        self,
        settings: Settings,
        serving_at: tuple[str, int] | None = None,
        *,
        linger: float = _LINGER,
        open_to_sessions: OpenToSessions | None = None,
    ) -> None:
        self._settings = settings
        self._open_to_sessions = open_to_sessions
        self._serving_at = serving_at
        self._linger = linger
        self._hubs: dict[tuple[object, ...], _SharedHub] = {}
        self._closing: set[asyncio.Future[None]] = set()
        self._closed = False

    def adopt(self, hub: Hub, configuration: HubConfig, environment: Mapping[str, str]) -> None:
        """Let clients with this environment and configuration use this open hub, which its owner closes."""
        key = _key(environment, configuration)
        self._hubs[key] = _SharedHub(hub, users=1, adopted=True, key=key)

    def updated(self, hub: Hub, configuration: HubConfig, environment: Mapping[str, str]) -> None:
        """Note a hub's new configuration, so that clients with the same one find it."""
        key, shared = _key(environment, configuration), next((s for s in self._hubs.values() if s.hub is hub), None)
        if shared is not None and key not in self._hubs:
            self._hubs[key] = self._hubs.pop(shared.key)
            shared.key = key

    @asynccontextmanager
    async def use(self, client: ClientEnvironment) -> AsyncIterator[Hub]:
        """The hub for this client, open within this context. Raises UpstreamUnavailable after `close`."""
        settings = client_settings(self._settings, client.variables)
        project = default_directory(settings, client.directory)
        source = HubSource(settings, client.variables, project, self._serving_at, self._open_to_sessions)
        configuration = await asyncio.to_thread(source.read)
        key = _key(client.variables, configuration)
        if key not in self._hubs:
            programs = await asyncio.to_thread(source.programs)
            if self._closed:  # anything opened from now on would never be closed
                raise UpstreamUnavailable("The MCP servers are not available: the server is closing.", state="closing")
            # Checked again: an equal client may have arrived during the disk read, and one of the two hubs would be
            # neither shared nor closed.
            if key not in self._hubs:
                for problem in configuration.problems:
                    log.warning("an MCP server is skipped: %s", problem)
                hub = make_hub(settings, configuration, client.variables, programs=programs)
                self._hubs[key] = _SharedHub(hub, key=key)
        shared = self._hubs[key]

        def follow(hub: Hub) -> AbstractAsyncContextManager[None]:
            renewed = partial(self.updated, hub, environment=client.variables)
            # With `hub = all`, users of this hub may be in other projects, where other files count.
            followed = source if settings.hub == "own" else LaterDenials(source)
            return following(hub, configuration, followed, renewed)

        # Counted before the await: a hub that is being opened must not be closed as unused.
        shared.users += 1
        try:
            yield await shared.open(follow)
        finally:
            shared.users -= 1
            if not shared.users:
                asyncio.get_running_loop().call_later(self._linger, self._close_unused, shared)

    def _close_unused(self, shared: _SharedHub) -> None:
        """Close a hub some time after its last user has left, unless it has a new user or is already closed."""
        if not shared.users and self._hubs.get(shared.key) is shared:
            del self._hubs[shared.key]
            closing = asyncio.ensure_future(shared.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all hubs, including those in use. No other is opened afterward."""
        self._closed = True
        hubs = [shared for shared in self._hubs.values() if not shared.adopted]
        self._hubs.clear()
        await asyncio.gather(*(shared.close() for shared in hubs), *self._closing)


def _key(environment: Mapping[str, str], configuration: HubConfig) -> tuple[object, ...]:
    """The key that distinguishes hubs."""
    servers = (
        (name, fingerprint(name, server.config), server.scope, server.barred, server.locked)
        for name, server in sorted(configuration.servers.items())
    )
    return environment_key(environment), *servers
