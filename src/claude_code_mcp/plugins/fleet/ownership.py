"""The bucket of holders: which machine has which session.

Only gateways and keepers change it, by compare-and-swap. Machines ask a keeper (`keeper.py`).
"""

import json
import logging
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Self

import anyio

from ...core.errors import PermissionDenied
from . import names
from .connection import FleetConnection, entries_of, follow_bucket, read_lease_seconds
from .leases import HeldByOtherMachine, Holding, LeaseLapsed, TransferUnfinished
from .nats_client import KeyNotFoundError, KeyValue, KeyWrongLastSequenceError

log = logging.getLogger(__name__)

FIRST_CLAIM_SECONDS = 1.0
"""How long a machine whose lease expired can come back before its sessions may be taken."""
RETURN_SECONDS = 2.0
"""The same after NATS was unavailable: then every lease has expired, and all machines come back at once."""
MAX_HELD = 3000
"""Maximum number of sessions in the answer to a machine that asks what it holds: one message, and most servers accept 1
MiB."""
_ATTEMPTS = 8
_REQUEST_SECONDS = 5.0


class OwnershipBucket:
    """The holders themselves, for a key that may write all of them: a gateway's or a keeper's."""

    def __init__(self, sessions: KeyValue, machines: KeyValue) -> None:
        self._sessions = sessions
        self._machines = machines
        self._missing: dict[str, float] = {}
        """Machine → since when it has no lease."""
        self._reconnected = -RETURN_SECONDS
        self._seen: frozenset[str] = frozenset()
        """The machines that were online at the last check."""
        self._followed: dict[str, dict[str, Holding]] = {}
        """Principal → session → holder, as last read by `follow`."""
        self._all_known = anyio.Event()

    @classmethod
    async def opened(cls, connection: FleetConnection) -> Self:
        """The bucket of a fleet."""
        js = connection.jetstream
        bucket = cls(await js.key_value(names.SESSIONS), await js.key_value(names.MACHINES))
        connection.when_reconnected.append(bucket._after_interruption)
        return bucket

    def _after_interruption(self) -> None:
        # While NATS was down every lease ended: machines that were online get time to come back.
        self._missing.clear()
        self._reconnected = time.monotonic()

    def note_present(self, alive: Collection[str], late: float = 0.0) -> None:
        """Records that these machines are online now. The return period of a missing machine starts at the end of its
        lease, not at the first message to one of its sessions; `late`: seconds between that end and this call."""
        for machine_id in alive:
            self._missing.pop(machine_id, None)
        for machine_id in self._seen.difference(alive):
            self._missing.setdefault(machine_id, time.monotonic() - late)
        self._seen = frozenset(alive)

    async def follow(self, connection: FleetConnection) -> None:
        """Keeps all holders in memory until cancelled, for `not_held_by`. Decisions about holders use the bucket
        itself."""

        def take(entry: KeyValue.Entry) -> None:
            found = None
            if entry.operation is None:
                try:
                    found = _stored_holding(entry.key, entry)
                except (ValueError, KeyError, TypeError) as problem:
                    log.warning("cannot read which machine holds session %s: %r", entry.key, problem)
            if found is not None:
                self._followed.setdefault(found.principal, {})[entry.key] = found  # a session's principal never changes
                return
            for holdings in self._followed.values():
                holdings.pop(entry.key, None)

        async with anyio.create_task_group() as tasks:
            await tasks.start(follow_bucket, connection, names.SESSIONS, take)
            self._all_known.set()

    async def not_held_by(self, alive: Collection[str], principal: str | None) -> list[Holding]:
        """The sessions of a principal, or of all, that none of these machines holds, most recent changes first; needs
        `follow`. Raises TimeoutError while they are unknown."""
        with anyio.fail_after(_REQUEST_SECONDS):
            await self._all_known.wait()
        wanted = self._followed.values() if principal is None else [self._followed.get(principal, {})]
        holdings = [holding for of_one in wanted for holding in of_one.values()]
        # A pinned session has no copy that could be shown.
        absent = [each for each in holdings if not each.stays and (each.arriving or each.machine not in alive)]
        return sorted(absent, key=lambda holding: holding.revision, reverse=True)

    async def held_by(self, machine_id: str) -> list[Holding]:
        """The sessions that a machine holds completely, newest first, at most MAX_HELD. Reads all holders."""
        holdings = [_stored_holding(entry.key, entry) for entry in await entries_of(self._sessions)]
        held = [each for each in holdings if each.machine == machine_id and not each.arriving]
        return sorted(held, key=lambda holding: holding.revision, reverse=True)[:MAX_HELD]

    async def lease_seconds(self) -> float:
        """The length of the fleet's leases. Raises NATS errors."""
        return await read_lease_seconds(self._machines)

    async def read(self, session_id: str) -> Holding | None:
        """The holder; None if no machine has the session."""
        found = await self.last(session_id)
        return found if found is not None and found.machine else None

    async def claim(
        self,
        session_id: str,
        principal: str,
        machine_id: str,
        *,
        only_given: bool = False,
        taking: bool = False,
        stays: bool = False,
        run: str = "",
        number: int = 0,
    ) -> Holding:
        """Takes a session for a machine, with the next epoch. `taking`: the session has yet to arrive there. `stays`:
        the session is pinned to that machine, and no other machine can take it.

        A session whose machine has no lease can be taken after that machine has had `FIRST_CLAIM_SECONDS` to come back,
        or `RETURN_SECONDS` after an interruption.
        `only_given` refuses a session that another machine has or had: a gateway gives it away with this call without
        it.
        `run` and `number` identify the claim of a machine. A claim that comes late, after a later one of the same
        process, changes nothing and returns the holding as it is; one of an earlier process raises LeaseLapsed.
        Raises HeldByOtherMachine, PermissionDenied if the session is another principal's or was not given, and
        TransferUnfinished if the session was given to the machine but has not arrived: its disk has no copy or an old
        one.
        """
        for _ in range(_ATTEMPTS):
            found = await self.last(session_id)
            if found is not None:
                if found.principal != principal:
                    raise PermissionDenied(f"Session {session_id} belongs to another principal.")
                if only_given and found.machine != machine_id:
                    raise PermissionDenied(f"Session {session_id} was not assigned to machine {machine_id}.")
                if found.stays and (taking or found.machine not in ("", machine_id)):
                    raise HeldByOtherMachine(found)
                if stays and not found.stays:
                    # It left its machine, so others can continue it if that machine is removed.
                    raise PermissionDenied(f"Session {session_id} is not pinned to its machine.")
                # After the session was read and before it is written: a machine that regains its lease writes its
                # sessions again. Either it finds this write, or this write fails.
                await self._check_gone(found, machine_id)
                if run and found.machine == machine_id:
                    if found.run == run and found.number >= number:
                        return found
                    await self._check_run(machine_id, run)
                if found.arriving and not taking:
                    raise TransferUnfinished(f"Session {session_id} has not been moved to machine {machine_id} yet.")
            epoch = (found.epoch if found else 0) + 1
            holding = Holding(session_id, machine_id, epoch, principal, 0, taking, stays, run, number)
            try:
                return await self._write(holding, found)
            except KeyWrongLastSequenceError:
                continue  # another writer was faster: check which
        raise LeaseLapsed(f"The holder of session {session_id} keeps changing while it is read; try again.")

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        """Gives a session to a machine, which has yet to take it; None if it is already the machine's, which keeps its
        epoch. Giving it twice is harmless. Raises the errors of `claim`."""
        found = await self.last(session_id)
        if found is not None and (found.machine, found.principal) == (machine_id, principal):
            return None
        return await self.claim(session_id, principal, machine_id, taking=True)

    async def return_to_source(self, session_id: str, principal: str, machine_id: str) -> None:
        """Returns a session without a holder to the machine that has just released it and still has all of it."""
        found = await self.last(session_id)
        if found is None or found.machine or found.principal != principal:
            raise HeldByOtherMachine(found or Holding(session_id, "", 0, principal, 0))
        holding = Holding(session_id, machine_id, found.epoch + 1, principal, 0)
        try:
            await self._write(holding, found)
        except KeyWrongLastSequenceError:
            raise HeldByOtherMachine(found) from None

    async def confirm(self, holding: Holding) -> Holding:
        """Rewrites a holding with its epoch. Raises HeldByOtherMachine if another machine, or none, holds it now."""
        return await self._write_again(holding)

    async def arrived(self, holding: Holding) -> Holding:
        """Like `confirm`, and the session is no longer arriving."""
        return await self._write_again(holding, arriving=False)

    async def _write_again(self, holding: Holding, *, arriving: bool | None = None) -> Holding:
        for _ in range(_ATTEMPTS):
            found = await self.last(holding.session_id)
            if found is None or (found.machine, found.epoch) != (holding.machine, holding.epoch):
                raise HeldByOtherMachine(found or Holding(holding.session_id, "", holding.epoch, holding.principal, 0))
            again = found if arriving is None else replace(found, arriving=arriving)
            try:
                return await self._write(again, found)
            except KeyWrongLastSequenceError:
                continue
        raise LeaseLapsed(f"The holder of session {holding.session_id} keeps changing while it is read; try again.")

    async def release(self, holding: Holding) -> None:
        """Releases a session; its epoch stays, so that the next holder gets a newer one."""
        for _ in range(_ATTEMPTS):
            found = await self.last(holding.session_id)
            if found is None or (found.machine, found.epoch) != (holding.machine, holding.epoch):
                return
            try:
                await self._write(replace(found, machine="", arriving=False, stays=False), found)
            except KeyWrongLastSequenceError:
                continue  # taken by another machine, or confirmed by its own at the same time: check which
            return
        raise LeaseLapsed(f"The holder of session {holding.session_id} keeps changing while it is read; try again.")

    async def _check_gone(self, found: Holding, machine_id: str) -> None:
        """Returns if the holder's lease has been gone for long enough, or if there is no holder or it is the machine
        itself."""
        if found.machine in ("", machine_id):
            return
        if await self._alive(found.machine):
            raise HeldByOtherMachine(found)
        since = self._missing.setdefault(found.machine, time.monotonic())
        remaining = max(since + FIRST_CLAIM_SECONDS, self._reconnected + RETURN_SECONDS) - time.monotonic()
        if remaining > 0:
            await anyio.sleep(remaining)
            if await self._alive(found.machine):
                raise HeldByOtherMachine(found)

    async def _check_run(self, machine_id: str, run: str) -> None:
        """Raises LeaseLapsed if another process has the machine's lease."""
        try:
            entry = await self._machines.get(machine_id)
            leased = json.loads(entry.value or b"{}").get("run")
        except (KeyNotFoundError, ValueError, AttributeError):
            return
        if leased and leased != run:
            raise LeaseLapsed(f"Another process of machine {machine_id} has its lease.")

    async def _alive(self, machine_id: str) -> bool:
        # Read from the leader of the bucket, never from a replica that may be behind: the bucket has no direct reads.
        try:
            await self._machines.get(machine_id)
        except KeyNotFoundError:
            return False
        self._missing.pop(machine_id, None)
        return True

    async def last(self, session_id: str) -> Holding | None:
        """The holder; without a machine if the last one released the session, None if there never was one."""
        try:
            entry = await self._sessions.get(names.token(session_id))
        except KeyNotFoundError:
            return None
        return _stored_holding(session_id, entry)

    async def _write(self, holding: Holding, before: Holding | None) -> Holding:
        """Stores a holding unless it was changed since `before`."""
        value: dict[str, Any] = {"machine": holding.machine, "epoch": holding.epoch, "principal": holding.principal}
        value |= {mark: True for mark in ("arriving", "stays") if getattr(holding, mark)}
        value |= {"run": holding.run, "number": holding.number} if holding.run else {}
        # `update`, never `create`: `create` retries when it finds the marker of a deletion.
        last = before.revision if before else 0
        revision = await self._sessions.update(holding.session_id, json.dumps(value).encode(), last=last)
        return replace(holding, revision=revision)


def _stored_holding(session_id: str, entry: KeyValue.Entry) -> Holding:
    value = json.loads(entry.value or b"{}")
    return Holding(
        session_id,
        value["machine"],
        value["epoch"],
        value["principal"],
        entry.revision or 0,
        arriving=value.get("arriving") is True,
        stays=value.get("stays") is True,
        run=str(value.get("run", "")),
        number=int(value.get("number", 0)),
    )
