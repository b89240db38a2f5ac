"""Finds the installed plug-ins: the bundled ones by their directories, others by their entry points.

Looking up entry points takes tens of milliseconds. A server on stdio does it after its first answers, and only those
commands do it that a plug-in may extend.
"""

import logging
import re
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .core.errors import InvalidArgument
from .plugin import Plugin

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from .core.config import Settings
    from .core.settings_section import Section

log = logging.getLogger(__name__)

GROUP = "claude_code_mcp.plugins"
_BUNDLED = Path(__file__).parent / "plugins"


def enabled_plugins(settings: "Settings") -> list[Plugin]:
    """Creates an object of each plug-in that the settings do not disable, ordered by name. Blocks on the disk.

    InvalidArgument if a plug-in cannot be loaded, if two have the same name, or if the settings disable one that is not
    installed: a server without a plug-in that its operator relies on could be less strict than expected.
    """
    off, bundled, others = frozenset(settings.plugins_off), _bundled_names(), _entry_points()
    unknown = sorted(off - {*bundled, *others})
    if unknown:
        raise InvalidArgument(
            f"CLAUDE_CODE_MCP_PLUGINS_OFF: there is no plug-in {unknown[0]!r}; installed are "
            f"{', '.join([*bundled, *others])}."
        )
    found = {name: _bundled(name) for name in bundled if name not in off}
    for name, point in others.items():
        if name in bundled:
            raise InvalidArgument(f"Two plug-ins are called {name}. Uninstall the one from {_distribution(point)}.")
        if name not in off:
            found[name] = _loaded(point)
    return [found[name] for name in sorted(found)]


def distributions_of(plugins: Iterable[Plugin]) -> dict[str, str]:
    """Maps the directory names of distributions to their versions, for the distributions that provide these plug-ins,
    except ours. Blocks on the disk."""
    points, found = _entry_points(), {}
    for plugin in plugins:
        point = points.get(plugin.name)
        if point is not None:
            found[re.sub("[-_.]+", "_", _distribution(point))] = point.dist.version if point.dist is not None else ""
    return found


def sections_of(plugins: Iterable[Plugin]) -> "list[type[Section]]":
    """The settings sections of the plug-ins."""
    return [section for plugin in plugins if (section := plugin.section()) is not None]


def all_plugins() -> list[Plugin]:
    """Creates an object of each installed plug-in, regardless of the settings; a plug-in that cannot be loaded is
    logged. For commands and checks. Blocks on the disk."""
    found = bundled_plugins()
    for name, point in _entry_points().items():
        try:
            found.append(_loaded(point))
        except InvalidArgument as problem:
            log.warning("skipping %s: %s", name, problem.message)
    return found


def bundled_plugins() -> list[Plugin]:
    """Creates an object of each bundled plug-in whose directory exists."""
    return [_bundled(name) for name in _bundled_names()]


def _bundled_names() -> list[str]:
    return sorted(module.parent.name for module in _BUNDLED.glob("*/plugin.py"))


def _bundled(name: str) -> Plugin:
    made = import_module(f".plugins.{name}.plugin", __package__).PLUGIN()
    assert isinstance(made, Plugin)
    assert made.name == name
    return made


def _entry_points() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # noqa: PLC0415 - takes a while, and few commands need it

    return {point.name: point for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def _loaded(point: "EntryPoint") -> Plugin:
    origin = f"The plug-in {point.name} of {_distribution(point)}"
    try:
        kind = point.load()
        made = kind()
    except Exception as error:
        log.debug("%s cannot be loaded", origin, exc_info=True)
        raise InvalidArgument(
            f"{origin} cannot be loaded ({type(error).__name__}: {error}). Update or uninstall it, or disable it with "
            f"CLAUDE_CODE_MCP_PLUGINS_OFF={point.name}."
        ) from None
    if not isinstance(made, Plugin) or made.name != point.name:
        raise InvalidArgument(
            f"{origin} cannot be used: {point.value} must be a subclass of claude_code_mcp.plugin.Plugin whose name is "
            f"{point.name!r}."
        )
    return made


def _distribution(point: "EntryPoint") -> str:
    return point.dist.name if point.dist is not None else point.value
