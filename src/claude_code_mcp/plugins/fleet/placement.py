"""Chooses the machine for a new session, and queues requests while all machines are full.

A machine that does not fit is refused with the reason, never passed over silently. Among machines that fit, the first
criterion that differs decides: a repository that is already there, more free slots, more free memory, the id. The queue
is fair between principals, and each caller learns its position.

Each gateway has its own queue, in memory: a caller waits within a call, which ends with the gateway anyway. A chosen
machine counts one more session until its own reports include it, so that simultaneous requests do not all go to the one
machine that reports a free slot.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ... import __version__
from ...core.errors import InvalidArgument, LimitReached
from ...core.model.text import size_of
from .dispatch import ReportPosition
from .leases import RENEWAL_SECONDS
from .machines import Machine
from .routing import PlacementRequest

MEMORY_OF_A_SESSION = 160 << 20
"""Bytes of free memory that a machine needs for one more session."""
_RESERVED_SECONDS = 2 * RENEWAL_SECONDS + 0.5
"""Seconds after which a machine has certainly reported a session that was sent to it."""
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class Demand:
    """The requirements of a session."""

    version: str
    """The gateway's version of claude-code-mcp, because others may use another protocol."""
    machine: str | None = None
    """The id or name of the only acceptable machine."""
    labels: frozenset[str] = frozenset()
    """Labels that the machine must all have."""
    allowed_labels: frozenset[str] | None = None
    """From the caller's policy: the machine must have one of these labels. None: any machine."""
    repository: str | None = None
    """A machine that already has this repository is preferred."""
    cli_version: str | None = None
    """The required version of Claude Code, if any."""


class NoMachine(LimitReached):
    """No machine can take the session now. `reasons` has one for each machine; `waiting_helps` says whether a machine
    is only full or short of memory, so that a later attempt may succeed."""

    def __init__(self, reasons: dict[str, str], waiting_helps: bool) -> None:
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) or "the fleet has no machine"
        super().__init__(f"No machine can take the session: {listed}.", reasons=reasons, waiting_helps=waiting_helps)
        self.reasons = reasons
        self.waiting_helps = waiting_helps


def choose(machines: Sequence[Machine], demand: Demand) -> Machine:
    """The machine for a session. Raises NoMachine with the reason for each machine."""
    refused = {machine.id: refusal(machine, demand) for machine in machines}
    fitting = [machine for machine in machines if refused[machine.id] is None]
    if not fitting:
        reasons = {f"{machine.name} ({machine.id})": refused[machine.id] or "" for machine in machines}
        waiting_helps = any(_never_fits(machine, demand) is None for machine in machines)
        raise NoMachine(reasons, waiting_helps)
    return min(fitting, key=lambda machine: _rank(machine, demand))


def _rank(machine: Machine, demand: Demand) -> tuple[bool, int, int, str]:
    elsewhere = demand.repository is not None and demand.repository not in machine.repositories
    return (elsewhere, -machine.free_slots, -machine.free_memory, machine.id)


def refusal(machine: Machine, demand: Demand) -> str | None:
    """Why a machine cannot take the session now; None if it can."""
    never = _never_fits(machine, demand)
    if never is not None:
        return never
    if machine.free_slots == 0:
        return f"full, {machine.sessions} of {machine.capacity} sessions"
    if machine.free_memory < MEMORY_OF_A_SESSION:
        return f"only {size_of(machine.free_memory)} of memory free"
    return None


def _version(machine: Machine) -> str:
    return f"version {machine.version}" if machine.version else "an unknown version"


def _never_fits(machine: Machine, demand: Demand) -> str | None:
    """Why waiting for this machine never helps."""
    missing = demand.labels - machine.labels
    checks = (
        (
            demand.machine not in (None, machine.id, machine.name),
            f"not the requested machine {demand.machine}",
        ),
        (missing, f"without the label {', '.join(sorted(missing))}"),
        (
            demand.allowed_labels is not None and not demand.allowed_labels & machine.labels,
            "not allowed by the policy",
        ),
        (
            machine.version != demand.version,
            f"{_version(machine)} of claude-code-mcp, not {demand.version}",
        ),
        (not machine.cli_version, "without Claude Code"),
        (
            demand.cli_version not in (None, machine.cli_version),
            f"Claude Code {machine.cli_version}, not {demand.cli_version}",
        ),
        (machine.draining, "drained: it accepts no new sessions"),
        (machine.capacity == 0, "accepts no sessions"),
    )
    return next((reason for applies, reason in checks if applies), None)


@dataclass
class FairQueue:
    """The queue for machines: first come, first served for each principal, and the principals in turn.

    However many sessions one principal requests, every other principal waits for at most one of them between two of its
    own, and finds room: a principal may have as many entries as there are free places. A free machine goes to the first
    entry in this order that fits.
    """

    longest: int = 2_000
    """Every step checks all waiting entries and notifies all of them."""
    _waiting: dict[str, deque[tuple[str, Demand]]] = field(default_factory=dict)
    """Principal → its waiting demands. The order of principals is the order of their turns."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, ticket: str, principal: str, demand: Demand) -> int:
        """Queues a demand and returns its position, from 1. Raises LimitReached if the principal has as many entries as
        there are free places: a single principal can take at most half of the queue."""
        if any(ticket == queued for queued, _ in self._in_turn()):
            raise InvalidArgument(f"{ticket} is already queued")
        own, all_of_them = len(self._waiting.get(principal, ())), len(self)
        if own >= self.longest - all_of_them:
            raise LimitReached(
                f"{all_of_them} sessions are waiting for a machine, {own} of them yours; the queue is full."
            )
        self._waiting.setdefault(principal, deque()).append((ticket, demand))
        return self.position(ticket)

    def position(self, ticket: str) -> int:
        """The position of a demand, from 1. Raises InvalidArgument if it is not queued."""
        for number, (queued, _) in enumerate(self._in_turn(), 1):
            if queued == ticket:
                return number
        raise InvalidArgument(f"{ticket} is not waiting for a machine")

    def order(self) -> list[str]:
        """All tickets in the order in which they will be served."""
        return [ticket for ticket, _ in self._in_turn()]

    def remove(self, ticket: str) -> None:
        """Removes a demand; does nothing if it is not queued. The turn of its principal does not change."""
        for principal, demands in self._waiting.items():
            for item in demands:
                if item[0] == ticket:
                    demands.remove(item)
                    if not demands:
                        del self._waiting[principal]
                    return

    def next(self, machines: Sequence[Machine]) -> tuple[str, Machine] | None:
        """Removes and returns the first demand that fits on a machine now, with that machine; None if none fits. All
        other waiting principals then have their turn before the served principal."""
        refused: set[Demand] = set()  # most demands are equal: each distinct one is checked once
        for ticket, demand in list(self._in_turn()):
            if demand in refused:
                continue
            try:
                machine = choose(machines, demand)
            except NoMachine:
                refused.add(demand)
                continue
            principal = next(name for name, demands in self._waiting.items() if (ticket, demand) in demands)
            self.remove(ticket)
            if principal in self._waiting:
                self._waiting[principal] = self._waiting.pop(principal)  # the principal goes to the end of the order
            return ticket, machine
        return None

    def _in_turn(self) -> Iterator[tuple[str, Demand]]:
        """All waiting demands in the order in which they will be served: one of each principal, then the second of
        each."""
        columns = [list(demands) for demands in self._waiting.values()]
        for row in range(max(map(len, columns), default=0)):
            yield from (column[row] for column in columns if row < len(column))


def choose_machine(machines: Sequence[Machine], request: PlacementRequest) -> Machine:
    """A machine with exactly this version for a new session. Raises NoMachine with the reason for each machine."""
    return choose(machines, demand_of(request))


def demand_of(request: PlacementRequest) -> Demand:
    """The requirements of a request: its own, and a machine with exactly this version."""
    return Demand(version=__version__, machine=request.machine, labels=request.labels)


# -- the queue of a gateway --------------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Waiting:
    position: int = 0
    machine: Machine | None = None
    """The chosen machine, once there is one."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)


class PlacementQueue:
    """Chooses the machine of each new session of one gateway."""

    def __init__(
        self,
        machines: Callable[[], Sequence[Machine]],
        changed: Callable[[], Awaitable[None]],
        longest_wait: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`machines` returns the online machines; `changed` returns when one of them reports something new."""
        self._machines = machines
        self._changed = changed
        self._longest_wait = longest_wait
        self._now = now
        self._queue = FairQueue()
        self._waiting: dict[str, _Waiting] = {}
        self._reserved: list[tuple[str, float]] = []
        """Machine, and until when one more session counts there."""
        self._serving: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    async def place(self, request: PlacementRequest, report: ReportPosition) -> Machine:
        """The machine for a new session, at once or when it is its turn; `report` receives every position on the way.
        Raises NoMachine if waiting does not help, and LimitReached if the queue is full or no machine became free in
        time."""
        demand = demand_of(request)
        try:
            machine = choose(self._counted(), demand)
            if not self._waiting:
                return self._reserve(machine)
        except NoMachine as full:
            if not full.waiting_helps or self._longest_wait <= 0:
                raise
        ticket, waiting = uuid.uuid4().hex, _Waiting()
        self._queue.add(ticket, request.principal, demand)
        self._waiting[ticket] = waiting
        if self._serving is None:
            self._serving = asyncio.ensure_future(self._serve_changes())
        self._serve()
        taken = False
        try:
            async with asyncio.timeout(self._longest_wait):
                machine = await self._served(waiting, report)
            taken = True
            return machine
        except TimeoutError:
            raise LimitReached(
                f"No machine became free within {self._longest_wait:g} s; the session was number {waiting.position} "
                f"of {len(self._queue)} in the queue. Try again later.",
                position=waiting.position,
            ) from None
        finally:
            self._leave(ticket, waiting, taken)

    async def _served(self, waiting: _Waiting, report: ReportPosition) -> Machine:
        reported = 0
        while True:
            waiting.moved.clear()  # before the check: changes during a report are seen in the next round
            if waiting.machine is not None:
                return waiting.machine
            if waiting.position != reported:
                reported = waiting.position
                await report(reported, len(self._queue))
            await waiting.moved.wait()

    def _leave(self, ticket: str, waiting: _Waiting, taken: bool) -> None:
        self._queue.remove(ticket)
        del self._waiting[ticket]
        if waiting.machine is not None and not taken:  # cancelled just when a machine was assigned
            with suppress(StopIteration):
                self._reserved.remove(next(each for each in self._reserved if each[0] == waiting.machine.id))
        self._serve()
        if not self._waiting and self._serving is not None:
            self._serving.cancel()
            self._serving = None

    async def _serve_changes(self) -> None:
        while True:
            with suppress(TimeoutError):
                # A reservation can end without a report, so check periodically.
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed()
            self._serve()

    def _serve(self) -> None:
        """Assigns every free machine to the next fitting demand and reports all positions. Awaits nothing."""
        while (found := self._queue.next(self._counted())) is not None:
            ticket, machine = found
            self._waiting[ticket].machine = self._reserve(machine)
            self._waiting[ticket].moved.set()
        for position, ticket in enumerate(self._queue.order(), 1):
            waiting = self._waiting[ticket]
            if waiting.position != position:
                waiting.position = position
                waiting.moved.set()

    def _reserve(self, machine: Machine) -> Machine:
        self._reserved.append((machine.id, self._now() + _RESERVED_SECONDS))
        return machine

    def _counted(self) -> list[Machine]:
        """The machines, including sessions that are on their way to them."""
        now = self._now()
        self._reserved = [each for each in self._reserved if each[1] > now]
        coming = [machine_id for machine_id, _ in self._reserved]
        return [replace(each, sessions=each.sessions + coming.count(each.id)) for each in self._machines()]
