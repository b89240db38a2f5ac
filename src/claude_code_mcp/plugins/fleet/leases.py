"""Who may write to a session: one lease for each machine, and for each session the machine that holds it.

A machine renews its lease every 1.5 seconds; NATS removes it when there was no renewal for the length of a lease, which
is one value of the fleet (`connection.create_stores`), by default 5 seconds. A session may be taken from a machine only
when that machine's lease is gone. The machine measures the lease itself, from the moment before it sent the last
renewal that was acknowledged, and counts with less than its length: by its clock the lease always ends before it ends
at NATS. A lease that has lapsed stops everything at once (`Turns.pause`). When it is regained, each session is
confirmed by compare-and-swap before it continues (`Turns.resume`), unless another machine took it meanwhile
(`Turns.end`). The lease is renewed concurrently with the confirmations: however long they take, it does not lapse
because of them.
"""

import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

from ...core.errors import ClaudeCodeError, SessionBusy, UpstreamUnavailable
from . import names
from .connection import MIN_LEASE_SECONDS, FleetConnection
from .nats_client import APIError, NatsError

log = logging.getLogger(__name__)

RENEWAL_SECONDS = 1.5
"""Seconds between two renewals, however long a lease is: they are the machine's reports too."""
VALID_PART = 0.75
"""The part of a lease after which it counts as lapsed. The rest is time to stop processes, also for a process that is
late, and for clock differences."""
_ATTEMPT_PART = 0.4
"""The part of a lease to wait for an acknowledgment: nearly as long as the previous renewal is valid. A shorter time
would never succeed with a server that is slow but not gone."""
_FIRST_ATTEMPT_SECONDS = 10.0
_RELEASE_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_RENEWAL_ATTEMPTS = 5
"""How often an entry that another process has written meanwhile is written again."""
WRONG_SEQUENCE = (10071, 10164)
"""JetStream's error for a write that expects another revision."""
_LAST_SEQUENCE = re.compile(r"wrong last sequence: (\d{1,20})")


class HeldByOtherMachine(SessionBusy):
    """Another machine holds the session; `data["machine"]` names it."""

    def __init__(self, holding: "Holding") -> None:
        super().__init__(
            f"Session {holding.session_id} is held by machine {holding.machine}.",
            machine=holding.machine,
            epoch=holding.epoch,
        )
        self.holding = holding


class TransferUnfinished(SessionBusy):
    """The session was given to this machine, which has not taken it yet: the files on its disk are not current."""


class LeaseLapsed(UpstreamUnavailable):
    """This machine cannot reach the fleet, so it may neither take sessions nor write to them."""


class MachineInUse(SessionBusy):
    """Another process reports under this machine's id: its key was copied."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A session held by a machine. The epoch grows with each change of holder, the revision with each write."""

    session_id: str
    machine: str
    epoch: int
    principal: str
    revision: int
    arriving: bool = False
    """Whether the machine was given the session and has not finished taking it: until then it must not be used there,
    and any gateway may request the rest."""
    stays: bool = False
    """Whether the session is pinned to the machine: no other can take it, whether or not the machine is online."""
    run: str = ""
    """The process of the machine that claimed it, and below the number of that claim in the process."""
    number: int = 0


def suspend_aware_clock() -> float:
    """Seconds of a clock that cannot be set and that runs while the machine is suspended. `time.monotonic` stops in a
    suspended Linux or macOS."""
    if hasattr(time, "CLOCK_BOOTTIME"):  # Linux
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_UPTIME_RAW"):  # macOS: this clock runs during sleep, unlike `time.monotonic`
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()


class FencingClock:
    """How long a lease is valid, by this machine's clock only. Pure: no I/O, no event loop."""

    def __init__(
        self,
        now: Callable[[], float] = suspend_aware_clock,
        duration: float = MIN_LEASE_SECONDS * VALID_PART,
    ) -> None:
        self.now = now
        self.duration = duration
        """Seconds for which a renewal counts, the last one included."""
        self._sent = float("-inf")

    def renewed(self, sent: float) -> None:
        """A renewal was acknowledged. `sent` is the time before it was sent: NATS cannot have stored it earlier."""
        self._sent = max(self._sent, sent)

    def end(self) -> None:
        """The lease is known to be over."""
        self._sent = float("-inf")

    @property
    def remaining(self) -> float:
        """Seconds until the lease lapses; not positive once it has."""
        return self._sent + self.duration - self.now()


class MachineLease:
    """This machine's entry in the bucket of machines, renewed while `kept` runs. Its value is the machine's report, so
    a report and a renewal are one message. `standing` uses the clock, without an await: after a freeze the first call
    notices the lapse, whether or not the event loop ran a timer.

    The machine asks for the length of the fleet's leases when it has taken the lease, when it has taken it again after
    the entry had expired, and after each reconnection. Until then it counts with the shortest. The length is never
    shortened while the entry exists, so an answer from after the entry was written holds for as long as the entry is
    renewed."""

    def __init__(
        self,
        connection: FleetConnection,
        machine_id: str,
        report: Callable[[], bytes],
        clock: FencingClock | None = None,
    ) -> None:
        self.machine_id = names.token(machine_id)
        self.lapsed: Callable[[], None] = lambda: None
        """Called once at each lapse, by the call that notices it. Must not block."""
        self.regained: Callable[[], Awaitable[None]] = _nothing
        """Awaited after renewals, concurrently with the next ones, never twice at once; repeated after a failure."""
        self.read_length: Callable[[], Awaitable[float]] = _shortest
        """The length of the fleet's leases in seconds. May raise what NATS and the keeper raise: then it is asked for
        again after the next renewal."""
        self.lapses = 0
        """How often the lease lapsed. Confirmations from before the latest lapse no longer count."""
        self._connection = connection
        self._report = report
        self._clock = clock or FencingClock()
        self._length_known = False
        self._taken = 0
        """How often the entry was found expired. An answer to `read_length` from before that does not count."""
        self._attempt_seconds = _FIRST_ATTEMPT_SECONDS
        self._revision = 0
        self._acknowledged = False
        self._held = False
        self._leaving = False
        self._renew_now = anyio.Event()
        self._renewed = anyio.Event()

    @property
    def standing(self) -> bool:
        """Whether the lease is valid now."""
        if self._held and self._clock.remaining <= 0:
            self._held = False
            self.lapses += 1
            if not self._leaving:
                log.warning("the lease of machine %s expired; its turns are paused", self.machine_id)
            self.lapsed()
        return self._held

    def renew_now(self) -> None:
        """Reports at once, without waiting for the next renewal."""
        self._renew_now.set()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Takes the lease, renews it until the end of the block, and releases it. Raises LeaseLapsed if it cannot be
        taken, and MachineInUse, also later, if another process has this id."""
        in_use: list[MachineInUse] = []
        await self._renew(adopt=True)
        self._attempt_seconds = MIN_LEASE_SECONDS * _ATTEMPT_PART
        self._connection.when_reconnected.append(self._forget_length)
        async with anyio.create_task_group() as tasks:

            async def keep() -> None:
                try:
                    await self._keep()
                except MachineInUse as problem:
                    in_use.append(problem)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(keep)
            tasks.start_soon(self._watch)
            try:
                await tasks.start(self._settle)
                yield
            finally:
                self._connection.when_reconnected.remove(self._forget_length)
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True), anyio.move_on_after(_RELEASE_SECONDS):
                    await self._give_up()
        if in_use:
            raise in_use[0]  # the error itself, not the group of the tasks that ended with it

    async def _keep(self) -> None:
        while True:
            with anyio.move_on_after(RENEWAL_SECONDS):
                await self._renew_now.wait()
            self._renew_now = anyio.Event()
            lapsed_before = not self.standing
            try:
                await self._renew(adopt=not self._acknowledged)
                # Not awaited here: the lease would lapse again while many sessions are confirmed or one confirmation
                # takes long.
                self._renewed.set()
            except LeaseLapsed as problem:
                report = log.debug if lapsed_before else log.warning  # once for each interruption
                report("%s", problem.message)
                await anyio.sleep(_RETRY_SECONDS)
                self._renew_now.set()

    async def _settle(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """A lapse is over only when every session is confirmed; failures are retried after the next renewal. It has
        started when the fleet was asked for the length of a lease, whether or not it answered."""
        await self._learn_length()
        task_status.started()
        while True:
            await self._renewed.wait()
            self._renewed = anyio.Event()  # before the call: a renewal during it may have ended another lapse
            await self._learn_length()
            try:
                await self.regained()
            except (ClaudeCodeError, NatsError, OSError, TimeoutError) as problem:
                log.debug("not every session was confirmed: %s", problem)
                await anyio.sleep(_RETRY_SECONDS)
                self.renew_now()

    def _forget_length(self) -> None:
        """It may be longer now, and is asked for again; until then the known one holds."""
        self._length_known = False

    async def _learn_length(self) -> None:
        if self._length_known or not self._acknowledged:
            return
        taken = self._taken
        try:
            length = await self.read_length()
        except (ClaudeCodeError, NatsError, OSError, TimeoutError, ValueError) as problem:
            log.debug("the length of the fleet's leases is not known yet: %s", problem)
            return
        if taken == self._taken:
            self._length_known = True
            self._clock.duration = length * VALID_PART
            self._attempt_seconds = length * _ATTEMPT_PART

    async def _watch(self) -> None:
        """Wakes when the lease would lapse. The timer may be late after a suspension; every call of `standing` checks
        too."""
        while True:  # noqa: ASYNC110 - it is time that is waited for
            await anyio.sleep(max(self._clock.remaining, _RETRY_SECONDS) if self.standing else RENEWAL_SECONDS)

    async def _renew(self, *, adopt: bool) -> None:
        """One renewal. `adopt` accepts an entry that this process did not write or whose acknowledgment was lost.
        Raises LeaseLapsed if NATS does not answer, MachineInUse if another process wrote the entry."""
        for _ in range(_RENEWAL_ATTEMPTS):
            sent = self._clock.now()  # before anything is sent: see FencingClock.renewed
            try:
                revision = await self._write(self._revision)
                break
            except APIError as problem:
                found = _LAST_SEQUENCE.search(problem.description or "")
                if problem.err_code not in WRONG_SEQUENCE or found is None:
                    raise LeaseLapsed(f"The lease could not be renewed: {problem.description}.") from None
                last = int(found[1])
                if last and not adopt:
                    # Our last write was acknowledged with its revision, so this one is not ours.
                    self._drop()
                    raise MachineInUse(f"Another process has written the entry of machine {self.machine_id}.") from None
                if not last:
                    # It has expired at NATS, whatever our clock says: other machines may have taken sessions.
                    self._drop()
                    self._taken += 1
                    self._length_known = False
                    self._clock.duration = min(self._clock.duration, MIN_LEASE_SECONDS * VALID_PART)
                self._revision = last
                self._acknowledged = False
        else:
            raise LeaseLapsed(f"Another process keeps writing the entry of machine {self.machine_id}.")
        self._revision, self._acknowledged = revision, True
        # The process may have been frozen in the await: a lapse must be found before the renewal hides it.
        _ = self.standing
        self._clock.renewed(sent)
        self._held = self._clock.remaining > 0

    async def _write(self, last: int) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(last)}
        # Until the acknowledgment arrives it is not known whether it was stored.
        self._acknowledged, acknowledged_before = False, self._acknowledged
        try:
            stored = await self._connection.jetstream.publish(
                names.entry(names.MACHINES, self.machine_id),
                self._report(),
                timeout=self._attempt_seconds,
                headers=headers,
            )
        except APIError:
            self._acknowledged = acknowledged_before  # it was refused, so the entry is as it was
            raise
        except (NatsError, OSError, TimeoutError) as problem:
            raise LeaseLapsed(f"The fleet does not respond: {problem or type(problem).__name__}.") from None
        return stored.seq

    def _drop(self) -> None:
        self._clock.end()
        _ = self.standing  # counts the lapse and pauses, unless that was done before

    async def _give_up(self) -> None:
        """Removes the entry, so that others need not wait for its expiry. Nothing of this machine may run any more."""
        stood = self.standing
        self._leaving = True
        self._drop()
        if not stood:
            return  # NATS has not answered for a while, and the entry expires
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self._revision), "KV-Operation": "DEL"}
        try:
            await self._connection.jetstream.publish(
                names.entry(names.MACHINES, self.machine_id), b"", timeout=_RELEASE_SECONDS, headers=headers
            )
        except (NatsError, OSError, TimeoutError) as problem:
            log.debug("the lease was not released and will expire: %s", problem)


async def _nothing() -> None:
    return None


async def _shortest() -> float:
    return MIN_LEASE_SECONDS


class Turns(Protocol):
    """The running turns of this machine, for the lease."""

    def pause(self) -> None:
        """Suspends (does not kill) the processes of every session bound to the lease. Called before the lease ends,
        without an await; must not block."""

    async def resume(self, holding: Holding) -> None:
        """The session is still ours, with the same epoch: its processes resume."""

    async def end(self, holding: Holding) -> None:
        """Another machine holds the session with a newer epoch: its processes are killed and nothing more is
        written."""


class Ownership(Protocol):
    """The holders of all sessions, changed only by compare-and-swap. `OwnershipBucket` and `KeeperOwnership` are its
    two implementations."""

    async def lease_seconds(self) -> float:
        """The length of the fleet's leases."""

    async def read(self, session_id: str) -> Holding | None:
        """The holder; None if no machine has the session."""

    async def claim(
        self, session_id: str, principal: str, machine_id: str, *, taking: bool = False, stays: bool = False
    ) -> Holding:
        """Takes the session with the next epoch. Raises HeldByOtherMachine, PermissionDenied for another principal, and
        TransferUnfinished for one that was given to the machine, unless it is `taking` it: then it stays arriving. A
        session that `stays` is pinned to the machine from then on."""

    async def arrived(self, holding: Holding) -> Holding:
        """The machine has all of the session. Raises HeldByOtherMachine if another machine, or none, holds it now."""

    async def confirm(self, holding: Holding) -> Holding:
        """Rewrites the holding with the same epoch, which defeats a take-over in progress. Raises HeldByOtherMachine if
        one is done."""

    async def release(self, holding: Holding) -> None:
        """Releases the session; does nothing if another machine holds it already."""


class Holdings:
    """The sessions that this machine holds."""

    def __init__(self, lease: MachineLease, ownership: Ownership, turns: Turns) -> None:
        self._lease = lease
        self._ownership = ownership
        self._turns = turns
        self._held: dict[str, Holding] = {}
        self._confirmed: dict[str, int] = {}
        """Session → the number of lapses when it was last confirmed."""
        self._staying: set[str] = set()
        """Sessions that the fleet knows to be pinned here."""
        self._locks: dict[str, anyio.Lock] = {}
        lease.lapsed = turns.pause
        lease.regained = self._confirm_all
        lease.read_length = ownership.lease_seconds

    @property
    def lapses(self) -> int | None:
        """How often this machine's lease lapsed; None while it is not valid."""
        return self._lease.lapses if self._lease.standing else None

    def valid(self, holding: Holding) -> bool:
        """Whether this machine may write to the session now. No await: call it directly before the write."""
        current = self._held.get(holding.session_id)
        # `standing` first: it detects a lapse and then increases the number of lapses.
        return (
            self._lease.standing
            and current is not None
            and current.epoch == holding.epoch
            and self._is_confirmed(holding.session_id)
        )

    def held(self, session_id: str) -> Holding | None:
        """The holding with which this machine writes a session, whether or not it may now; None without one."""
        return self._held.get(session_id)

    async def holder(self, session_id: str) -> Holding | None:
        """The machine that holds the session, according to the fleet."""
        return await self._ownership.read(session_id)

    async def claim(self, session_id: str, principal: str, *, taking: bool = False) -> Holding:
        """Takes a session that no living machine holds; returns the existing holding if it is already ours. With
        `taking`, the session was given to this machine and stays arriving until `arrived`. Raises HeldByOtherMachine,
        LeaseLapsed, PermissionDenied if the session is another principal's, and TransferUnfinished."""
        # One at a time: a second claim would take the session from the first with a newer epoch.
        async with self._alone(session_id):
            return await self._claim(session_id, principal, taking)

    async def note_staying(self, session_id: str, principal: str) -> None:
        """Tells the fleet that a session is pinned to this machine, so that gateways find it here and no machine takes
        it. It is not bound to the lease and not paused with it. Never raises: the session continues here in any case.
        Failures are retried by the next call; until then gateways look for it on the disks of all machines."""
        async with self._alone(session_id):
            if session_id in self._staying or not self._lease.standing:
                return
            try:
                noted = await self._ownership.claim(session_id, principal, self._lease.machine_id, stays=True)
            except ClaudeCodeError as problem:
                log.info("could not tell the fleet that session %s is pinned here: %s", session_id, problem.message)
                return
            if noted.stays:  # a keeper of an earlier version ignores `stays`
                self._staying.add(session_id)

    async def arrived(self, holding: Holding) -> Holding:
        """Everything of a taken session is on this machine's disk: from now on it continues here. Raises
        HeldByOtherMachine and LeaseLapsed."""
        async with self._alone(holding.session_id):
            current = self._held.get(holding.session_id)
            if current is None or current.epoch != holding.epoch:
                raise HeldByOtherMachine(current or replace(holding, machine=""))
            stored = await self._ownership.arrived(current)
            arrived = replace(current, revision=stored.revision, arriving=False)
            if self._held.get(holding.session_id) is current:  # not released meanwhile
                self._held[holding.session_id] = arrived
            return arrived

    @asynccontextmanager
    async def _alone(self, session_id: str) -> AsyncIterator[None]:
        """Within the block, nothing else here claims or confirms the session."""
        lock = self._locks.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():
                self._locks.pop(session_id, None)

    async def _claim(self, session_id: str, principal: str, taking: bool) -> Holding:
        current = self._held.get(session_id)
        if current is not None and current.principal == principal:
            if current.arriving and not taking:
                raise TransferUnfinished(f"Session {session_id} is being moved to this machine.")
            if self.valid(current):
                return current
            # This waited before `_confirm_all` did. Confirm and do not claim again: paused processes then resume.
            with suppress(HeldByOtherMachine):
                confirmed = await self._confirm(current)
                if self.valid(confirmed):
                    await self._turns.resume(confirmed)
                    return confirmed
        self._check_standing()
        lapses = self._lease.lapses
        holding = await self._ownership.claim(session_id, principal, self._lease.machine_id, taking=taking)
        self._held[session_id] = holding
        # Counted from before the claim: after a lapse in between it counts as unconfirmed, and `_confirm_all` checks
        # it.
        self._confirmed[session_id] = lapses
        return holding

    def _check_standing(self) -> None:
        if not self._lease.standing:
            raise LeaseLapsed(
                "This machine is disconnected from the fleet and accepts no sessions until it reconnects."
            )

    async def release(self, holding: Holding) -> None:
        """Releases a session. From the call on nothing may be written to it here, whether or not NATS answers."""
        current = self._held.get(holding.session_id)
        if current is None or current.epoch != holding.epoch:
            return
        del self._held[holding.session_id]
        self._confirmed.pop(holding.session_id, None)
        await self._ownership.release(current)

    def _is_confirmed(self, session_id: str) -> bool:
        return self._confirmed.get(session_id) == self._lease.lapses

    async def _confirm_all(self) -> None:
        """Confirms the holdings that were not confirmed since the latest lapse, one by one. Renewals continue
        meanwhile: after another lapse it starts over, and while the lease is not valid it leaves the rest to the next
        renewal."""
        while self._lease.standing:
            unconfirmed = [each for each in self._held.values() if not self._is_confirmed(each.session_id)]
            if not unconfirmed:
                return
            for holding in unconfirmed:
                await self._confirm_or_end(holding)

    async def _confirm_or_end(self, holding: Holding) -> None:
        session_id, confirmed = holding.session_id, None
        async with self._alone(session_id):
            if self._held.get(session_id) is not holding:
                return  # released, claimed or confirmed during the wait
            try:
                confirmed = await self._confirm(holding)
            except HeldByOtherMachine as taken:
                if self._held.get(session_id) is not holding:
                    return  # this machine released it itself
                log.warning("%s It was taken over while this machine was cut off.", taken.message)
                del self._held[session_id]
                self._confirmed.pop(session_id, None)
        # Outside the block: the end of a session may wait for a message that waits for its own claim.
        if confirmed is None:
            await self._turns.end(holding)
        elif self.valid(confirmed):  # the lease may have lapsed again: then it stays paused
            await self._turns.resume(confirmed)

    async def _confirm(self, holding: Holding) -> Holding:
        """Confirms a session that this machine holds; the caller is `_alone` with it. Raises HeldByOtherMachine, and
        LeaseLapsed while the lease is not valid: the stored holding then confirms nothing, because a machine that reads
        it can take the session before the next renewal is stored."""
        self._check_standing()
        lapses = self._lease.lapses
        stored = await self._ownership.confirm(holding)
        confirmed = replace(holding, revision=stored.revision)
        if self._held.get(holding.session_id) is holding:  # not released meanwhile
            self._held[holding.session_id] = confirmed
            # Counted from before it was sent: a lapse in between makes it unconfirmed.
            self._confirmed[holding.session_id] = lapses
        return confirmed
