"""How long a session is without an answer when its machine dies: from SIGKILL to the answer of another machine."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from claude_code_mcp.plugins.fleet.leases import RENEWAL_SECONDS
from claude_code_mcp.testing.script import script

from .common import Figure, Place, benchmark
from .fleet_places import LIMIT, FleetPlaces, Problem, call, make_repository

_DEATHS = 10
_GOAL_SECONDS = 10.0


@benchmark
async def fleet_takeover(place: Place) -> Sequence[Figure]:
    """A machine of a fleet is killed, and another machine continues its session."""
    root = place.sandbox.root / "takeover"
    root.mkdir()
    fleet = FleetPlaces(root, place.sandbox.model_url, 1, ("gateway", "runner"))
    try:
        await asyncio.to_thread(fleet.start)
        taken = [await _death(fleet, root, number) for number in range(_DEATHS)]
    finally:
        await asyncio.to_thread(fleet.stop)
    slowest = max(taken)
    shown = f"{statistics.median(taken):.1f} s [{min(taken):.1f}…{slowest:.1f}]"
    name = "the session answers on another machine"
    return [Figure(name, "", shown, f"{slowest:.1f} s", f"≤ {_GOAL_SECONDS:g} s", slowest <= _GOAL_SECONDS)]


async def _death(fleet: FleetPlaces, root: Path, number: int) -> float:
    """Seconds from the death of a session's machine to the end of the session's next turn, elsewhere."""
    gateway, runner = fleet.machines
    directory = root / f"project-{number}"
    await asyncio.to_thread(make_repository, directory)
    done, made = await call(
        gateway,
        "claude_create_session",
        prompt=script("remember", "yes"),
        machine=runner.name,
        workingDirectory=str(directory),
        waitSeconds=50,
    )
    if not done or made.get("result") != "yes":
        raise Problem(f"no session was begun: {made}")
    # At different moments between two renewals of its lease.
    await asyncio.sleep(RENEWAL_SECONDS * number / _DEATHS)
    runner.kill()
    died = time.monotonic()
    message = script("go on", "here")
    while True:
        done, answer = await call(
            gateway, "claude_send_message", sessionId=made["sessionId"], message=message, messageKey="k", waitSeconds=50
        )
        if done and answer.get("result") == "here":
            break
        if time.monotonic() - died > LIMIT:
            raise Problem(f"the session does not go on: {answer}")
        await asyncio.sleep(0.1)
    taken = time.monotonic() - died
    runner.start()
    await asyncio.to_thread(runner.wait_until_ready)
    return taken
