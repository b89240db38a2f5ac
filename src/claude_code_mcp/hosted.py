"""The hub of this machine, put together from its parts: where servers are configured, where tokens are kept, and how
the programs of servers are tied to our life."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from .claude.environment import build_environment, config_directory
from .claude.leftovers import new_mark, sweep
from .claude.tether import tether
from .config import Settings
from .hub.auth.tokens import FileVault, KeyringVault
from .hub.hub import Hub
from .hub.means import Means, Notified, hear_nothing
from .hub.sources import Configuration, Places, read_configuration
from .hub.transports.stdio import Leash


def hub_configuration(settings: Settings, environment: Mapping[str, str], project: str | None = None) -> Configuration:
    """The servers that the settings let us use. Blocks on the disk."""
    if settings.hub == "off":
        return Configuration()
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    places = Places.usual(home, Path(project or os.getcwd()), settings.hub_file)
    if settings.hub == "own":
        places = Places(places.own_file, Path(os.devnull), None)
    return read_configuration(places, environment)


def put_on_leash(argv: list[str], environment: Mapping[str, str]) -> Leash:
    """Ties a server's program to our life as we do with Claude Code, and marks all that it starts."""
    mark = new_mark()
    return Leash(tether(argv), build_environment(environment, {}, mark), partial(sweep, mark))


def make_hub(
    settings: Settings,
    configuration: Configuration,
    environment: Mapping[str, str],
    notified: Notified = hear_nothing,
) -> Hub:
    """A hub for these servers; it connects to none before somebody needs it."""
    means = Means(
        environment=environment,
        state_directory=settings.state_dir / "hub",
        vault=KeyringVault(FileVault(settings.state_dir / "hub" / "tokens")),
        claude_directory=Path(config_directory(environment)),
        put_on_leash=put_on_leash,
        notified=notified,
    )
    return Hub(configuration, settings, means)
