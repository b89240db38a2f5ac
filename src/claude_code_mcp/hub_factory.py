"""Makes the hub of this machine: which servers it has, where tokens are kept, and how the programs of servers are
marked, so that none is left behind when this process ends."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .claude.user_config import config_directory
from .config import Settings
from .hub.config_files import HubConfig, bar_address, hub_servers
from .hub.dependencies import HubDeps, OnNotification, ignore_notification
from .hub.hub import Hub
from .processes.environment import DEPTH, build_environment, depth
from .processes.leftovers import new_mark
from .sessions.launcher import own_directory


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
