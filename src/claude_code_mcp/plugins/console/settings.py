"""The settings of the console."""

from pydantic import Field

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section

_OWN = OWN_PREFIX


class ConsoleSettings(Section):
    """Where the console is served."""

    web: bool = Field(True, validation_alias=f"{_OWN}WEB")
    """Whether the console is served: at `/` of an HTTP server, and on loopback when `claude-code-mcp web` asks the
    shared server for it; see web.md."""
    web_port: int = Field(0, ge=0, le=65535, validation_alias=f"{_OWN}WEB_PORT")
    """The loopback port of the shared server's console. 0: the last used port if it is free, else any free port."""
