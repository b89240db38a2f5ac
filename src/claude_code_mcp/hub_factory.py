"""Makes the hub of this machine: which servers it has, where tokens are kept, and how the programs of servers are
marked, so that none is left behind when this process ends."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from .claude.user_config import config_directory
from .config import Settings, client_settings
from .hub.config_entry import fingerprint
from .hub.config_files import HubConfig, bar_address, hub_servers
from .hub.dependencies import HubDeps, OnNotification, ignore_notification
from .hub.hub import Hub
from .model.origin import ClientOrigin
from .processes.environment import DEPTH, build_environment, depth
from .processes.leftovers import new_mark
from .sessions.launcher import default_directory, own_directory
from .sessions.workplaces import environment_key

log = logging.getLogger(__name__)

_LINGER = 60.0
"""Seconds for which a hub that nobody uses is kept: clients are restarted, and sessions parked and resumed."""


def hub_configuration(
    settings: Settings,
    environment: Mapping[str, str],
    project: str | None = None,
    serving_at: tuple[str, int] | None = None,
) -> HubConfig:
    """The servers of a project, by default of the directory that we were started in; those that lead to the host and
    port that we serve at ourselves are locked. Blocks on the disk."""
    if project is None and settings.hub == "all":  # otherwise no directory counts, and ours may be gone
        project = own_directory()
    servers = hub_servers(settings, environment, Path(project or ""))
    return servers if serving_at is None else bar_address(servers, *serving_at)


def marked_environment(variables: Mapping[str, str], *, nested: bool = True) -> tuple[dict[str, str], str]:
    """The environment of a server's program, and the mark in it by which leftover processes are found.

    `nested` counts the program as one level below us; the programs of a command are not, since one of them may be this
    very server.
    """
    mark = new_mark()
    environment = build_environment(variables, {}, mark)
    if not nested:
        environment[DEPTH] = str(depth(variables))
    return environment, mark


def make_hub(
    settings: Settings,
    configuration: HubConfig,
    environment: Mapping[str, str],
    on_notification: OnNotification = ignore_notification,
    *,
    serving: bool = True,
) -> Hub:
    """A hub for these servers, connected to none of them yet. `serving` is False for the hub of a command."""
    deps = HubDeps.usual(
        environment,
        settings.state_dir / "mcp",  # where `claude-code-mcp mcp login` leaves its tokens too
        Path(config_directory(environment)),
        child_environment=partial(marked_environment, nested=serving),
        on_notification=on_notification,
    )
    return Hub(configuration, settings, deps)


# -- the hubs of several clients ------------------------------------------------------------------------------


@dataclass(eq=False)
class _SharedHub:
    hub: Hub
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    opened: bool = False
    adopted: bool = False

    async def open(self) -> Hub:
        async with self.opening:
            if not self.opened:
                await self.hub.__aenter__()
                self.opened = True
        return self.hub

    async def close(self) -> None:
        async with self.opening:
            if self.opened:
                await self.hub.__aexit__()


class Hubs:
    """One hub for each environment and configuration that clients have, shared by those that have the same.

    Two clients with other credentials never share the connection to a server: `${VARIABLES}` in its configuration may
    be theirs, and its program inherits their environment. A hub is opened for its first user, a connection or the
    process of a session, and closed `linger` seconds after it has lost the last. The files are read for every user, so
    that a client which comes after they were changed gets what they say now.
    """

    def __init__(
        self, settings: Settings, serving_at: tuple[str, int] | None = None, *, linger: float = _LINGER
    ) -> None:
        self._settings = settings
        self._serving_at = serving_at
        self._linger = linger
        self._hubs: dict[tuple[object, ...], _SharedHub] = {}
        self._closing: set[asyncio.Future[None]] = set()

    def adopt(self, hub: Hub, configuration: HubConfig, environment: Mapping[str, str]) -> None:
        """Has clients with this environment and configuration use this hub, which is open and somebody else's to
        close."""
        self._hubs[_key(environment, configuration)] = _SharedHub(hub, users=1, opened=True, adopted=True)

    @asynccontextmanager
    async def use(self, origin: ClientOrigin) -> AsyncIterator[Hub]:
        """The hub for this client, open within this context."""
        settings = client_settings(self._settings, origin.environment)
        project = default_directory(settings, origin.directory)
        configuration = await asyncio.to_thread(
            hub_configuration, settings, origin.environment, project, self._serving_at
        )
        key = _key(origin.environment, configuration)
        shared = self._hubs.get(key)
        if shared is None:
            for problem in configuration.problems:
                log.warning("an MCP server is left out: %s", problem)
            shared = self._hubs[key] = _SharedHub(make_hub(settings, configuration, origin.environment))
        shared.users += 1
        try:
            yield await shared.open()
        finally:
            shared.users -= 1
            if not shared.users:
                asyncio.get_running_loop().call_later(self._linger, self._close_unused, key, shared)

    def _close_unused(self, key: tuple[object, ...], shared: _SharedHub) -> None:
        """Runs a while after the last user has left; there may be another one by now, or this was done already."""
        if not shared.users and self._hubs.get(key) is shared:
            del self._hubs[key]
            closing = asyncio.ensure_future(shared.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Closes all hubs, those in use too."""
        hubs = [shared for shared in self._hubs.values() if not shared.adopted]
        self._hubs.clear()
        await asyncio.gather(*(shared.close() for shared in hubs), *self._closing)


def _key(environment: Mapping[str, str], configuration: HubConfig) -> tuple[object, ...]:
    """What tells two hubs apart."""
    servers = (
        (name, fingerprint(name, server.config), server.scope, server.barred, server.locked)
        for name, server in sorted(configuration.servers.items())
    )
    return environment_key(environment), *servers
