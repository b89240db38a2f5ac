"""The settings for terminal sessions."""

from pydantic import Field

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section


class TerminalSettings(Section):
    """Which servers show terminal sessions."""

    terminal_in_fleet: bool = Field(False, validation_alias=f"{OWN_PREFIX}TERMINAL_IN_FLEET")
    """Whether a machine of a fleet shows its terminal sessions to the fleet; other servers always show them."""
