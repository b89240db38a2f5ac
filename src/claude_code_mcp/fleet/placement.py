"""On which machine a session is begun, and who is next when all are full. Pure: no I/O, no clock.

A machine that does not fit is refused with the reason, never passed over silently. Among those that fit the first
criterion that differs decides: a repository that is there already, more free slots, more free memory, the id.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import InvalidArgument, LimitReached
from .machines import Machine

MEMORY_OF_A_SESSION = 160 << 20
"""Bytes that a machine must have free for one more session."""


@dataclass(frozen=True)
class Demand:
    """What a session needs of its machine."""

    version: str
    """Of claude-code-mcp, that of the gateway: another one may speak differently."""
    machine: str | None = None
    """The id or the name of the only machine that will do."""
    labels: frozenset[str] = frozenset()
    """The machine must have all of them."""
    allowed_labels: frozenset[str] | None = None
    """By the caller's policy: the machine must have one of them. None: any machine."""
    repository: str | None = None
    """The machine that has it is preferred."""
    cli_version: str | None = None
    """Of Claude Code, if only that one will do."""


class NoMachine(LimitReached):
    """No machine can take the session now. `reasons` has one for each machine; `waiting_helps` says whether a machine
    is only full or short of memory, so that another time may do."""

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
        return f"only {machine.free_memory >> 20} MiB of memory free"
    return None


def _never_fits(machine: Machine, demand: Demand) -> str | None:
    """Why the machine will not do however long one waits."""
    missing = demand.labels - machine.labels
    checks = (
        (
            demand.machine not in (None, machine.id, machine.name),
            f"not the machine {demand.machine} that was asked for",
        ),
        (missing, f"without the label {', '.join(sorted(missing))}"),
        (
            demand.allowed_labels is not None and not demand.allowed_labels & machine.labels,
            "not allowed by the policy",
        ),
        (machine.version != demand.version, f"version {machine.version} of claude-code-mcp, not {demand.version}"),
        (not machine.cli_version, "without Claude Code"),
        (
            demand.cli_version not in (None, machine.cli_version),
            f"Claude Code {machine.cli_version}, not {demand.cli_version}",
        ),
        (machine.draining, "drained: it takes nothing new"),
        (machine.capacity == 0, "takes no sessions"),
    )
    return next((reason for applies, reason in checks if applies), None)


@dataclass
class FairQueue:
    """Those who wait for a machine, first come first served for each principal, and the principals in turn.

    However many sessions one principal asks for, each other waits for at most one of them between two of its own. A
    machine that becomes free goes to the first in this order that fits on it.
    """

    longest: int = 10_000
    _waiting: dict[str, deque[tuple[str, Demand]]] = field(default_factory=dict)
    """Principal → what it waits for. The order of the principals is the order of their turns."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, ticket: str, principal: str, demand: Demand) -> int:
        """Queues a demand and returns its position, from 1. Raises LimitReached if the queue is full."""
        if any(ticket == queued for queued, _ in self._in_turn()):
            raise InvalidArgument(f"{ticket} is queued already")
        if len(self) >= self.longest:
            raise LimitReached(f"{self.longest} sessions wait for a machine, which is the most.")
        self._waiting.setdefault(principal, deque()).append((ticket, demand))
        return self.position(ticket)

    def position(self, ticket: str) -> int:
        """The place of a demand, from 1. Raises InvalidArgument if it does not wait."""
        for number, (queued, _) in enumerate(self._in_turn(), 1):
            if queued == ticket:
                return number
        raise InvalidArgument(f"{ticket} does not wait for a machine")

    def remove(self, ticket: str) -> None:
        """Takes a demand out; does nothing if it does not wait. The turn of its principal stays where it is."""
        for principal, demands in self._waiting.items():
            for item in demands:
                if item[0] == ticket:
                    demands.remove(item)
                    if not demands:
                        del self._waiting[principal]
                    return

    def next(self, machines: Sequence[Machine]) -> tuple[str, Machine] | None:
        """Takes out the first demand that fits on a machine now, with that machine; None if none fits. Afterwards all
        other principals that wait have their turn before the one that was served."""
        refused: set[Demand] = set()  # most demands are alike: each kind is looked at once
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
                self._waiting[principal] = self._waiting.pop(principal)  # to the end of the turns
            return ticket, machine
        return None

    def _in_turn(self) -> Iterator[tuple[str, Demand]]:
        """All that wait in the order in which they will be served: one of each principal, then the second of each."""
        columns = [list(demands) for demands in self._waiting.values()]
        for row in range(max(map(len, columns), default=0)):
            yield from (column[row] for column in columns if row < len(column))
