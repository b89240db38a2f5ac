"""A machine as a member of a fleet: its lease is kept and what it holds is known, until it leaves or is removed."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from ..errors import PermissionDenied
from .connection import FleetConnection
from .leases import Holdings, MachineLease, Ownership, Turns
from .machines import Machine, MachineReport

log = logging.getLogger(__name__)


class MachineRemoved(PermissionDenied):
    """The fleet no longer takes this machine's key."""


@asynccontextmanager
async def joined(
    connection: FleetConnection,
    machine: Machine,
    ownership: Ownership,
    turns: Turns,
    count_sessions: Callable[[], int] = lambda: 0,
) -> AsyncIterator[Holdings]:
    """Is a member of the fleet until the end of the block; when it begins, the others can see this machine.

    Raises MachineRemoved, also later, when the machine's key is revoked: what it holds is lost with its lease, so
    everything within the block is cancelled.
    """
    lease = MachineLease(connection, machine.id, MachineReport(machine, count_sessions))
    holdings = Holdings(lease, ownership, turns)
    removed = False
    async with lease.kept(), anyio.create_task_group() as tasks:

        async def end_when_refused() -> None:
            nonlocal removed
            await connection.refused.wait()
            removed = True
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_refused)
        yield holdings
        tasks.cancel_scope.cancel()
    if removed:
        raise MachineRemoved("The fleet no longer takes this machine's key: it was removed.")
