"""The hub of this machine, put together from its parts: where servers are configured, where tokens are kept, and how
the programs of servers are tied to our life."""

from collections.abc import Mapping
from pathlib import Path

from .claude.environment import build_environment, config_directory
from .config import Settings
from .hub.hub import Hub
from .hub.means import Means, Notified, hear_nothing
from .hub.sources import Configuration, Places, read_configuration
from .processes.leftovers import new_mark
from .sessions.directories import own_directory


def hub_configuration(settings: Settings, environment: Mapping[str, str], project: str | None = None) -> Configuration:
    """The servers that the settings let us use. Blocks on the disk."""
    if settings.hub == "off":
        return Configuration()
    if settings.hub == "own":
        return read_configuration(Places(settings.hub_file), environment)
    home = environment.get("CLAUDE_CONFIG_DIR") or environment.get("HOME") or environment.get("USERPROFILE")
    places = Places.usual(Path(home or Path.home()), Path(project or own_directory()), settings.hub_file)
    return read_configuration(places, environment)


def child_environment(variables: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The environment of a server's program, marked as that of Claude Code is, and the mark."""
    mark = new_mark()
    return build_environment(variables, {}, mark), mark


def make_hub(
    settings: Settings,
    configuration: Configuration,
    environment: Mapping[str, str],
    notified: Notified = hear_nothing,
) -> Hub:
    """A hub for these servers; it connects to none before somebody needs it."""
    means = Means.usual(
        environment,
        settings.state_dir / "mcp",  # where `claude-code-mcp mcp login` leaves its tokens too
        Path(config_directory(environment)),
        child_environment=child_environment,
        notified=notified,
    )
    return Hub(configuration, settings, means)
