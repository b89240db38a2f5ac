"""Follows the files that configure a hub's servers, and applies their changes."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..core.config import Settings
from ..core.errors import ClaudeCodeError
from ..core.private_files import private_directory
from ..core.transcripts.watched_files import FileFollower, Following, facts_of, followable
from ..core.working_directory import default_directory, own_directory
from .config_files import (
    ConfigPaths,
    HubConfig,
    bar_address,
    denial_files,
    hub_paths,
    hub_servers,
    watched_files,
    with_later_denials,
)
from .hub import Hub
from .program_place import AS_CONFIGURED, ProgramPlace

log = logging.getLogger(__name__)


OnUpdate = Callable[[HubConfig], None]
OpenToSessions = Callable[[str], Collection[str]]
"""Returns the directories that sandboxed sessions can write to, given the default directory. Blocks."""


@dataclass(frozen=True)
class HubSource:
    """The files that configure a hub. All methods block on the disk."""

    settings: Settings
    environment: Mapping[str, str] = field(hash=False)
    project: str | None = None
    serving_at: tuple[str, int] | None = None
    open_to_sessions: OpenToSessions | None = field(default=None, hash=False)

    def read(self) -> HubConfig:
        servers = hub_servers(self.settings, self.environment, self._project(), programs=self.programs())
        return servers if self.serving_at is None else bar_address(servers, *self.serving_at)

    def renewed(self, before: HubConfig) -> HubConfig:
        """The new configuration of a hub that has `before`. While a file cannot be read, as during an edit, the servers
        stay unchanged; new denials apply anyway."""
        try:
            read = self.read()
            paths = hub_paths(self.settings, self.environment, self._project())
            if paths is None or not read.is_incomplete:
                return read
            denied = with_later_denials(before, replace(paths, programs=self.programs()), self.environment)
            return replace(denied, problems=read.problems)
        except (ClaudeCodeError, OSError) as error:  # our working directory was removed
            log.warning("the MCP server configuration cannot be read: %s", error)
            return LaterDenials(self).renewed(before)

    def files(self) -> list[Path]:
        """The files to watch for changes."""
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
    """A source that only removes servers: applies an organization's denials to a hub whose users may be in several
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
        # Wait for the task: it must not change a hub that is being closed.
        await asyncio.wait([task])


async def _follow(
    hub: Hub, configuration: HubConfig, source: HubSource | LaterDenials, on_update: OnUpdate | None
) -> None:
    """Watch the files, and the parent directories of missing ones. The list of files is determined again after each
    change: a settings directory may have a new one."""
    follower, changed, seen = FileFollower(), asyncio.Event(), None
    paths: Sequence[Path] = ()
    while True:
        paths, targets, _ = await asyncio.to_thread(_read_source, source, paths)
        async with _waking(follower, targets, changed):
            while True:
                # Also checked once at the start: a change may have happened between reading and watching.
                paths, found, now = await asyncio.to_thread(_read_source, source, paths)
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


def _read_source(source: HubSource | LaterDenials, before: Sequence[Path]) -> tuple[Sequence[Path], set[str], object]:
    """The current files, the paths to watch for them, and their fingerprint."""
    with suppress(ClaudeCodeError, OSError):  # our working directory was removed
        before = source.files()
    return before, {followable(str(path)) for path in before}, [facts_of(path) for path in before]


@asynccontextmanager
async def _waking(follower: FileFollower, targets: Collection[str], changed: asyncio.Event) -> AsyncIterator[None]:
    """Context in which `changed` is set whenever one of these files changes."""

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
