"""Creates the hub of this machine: its servers, token storage, and the marks on server programs by which leftovers are
found when this process ends."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from urllib.parse import quote

from ..core.config import Settings, client_settings
from ..core.errors import ClaudeCodeError, UpstreamUnavailable
from ..core.model.caller import ClientEnvironment
from ..core.model.paths import config_directory
from ..core.private_files import private_directory
from ..core.processes.environment import DEPTH, build_environment, depth
from ..core.processes.leftovers import new_mark
from ..core.sessions.client_environments import environment_key
from ..core.state.state_directory import database_in
from ..core.transcripts.watched_files import FileFollower, Following, facts_of, followable
from ..core.working_directory import default_directory, own_directory
from .auth.credentials import Vault
from .auth.identity_provider import IdentityProvider
from .config_entry import fingerprint
from .config_files import (
    AS_CONFIGURED,
    ConfigPaths,
    HubConfig,
    ProgramPlace,
    bar_address,
    denial_files,
    hub_paths,
    hub_servers,
    watched_files,
    with_later_denials,
)
from .hub import Hub
from .hub_deps import HubDeps, OnNotification, ignore_notification, usual_vault

log = logging.getLogger(__name__)

OnUpdate = Callable[[HubConfig], None]
OpenToSessions = Callable[[str], Collection[str]]
"""Returns the directories that sandboxed sessions can write to, given the default directory. Blocks."""
_LINGER = 60.0
"""Seconds for which an unused hub is kept: clients restart, and sessions are parked and resumed."""


def hub_configuration(
    settings: Settings,
    environment: Mapping[str, str],
    project: str | None = None,
    serving_at: tuple[str, int] | None = None,
) -> HubConfig:
    """The servers of a project, by default of our start directory; servers at our own address are locked. Blocks on the
    disk."""
    return HubSource(settings, environment, project, serving_at).read()


@dataclass(frozen=True)
class HubSource:
    """Where the configuration of a hub comes from; its methods block on the disk."""

    settings: Settings
    environment: Mapping[str, str] = field(hash=False)
    project: str | None = None
    serving_at: tuple[str, int] | None = None
    open_to_sessions: OpenToSessions | None = field(default=None, hash=False)

    def read(self) -> HubConfig:
        servers = hub_servers(self.settings, self.environment, self._project(), programs=self.programs())
        return servers if self.serving_at is None else bar_address(servers, *self.serving_at)

    def renewed(self, before: HubConfig) -> HubConfig:
        """The new configuration of a hub with that configuration. While a file cannot be read, as during an edit, the
        servers stay unchanged; new denials apply anyway."""
        try:
            read = self.read()
            paths = hub_paths(self.settings, self.environment, self._project())
            if paths is None or not read.is_incomplete:
                return read
            denied = with_later_denials(before, replace(paths, programs=self.programs()), self.environment)
            return replace(denied, problems=read.problems)
        except (ClaudeCodeError, OSError) as error:  # our directory is gone
            log.warning("the MCP server configuration cannot be read: %s", error)
            return LaterDenials(self).renewed(before)

    def files(self) -> list[Path]:
        """The files whose changes may change it."""
        paths = hub_paths(self.settings, self.environment, self._project())
        return watched_files(paths) if paths is not None else []

    def programs(self) -> ProgramPlace:
        """Where its programs run: in our own directory, if sandboxed sessions can write to others."""
        if self.open_to_sessions is None:
            return AS_CONFIGURED
        default = default_directory(self.settings)
        paths = {*self.open_to_sessions(default), *self.open_to_sessions(self.project or default)}
        own = str(private_directory(self.settings.state_dir / "mcp" / "programs")) if paths else None
        return ProgramPlace(own, tuple(sorted(paths)))

    def _project(self) -> Path:
        if (
            self.project is None and self.settings.hub == "all"
        ):  # otherwise no directory counts, and ours may have been removed
            return Path(own_directory())
        return Path(self.project or "")


@dataclass
class LaterDenials:
    """A source that only removes servers: applies an organisation's denials to a hub whose users may be in several
    projects, so that no project's files can be watched for it."""

    source: HubSource

    def renewed(self, before: HubConfig) -> HubConfig:
        paths = self._paths()
        return before if paths is None else with_later_denials(before, paths, self.source.environment)

    def files(self) -> list[Path]:
        paths = self._paths()
        return denial_files(paths) if paths is not None else []

    def _paths(self) -> ConfigPaths | None:
        paths = hub_paths(self.source.settings, self.source.environment, Path(os.sep))
        return None if paths is None else replace(paths, project=None)


# -- changes of the files --------------------------------------------------------------------------------------


@asynccontextmanager
async def following(
    hub: Hub, configuration: HubConfig, source: HubSource | LaterDenials, on_update: OnUpdate | None = None
) -> AsyncIterator[None]:
    """Context in which the hub follows changes of its files; `on_update` is called with the new configuration."""
    task = asyncio.create_task(_follow(hub, configuration, source, on_update))
    try:
        yield
    finally:
        task.cancel()
        # Waited for: it must not change a hub that is being closed.
        await asyncio.wait([task])


async def _follow(
    hub: Hub, configuration: HubConfig, source: HubSource | LaterDenials, on_update: OnUpdate | None
) -> None:
    """Watch the files, and the parent directories of missing ones. The list of files is determined again after each
    change: a settings directory may have a new one."""
    follower, changed, seen = FileFollower(), asyncio.Event(), None
    paths: Sequence[Path] = ()
    while True:
        paths, targets, _ = await asyncio.to_thread(_look_at, source, paths)
        async with _waking(follower, targets, changed):
            while True:
                # Also checked once at the start: a change may have happened between reading and watching.
                paths, found, now = await asyncio.to_thread(_look_at, source, paths)
                # Other files count now: watch them before reading them.
                if found != targets:
                    break
                if (paths, now) != seen:
                    # Noted before it is read: changes during the read count as another change.
                    seen = paths, now
                    configuration = await _update(hub, configuration, source)
                    if on_update is not None:
                        on_update(configuration)
                await changed.wait()
                changed.clear()


def _look_at(source: HubSource | LaterDenials, before: Sequence[Path]) -> tuple[Sequence[Path], set[str], object]:
    """The current files, the paths to watch for them, and their fingerprint."""
    with suppress(ClaudeCodeError, OSError):  # our directory is gone
        before = source.files()
    return before, {followable(str(path)) for path in before}, [facts_of(path) for path in before]


@asynccontextmanager
async def _waking(follower: FileFollower, targets: Collection[str], changed: asyncio.Event) -> AsyncIterator[None]:
    """Context in which `changed` is set whenever one of these changes."""

    async def wait_for(file: Following) -> None:
        while True:
            await file.changed()
            changed.set()

    async with AsyncExitStack() as stack:
        followed = [await stack.enter_async_context(follower.follow(target)) for target in targets]
        tasks = [asyncio.create_task(wait_for(file)) for file in followed]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _update(hub: Hub, configuration: HubConfig, source: HubSource | LaterDenials) -> HubConfig:
    """Apply the current files to the hub; return the new configuration."""
    read = await asyncio.to_thread(source.renewed, configuration)
    for problem in read.problems:
        if problem not in configuration.problems:
            log.warning("an MCP server is skipped: %s", problem)
    if read != configuration:
        log.info("the MCP server configuration changed; the servers are now: %s", ", ".join(read.servers) or "none")
        hub.apply(read)
    return read


def marked_environment(variables: Mapping[str, str], *, nested: bool = True) -> tuple[dict[str, str], str]:
    """The environment of a server's program, and the mark in it by which leftover processes are found.

    `nested` counts the program as one level below us; a command's programs are not, since one of them may be this
    server itself.
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
    principal: str = "",
    programs: ProgramPlace = AS_CONFIGURED,
) -> Hub:
    """A hub for these servers, not connected yet. `serving` is False for a command's hub. A hub for one `principal` has
    separate tokens and memory, and does not use Claude Code's sign-ins."""
    directory = settings.state_dir / "mcp"  # `claude-code-mcp mcp login` also stores its tokens there
    if principal:
        directory = directory / "principals" / quote(principal, safe="")
    vault = usual_vault(directory, principal)
    deps = HubDeps(
        environment,
        database_in(settings.state_dir),
        vault,
        Path(config_directory(environment)),
        child_environment=partial(marked_environment, nested=serving),
        on_notification=on_notification,
        identity_provider=_identity_provider(settings, vault),
        client_document=settings.client_metadata_url,
        uses_claude_sign_ins=not principal,
        principal=principal,
        programs=programs,
    )
    return Hub(configuration, settings, deps)


def _identity_provider(settings: Settings, vault: Vault) -> IdentityProvider | None:
    if settings.identity_provider is None:
        return None
    secret = settings.identity_provider_secret
    return IdentityProvider(
        settings.identity_provider,
        settings.identity_provider_client,
        vault,
        None if secret is None else secret.get_secret_value(),
        settings.identity_provider_port,
        settings.identity_provider_token_file,
    )


# -- the hubs of several clients ------------------------------------------------------------------------------


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
            if self._opening is None or self._opening.done():  # over, and not open: it has failed
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
    change gets the new configuration; a hub of the hub's own file also follows it.
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
            # Users of a hub of all servers may be in other projects, where other files count.
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
        """Runs some time after the last user has left; there may be a new user by now, or it may already be closed."""
        if not shared.users and self._hubs.get(shared.key) is shared:
            del self._hubs[shared.key]
            closing = asyncio.ensure_future(shared.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close all hubs, including those in use. No other is opened afterwards."""
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
