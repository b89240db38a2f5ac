"""The checks of `doctor` on a machine of a fleet: its connection, clock, versions and disks. Does nothing on other
machines."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ... import __version__
from ...core.config import Settings
from ...core.errors import ClaudeCodeError
from ...core.installation import extra_command
from ...core.model.text import size_of, visible
from ...plugin import Finding
from .settings import FleetSettings

if TYPE_CHECKING:
    from .connection import FleetConnection
    from .machines import Machine

_MAX_DIFFERENCE = 5.0
"""Maximum difference of two clocks in seconds: daily budgets and times in lists use each machine's own clock."""
_NEEDED_DISK = 1 << 30


@dataclass(frozen=True, slots=True)
class FleetState:
    """The observed state of the fleet."""

    clock_ahead: float
    """Seconds by which this machine's clock is ahead of the gateway's, at least; negative if behind."""
    gateway_version: str
    machines: "tuple[Machine, ...] | None"
    """The online machines; None if this machine's key may not see them."""
    gone: tuple[str, ...] = ()


def check_fleet(settings: Settings) -> Iterator[Finding]:
    """The checks, if this machine belongs to a fleet. Blocks, for some seconds if the fleet does not answer."""
    home = settings.state_dir / "fleet"
    is_host = (home / "server" / "server.json").exists()
    fleet = settings.section(FleetSettings)
    if (fleet.fleet_nats is None) != (fleet.fleet_creds is None):
        yield Finding(
            "fleet",
            False,
            "CLAUDE_CODE_MCP_NATS and CLAUDE_CODE_MCP_NATS_CREDS must be set together",
            "set both or neither",
        )
        return
    if fleet.fleet_nats is None and not is_host and not (home / "machine.json").exists():
        return
    try:
        state = asyncio.run(_asked(settings, home, is_host))
    except ImportError:
        yield Finding("fleet", False, "the extra `fleet` is not installed", extra_command("fleet"))
        return
    except (OSError, ValueError, LookupError, TypeError) as error:
        # A damaged file, a file that others can read or an answer of another version is a finding, not a crash.
        problem = f"the fleet in {home} cannot be used: {error}"
        yield Finding("fleet", False, visible(problem), "correct the problem, or join the fleet again")
    except ClaudeCodeError as error:
        fix = "`claude-code-mcp fleet up` must run" if is_host else "check the network, and `fleet up` on its host"
        yield Finding("fleet", False, error.message, fix)
    else:
        yield from judged(state)
    yield from _check_disks([fleet.fleet_directory, *([home / "server" / "nats"] if is_host else [])])


def judged(state: FleetState) -> Iterator[Finding]:
    """The findings for an observed state. Pure."""
    there = "" if state.machines is None else f"; {len(state.machines)} machines are connected"
    gone = f", {len(state.gone)} do not respond: {visible(', '.join(state.gone))}" if state.gone else ""
    yield Finding("fleet", True, f"it answers{there}{gone}", "")
    ahead = state.clock_ahead
    shown = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the gateway's clock"
    close = abs(ahead) <= _MAX_DIFFERENCE
    yield Finding(
        "fleet's clock", close, "in sync with the gateway" if close else shown, "synchronize both with a time server"
    )
    versions = {"the gateway": state.gateway_version}
    versions |= {machine.name: machine.version for machine in state.machines or ()}
    others = [f"{name} has {version}" for name, version in versions.items() if version != __version__]
    detail = visible(", ".join(others)) if others else f"{__version__} on all machines seen"
    yield Finding(
        "fleet's versions", not others, detail, "machines with a different version get no sessions: update them"
    )
    for machine in state.machines or ():
        if not machine.cli_version:
            name = visible(machine.name)
            yield Finding(
                "fleet",
                False,
                f"{name} has no Claude Code",
                "install Claude Code or the extra `cli` on that machine",
            )


async def _asked(settings: Settings, home: Path, is_host: bool) -> FleetState:
    from .host import connect_to_host, machine_file  # noqa: PLC0415 - of the extra
    from .tickets import OPERATOR, MachineKey, connect_credentials, connect_machine  # noqa: PLC0415

    sees_all = is_host
    fleet = settings.section(FleetSettings)
    if fleet.fleet_nats is not None and fleet.fleet_creds is not None:
        connection, user_id = await connect_credentials(fleet.fleet_nats, fleet.fleet_creds)
        sees_all = False  # unknown what these credentials may read
    elif is_host:
        connection, user_id = await connect_to_host(home), OPERATOR
    else:
        key = await asyncio.to_thread(MachineKey.load, machine_file(home))
        assert key is not None
        connection, user_id = await connect_machine(key), key.machine_id
    try:
        return await _state_of(connection, user_id, sees_all)
    finally:
        await connection.abandon()


async def _state_of(connection: "FleetConnection", user_id: str, sees_all: bool) -> FleetState:
    from .keeper import KeeperOwnership  # noqa: PLC0415
    from .machines import Membership  # noqa: PLC0415

    before = time.time()
    answer = await KeeperOwnership(connection, user_id).ask("clock")
    after, theirs = time.time(), float(answer["time"])
    # How the round trip divides between request and answer is unknown: the difference is at least this.
    ahead = before - theirs if before > theirs else min(0.0, after - theirs)
    if not sees_all:
        return FleetState(ahead, str(answer["version"]), None)
    async with Membership(connection).followed() as membership:
        gone = tuple(member.name for member in membership.gone())
        return FleetState(ahead, str(answer["version"]), tuple(membership.machines()), gone)


def _check_disks(directories: list[Path]) -> Iterator[Finding]:
    """Checks the space for working trees and, on the host, for the fleet's data."""
    for directory in directories:
        there = next(each for each in (directory, *directory.parents) if each.exists())
        free = shutil.disk_usage(there).free
        yield Finding(
            "fleet's disk", free > _NEEDED_DISK, f"{size_of(free)} free for {directory}", "free at least 1 GB"
        )
