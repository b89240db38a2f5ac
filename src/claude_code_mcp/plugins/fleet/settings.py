"""The settings of the fleet."""

from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from ...core.processes.environment import OWN_PREFIX
from ...core.settings_section import Section, UserPath

_OWN = OWN_PREFIX
MIN_LEASE_MS: Final = 5000
"""A machine that has not learned the length of its fleet's leases counts with this one, which no fleet goes below."""
MAX_LEASE_MS: Final = 300_000


class FleetSettings(Section):
    """How this machine reaches a fleet, and what happens to sessions that come to it."""

    fleet_nats: str | None = Field(None, validation_alias=f"{_OWN}NATS")
    """The URLs of your own NATS servers for the fleet, such as `tls://a,tls://b,tls://c`. Unset: `fleet up` runs a
    server. Unencrypted connections are refused beyond loopback."""
    fleet_creds: UserPath | None = Field(None, validation_alias=f"{_OWN}NATS_CREDS")
    """The file with this machine's credentials for those servers."""
    fleet_reports: Literal["machine", "gateway"] = Field("machine", validation_alias=f"{_OWN}FLEET_REPORTS")
    """Who stores this machine's reports on those servers: the `machine` itself, which then works without a running
    gateway, or a `gateway`, so that the machine's user needs no permission for any store; see fleet.md."""
    fleet_directory: UserPath = Field(
        default_factory=lambda: Path.home() / "claude-code-mcp-sessions", validation_alias=f"{_OWN}FLEET_DIR"
    )
    """The directory into which working trees of sessions from other machines of the fleet are checked out, each in a
    subdirectory."""
    fleet_hooks: UserPath | None = Field(None, validation_alias=f"{_OWN}FLEET_HOOKS")
    """A directory with programs that run when a session comes to this machine of a fleet (`checkout`) or leaves it
    (`post-session`); see fleet.md. Only this user may be able to write to it."""
    fleet_wait_ms: int = Field(120_000, ge=0, validation_alias=f"{_OWN}FLEET_WAIT_MS")
    """How long a new session waits at a gateway while all suitable machines are full, before it is refused with
    `LIMIT_REACHED`; 0 refuses it at once."""
    fleet_lease_ms: int | None = Field(None, ge=MIN_LEASE_MS, le=MAX_LEASE_MS, validation_alias=f"{_OWN}FLEET_LEASE_MS")
    """For `fleet up`: the length of the fleet's leases, which is how long a machine may be silent before other machines
    can take its sessions, from 5000 to 300000. Unset: the value that the fleet has, or 5000 for a new fleet. fleet.md
    says how to change it."""

    @property
    def lease_seconds(self) -> float | None:
        """The length of the fleet's leases; None: the value that the fleet has."""
        return None if self.fleet_lease_ms is None else self.fleet_lease_ms / 1000
