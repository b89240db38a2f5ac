"""A gateway's view of the fleet, from its buckets: which machines are online, and which one holds a session."""

from collections.abc import Sequence

from .leases import Holding
from .machines import GRACE_SECONDS, Membership
from .ownership import OwnershipBucket
from .routing import MachineIdentity


class LiveFleet:
    """The machines and the holders of sessions as they are now."""

    def __init__(self, membership: Membership, ownership: OwnershipBucket) -> None:
        self._membership = membership
        self._ownership = ownership

    def machines(self) -> Sequence[MachineIdentity]:
        """The online machines."""
        return self._membership.machines()

    def gone(self) -> Sequence[MachineIdentity]:
        """Offline machines of the fleet: lists show the fleet's copies of their sessions."""
        return self._membership.gone()

    async def changed(self) -> None:
        """Returns when a machine comes or goes."""
        await self._membership.changed.wait()

    async def note_absences(self) -> None:
        """Reports to the `OwnershipBucket` object which machines are online, so that it knows since when the others are
        offline. Runs until cancelled."""
        while True:
            changed = self._membership.changed  # before the check, so that a later change is not missed
            self._ownership.note_present([machine.id for machine in self.machines()], GRACE_SECONDS)
            await changed.wait()

    async def holder(self, session_id: str) -> str | None:
        """The id of the machine that holds a session; empty if the last one released it, or the next one has yet to
        take it; None if there never was one."""
        holding = await self._ownership.last(session_id)
        if holding is not None and holding.arriving:
            return ""
        if holding is not None and holding.stays and self._membership.was_removed(holding.machine):
            return None  # its machine may have joined again under another id: machines search their disks
        return holding.machine if holding is not None else None

    async def stays(self, session_id: str) -> bool:
        """Whether only its own machine can continue a session."""
        holding = await self._ownership.last(session_id)
        return holding is not None and holding.stays

    async def absent(self, principal: str | None) -> Sequence[Holding]:
        """The sessions of a principal, or of all, that no online machine holds, most recent changes first. Raises
        TimeoutError while they are unknown."""
        return await self._ownership.not_held_by({machine.id for machine in self.machines()}, principal)

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        """Gives a session that no living machine holds to one; None if it is already that machine's. Raises
        HeldByOtherMachine if another machine has taken it, and PermissionDenied if it is another principal's."""
        return await self._ownership.give(session_id, principal, machine_id)

    async def return_to_source(self, session_id: str, principal: str, machine_id: str) -> None:
        """Returns a session without a holder to the machine that has just released it. Raises HeldByOtherMachine."""
        await self._ownership.return_to_source(session_id, principal, machine_id)

    async def take_back(self, holding: Holding) -> None:
        """Takes back a session that a machine was given and has not claimed since."""
        await self._ownership.release(holding)
