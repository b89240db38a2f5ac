"""The settings of terminals."""

from pydantic import Field

from ...core.processes.environment import OWN_PREFIX
from ...core.section import Section


class TerminalSettings(Section):
    """Which servers show the sessions that people drive in a terminal."""

    terminal_in_fleet: bool = Field(False, validation_alias=f"{OWN_PREFIX}TERMINAL_IN_FLEET")
    """Whether a machine of a fleet shows the sessions in its terminals to the fleet; other servers always show them."""
