"""The hub of this machine, put together from its parts: where servers are configured, where tokens are kept, and how
the programs of servers are tied to our life."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .child_environment import DEPTH, depth
from .claude.environment import build_environment, config_directory
from .claude.leftovers import new_mark, sweep
from .claude.tether import tether
from .config import Settings
from .hub.hub import Hub
from .hub.means import Means, Notified, hear_nothing
from .hub.sources import Configuration, Places, bar_address, read_configuration
from .hub.transports.stdio import Leash


def hub_configuration(
    settings: Settings,
    environment: Mapping[str, str],
    project: str | None = None,
    serving_at: tuple[str, int] | None = None,
) -> Configuration:
    """The servers that the settings let us use, and not the one at the host and port that we serve at ourselves.
    Blocks on the disk."""
    found = _configured(settings, environment, project)
    return found if serving_at is None else bar_address(found, *serving_at)


def _configured(settings: Settings, environment: Mapping[str, str], project: str | None) -> Configuration:
    if settings.hub == "off":
        return Configuration()
    if settings.hub == "own":
        return read_configuration(Places(settings.hub_file), environment)
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    places = Places.usual(Path(home or Path.home()), Path(project or os.getcwd()), settings.hub_file)
    return read_configuration(places, environment)


def put_on_leash(argv: list[str], environment: Mapping[str, str], *, nested: bool = True) -> Leash:
    """Ties a server's program to our life as we do with Claude Code, and marks all that it starts.

    What a command starts for the person at the shell is not `nested`: it may be this very server.
    """
    mark = new_mark()
    variables = build_environment(environment, {}, mark)
    if not nested:
        variables[DEPTH] = str(depth(environment))
    return Leash(tether(argv), variables, partial(sweep, mark))


def make_hub(
    settings: Settings,
    configuration: Configuration,
    environment: Mapping[str, str],
    notified: Notified = hear_nothing,
    *,
    serving: bool = True,
) -> Hub:
    """A hub for these servers; it connects to none before somebody needs it. `serving` is whether it is a server's, and
    not that of a command."""
    means = Means.usual(
        environment,
        settings.state_dir / "mcp",  # where `claude-code-mcp mcp login` leaves its tokens too
        Path(config_directory(environment)),
        put_on_leash=partial(put_on_leash, nested=serving),
        notified=notified,
    )
    return Hub(configuration, settings, means)
