"""The settings of the fleet."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from ...core.processes.environment import OWN_PREFIX
from ...core.section import Section, UserPath

_OWN = OWN_PREFIX


class FleetSettings(Section):
    """How this machine reaches a fleet, and what happens to sessions that come to it."""

    fleet_nats: str | None = Field(None, validation_alias=f"{_OWN}NATS")
    """The address of the operator's own NATS servers for the fleet, such as `tls://a,tls://b,tls://c`; unset, `fleet
    up` runs one itself. Plain text is refused beyond loopback."""
    fleet_creds: UserPath | None = Field(None, validation_alias=f"{_OWN}NATS_CREDS")
    """The file with this machine's credentials for those servers."""
    fleet_reports: Literal["machine", "gateway"] = Field("machine", validation_alias=f"{_OWN}FLEET_REPORTS")
    """Who writes what this machine reports of itself to those servers: the `machine`, so that it works on while no
    gateway runs, or a `gateway`, so that its user needs no permission for any store; see fleet.md."""
    fleet_directory: UserPath = Field(
        default_factory=lambda: Path.home() / "claude-code-mcp-sessions", validation_alias=f"{_OWN}FLEET_DIR"
    )
    """Where the working trees of sessions are checked out that come from another machine of the fleet, each into a
    directory of its own."""
    fleet_hooks: UserPath | None = Field(None, validation_alias=f"{_OWN}FLEET_HOOKS")
    """A directory with programs of the operator that run when a session comes to this machine of a fleet (`checkout`)
    or leaves it (`post-session`); see fleet.md. Nobody but this user may be able to write to it."""
    fleet_wait_ms: int = Field(120_000, ge=0, validation_alias=f"{_OWN}FLEET_WAIT_MS")
    """How long a new session waits at a gateway while all machines that fit are full, before it is refused with
    `LIMIT_REACHED`; 0 refuses it at once."""
