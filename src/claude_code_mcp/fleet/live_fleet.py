"""What a gateway knows of its fleet: the machines that are there, who holds a session, and where a new one begins."""

from collections.abc import Sequence

from .. import __version__
from .leases import Holding
from .machines import FleetMember, Machine, Membership
from .ownership import OwnershipBucket
from .placement import Demand, choose
from .routing import PlacementRequest


class LiveFleet:
    """The fleet as its buckets say: `FleetView` of `routing.py`."""

    def __init__(self, membership: Membership, ownership: OwnershipBucket) -> None:
        self._membership = membership
        self._ownership = ownership

    def machines(self) -> Sequence[Machine]:
        return self._membership.machines()

    def gone(self) -> Sequence[FleetMember]:
        return self._membership.gone()

    async def changed(self) -> None:
        await self._membership.changed.wait()

    async def holder(self, session_id: str) -> str | None:
        holding = await self._ownership.last(session_id)
        return holding.machine if holding is not None else None

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        return await self._ownership.give(session_id, principal, machine_id)

    async def take_back(self, holding: Holding) -> None:
        await self._ownership.release(holding)


def choose_machine(machines: Sequence[Machine], request: PlacementRequest) -> Machine:
    """A machine of this very version for a new session. Raises NoMachine with the reason for each machine."""
    return choose(machines, Demand(version=__version__, machine=request.machine, labels=request.labels))
