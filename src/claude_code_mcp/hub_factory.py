"""The hub of this machine, put together from its parts: where servers are configured, where tokens are kept, and how
the programs of servers are tied to our life."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .claude.user_config import build_environment, config_directory
from .config import Settings
from .hub.config_files import HubConfig, bar_address, hub_servers
from .hub.dependencies import HubDeps, Notified, hear_nothing
from .hub.hub import Hub
from .processes.environment import DEPTH, depth
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
    servers = hub_servers(settings, environment, Path(project or own_directory()))
    return servers if serving_at is None else bar_address(servers, *serving_at)


def marked_environment(variables: Mapping[str, str], *, nested: bool = True) -> tuple[dict[str, str], str]:
    """The environment of a server's program, marked as that of Claude Code is, and the mark.

    What a command starts for the person at the shell is not `nested`: it may be this very server.
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
    notified: Notified = hear_nothing,
    *,
    serving: bool = True,
) -> Hub:
    """A hub for these servers; it connects to none before somebody needs it. `serving` is whether it is a server's, and
    not that of a command."""
    means = HubDeps.usual(
        environment,
        settings.state_dir / "mcp",  # where `claude-code-mcp mcp login` leaves its tokens too
        Path(config_directory(environment)),
        child_environment=partial(marked_environment, nested=serving),
        notified=notified,
    )
    return Hub(configuration, settings, means)
