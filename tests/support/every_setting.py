"""The settings of the core and of every bundled plug-in."""

from claude_code_mcp.core.config import Settings
from claude_code_mcp.core.settings_section import Section, variable_of
from claude_code_mcp.installed_plugins import bundled_plugins, sections_of


def every_variable() -> list[str]:
    """The environment variable of each setting."""
    sections: list[type[Section]] = [Settings, *sections_of(bundled_plugins())]
    return [variable_of(name, kind) for kind in sections for name in kind.model_fields]
