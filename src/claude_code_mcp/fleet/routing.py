"""Where a request of a gateway's client goes, decided from the request alone, and on which machine a session begins.

A call about a session goes to the machine that holds it, one that begins a session to a machine that is chosen, and
what is about all sessions to every machine. What a machine gives out and is asked for later without a session (the
state of a call that waits for an answer, the id of a task) gets the machine's id in front, so that any gateway finds
the way back.

A machine that does not fit a new session is refused with the reason, never passed over silently. Among those that fit
the first criterion that differs decides: a repository that is there already, more free slots, more free memory, the
id. Pure but for `LiveFleet`, which asks the fleet's buckets.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from .. import __version__
from ..errors import InvalidArgument, LimitReached
from .leases import Holding
from .machines import GRACE_SECONDS, FleetMember, Machine, Membership
from .ownership import OwnershipBucket

JsonObject = Mapping[str, Any]

BEGINNING: Final = frozenset({"claude_create_session", "claude_code", "claude_code_query"})
"""The tools that begin a session: they take `machine` and `labels`."""
CONTINUING: Final = frozenset({"claude_send_message", "claude_code_reply"})
"""The tools whose call lets a session go on: one whose machine is gone is then taken over by another."""
ABOUT_ALL: Final = frozenset({"claude_list_sessions", "claude_session_costs"})
ABOUT_A_MACHINE: Final = frozenset(
    {"claude_code_configure", "claude_mcp_servers", "claude_mcp_search", "claude_mcp_call"}
)
"""What they do, or tell of, is a machine's own."""
MANAGING: Final = "claude_manage_session"
"""The tool that also moves a session, where there is another machine."""
MACHINE_SCHEMA: Final = {"type": "string", "description": "Name or id of a machine of the fleet"}
LABELS_SCHEMA: Final = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Only on a machine that has all of these labels",
}

MOVE_SCHEMA: Final = {
    "machine": {"type": "string", "description": "move: name or id of the machine that it goes on with"},
    "wait": {"type": "boolean", "description": "move: after the turn that is running"},
}
"""What the managing tool has in a fleet alone."""

_SESSION_ADDRESS = re.compile(r"claude-session:///([0-9A-Fa-f-]{36})(?=[/?]|$)")
_ALL_SESSIONS = "claude-sessions:///"
_SESSION_ID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_MOST_LABELS = 100


class MachineIdentity(Protocol):
    """What routing needs to know of a machine of the fleet."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


class FleetView(Protocol):
    """What a gateway knows of the fleet."""

    def machines(self) -> Sequence[MachineIdentity]:
        """Those that are there now."""

    def gone(self) -> Sequence[MachineIdentity]:
        """Those that belong to the fleet and are not there: of what they have, lists show the fleet's copy."""

    async def changed(self) -> None:
        """Returns when a machine has come or gone."""

    async def holder(self, session_id: str) -> str | None:
        """The id of the machine that holds a session; empty if the last one gave it up, or the next one has yet to take
        it; None if there never was one."""

    async def absent(self, principal: str) -> Sequence[Holding]:
        """The sessions of a principal that no machine which is there holds, those first whose holder changed last.
        Raises TimeoutError while they are not known."""

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        """Gives a session that no living machine holds to one; None if it is that machine's already. Raises
        HeldElsewhere if another has it by then, and PermissionDenied if it is another principal's."""

    async def give_back(self, session_id: str, principal: str, machine_id: str) -> None:
        """Gives a session that nobody holds back to the machine that has just given it away. Raises HeldElsewhere."""

    async def take_back(self, holding: Holding) -> None:
        """Frees a session again that a machine was given and has not claimed since."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """On which machine a session is to begin."""

    principal: str
    machine: str | None = None
    """Its id or its name."""
    labels: frozenset[str] = frozenset()
    directory: str | None = None


class Goal(Enum):
    """Which machines a request is for."""

    SESSION = "session"
    """The one that holds a session."""
    MACHINE = "machine"
    """The one that is named."""
    NEW = "new"
    """One that is chosen."""
    ALL = "all"
    ANY = "any"
    """Whichever: the answer is the same everywhere."""


@dataclass(frozen=True, slots=True)
class RequestRoute:
    """Where a request goes, and what is sent there."""

    goal: Goal
    params: JsonObject
    key: str = ""
    """The session or the machine."""
    placement: PlacementRequest | None = None
    continues: bool = False
    """Whether the session goes on with it, elsewhere if its machine is gone."""
    move_to: str = ""
    """The machine that a session is to be moved to."""
    message_key: str | None = None
    """With the same key the same machine is chosen again: a repeated call counts once."""


def route(method: str, params: JsonObject, principal: str) -> RequestRoute:
    """The way of a request. Raises InvalidArgument where it cannot be told."""
    if method == "tools/call":
        return _tool_route(params, principal)
    if method.startswith("tasks/"):
        machine, task_id = split_id(params.get("taskId"))
        return RequestRoute(Goal.MACHINE, {**params, "taskId": task_id}, machine)
    if method in ("resources/read", "resources/subscribe", "resources/unsubscribe"):
        return _resource_route(params)
    if method in ("resources/list", "completion/complete"):
        return RequestRoute(Goal.ALL, params)
    return RequestRoute(Goal.ANY, params)


def _tool_route(params: JsonObject, principal: str) -> RequestRoute:  # noqa: PLR0911 - one for each kind of call
    name, call_arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(call_arguments, Mapping):
        return RequestRoute(Goal.ANY, params)  # which refuses it
    arguments = dict(call_arguments)
    machine, labels = arguments.pop("machine", None), arguments.pop("labels", None) or []
    moves = name == MANAGING and arguments.get("action") == "move"
    takes_machine = moves or name in BEGINNING | ABOUT_ALL | ABOUT_A_MACHINE
    if machine is not None and (not isinstance(machine, str) or not takes_machine):
        problem = "must be a text" if takes_machine else "unknown field"
        raise InvalidArgument(f"machine: {problem}", field="machine")
    are_labels = isinstance(labels, list) and len(labels) <= _MOST_LABELS and all(isinstance(x, str) for x in labels)
    if labels and (name not in BEGINNING or not are_labels):
        raise InvalidArgument("labels: must be a list of texts, for a new session", field="labels")
    sent = {**params, "arguments": arguments}
    asked_for = arguments.get("sessionId")
    session_id = asked_for.lower() if isinstance(asked_for, str) and _SESSION_ID.fullmatch(asked_for) else None
    # First: a move that reached its machine alone would be half of one.
    if moves and session_id is not None:
        if not machine:
            raise InvalidArgument("machine: required for move", field="machine")
        return RequestRoute(Goal.SESSION, sent, session_id, move_to=machine)
    if params.get("requestState") is not None:
        # A later round of a call that waits for an answer, wherever its session may be recorded.
        machine, state = split_id(params["requestState"])
        return RequestRoute(Goal.MACHINE, {**sent, "requestState": state}, machine)
    if name in BEGINNING:
        directory = arguments.get("workingDirectory") or arguments.get("cwd")
        placement = PlacementRequest(
            principal, machine, frozenset(labels), directory if isinstance(directory, str) else None
        )
        key = arguments.get("messageKey")
        return RequestRoute(Goal.NEW, sent, placement=placement, message_key=key if isinstance(key, str) else None)
    if machine is not None:
        return RequestRoute(Goal.MACHINE, sent, machine)
    if session_id is not None:
        return RequestRoute(Goal.SESSION, sent, session_id, continues=name in CONTINUING)
    is_list = name == "claude_code_session" and arguments.get("action") == "list"
    if name in ABOUT_ALL or is_list:
        return RequestRoute(Goal.ALL, sent)
    if name in ABOUT_A_MACHINE:
        return RequestRoute(Goal.MACHINE, sent)
    return RequestRoute(Goal.ANY, sent)  # which refuses it, and says what is wrong with it


def _resource_route(params: JsonObject) -> RequestRoute:
    uri = params.get("uri")
    session_id = session_of(uri) if isinstance(uri, str) else None
    if session_id is not None:
        return RequestRoute(Goal.SESSION, params, session_id)
    return RequestRoute(Goal.ALL if isinstance(uri, str) and uri.startswith(_ALL_SESSIONS) else Goal.ANY, params)


def session_of(uri: str) -> str | None:
    """The session whose resource this is; None if it is not that of one."""
    found = _SESSION_ADDRESS.match(uri)
    return found[1].lower() if found is not None else None


def find_machine(machines: Sequence[MachineIdentity], wanted: str) -> MachineIdentity:
    """The machine with this id, or else with this name. Raises InvalidArgument if there is none, or more than one."""
    found = [machine for machine in machines if machine.id == wanted] or [
        machine for machine in machines if machine.name == wanted
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(sorted(f"{machine.name} ({machine.id})" for machine in (found or machines))) or "none"
    problem = "is the name of several machines" if found else "is no machine that is there now"
    raise InvalidArgument(f"machine: {wanted[:100]!r} {problem}. There are: {known}.", field="machine")


# -- ids of machines in front of theirs -------------------------------------------------------------------------------


def with_machine(machine_id: str, text: str) -> str:
    """The text with the machine in front."""
    return f"{machine_id}.{text}"


def split_id(text: object) -> tuple[str, str]:
    """The machine and the text behind it. Raises InvalidArgument for what no machine of a fleet has given out."""
    machine, dot, rest = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not dot:
        raise InvalidArgument("This was not given out by a machine of the fleet.")
    return machine, rest


@dataclass(slots=True)
class ListenFilter:
    """What a client of 2026-07-28 wants to hear of, split by machine."""

    lists: JsonObject
    """The lists whose changes every machine is to tell."""
    _everywhere: dict[str, list[str]] = field(default_factory=dict)
    _by_machine: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, kind: str, key: str, machine_id: str | None = None) -> None:
        """Asks one machine, or every machine, for a resource (`resourceSubscriptions`) or a task (`taskIds`)."""
        wanted = self._everywhere if machine_id is None else self._by_machine.setdefault(machine_id, {})
        wanted.setdefault(kind, []).append(key)

    def at(self, machine_id: str) -> JsonObject:
        """The filter for one machine; empty if nothing is wanted of it."""
        wanted = dict(self.lists)
        for part in (self._everywhere, self._by_machine.get(machine_id, {})):
            for kind, keys in part.items():
                wanted[kind] = [*wanted.get(kind, ()), *keys]
        return wanted


# -- placement --------------------------------------------------------------------------------------------------------


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


def _version(machine: Machine) -> str:
    return f"version {machine.version}" if machine.version else "an unknown version"


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
        (
            machine.version != demand.version,
            f"{_version(machine)} of claude-code-mcp, not {demand.version}",
        ),
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

    However many sessions one principal asks for, each other waits for at most one of them between two of its own, and
    finds room: a principal may have as many in the queue as there are places left. A machine that becomes free goes to
    the first in this order that fits on it.
    """

    longest: int = 2_000
    """Every step of the queue is looked at for all that wait, and all are told."""
    _waiting: dict[str, deque[tuple[str, Demand]]] = field(default_factory=dict)
    """Principal → what it waits for. The order of the principals is the order of their turns."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, ticket: str, principal: str, demand: Demand) -> int:
        """Queues a demand and returns its position, from 1. Raises LimitReached if the principal has as many in the
        queue as there are places left: whoever asks for everything gets half, and leaves the rest to others."""
        if any(ticket == queued for queued, _ in self._in_turn()):
            raise InvalidArgument(f"{ticket} is queued already")
        own, all_of_them = len(self._waiting.get(principal, ())), len(self)
        if own >= self.longest - all_of_them:
            raise LimitReached(f"{all_of_them} sessions wait for a machine, {own} of them yours, which is the most.")
        self._waiting.setdefault(principal, deque()).append((ticket, demand))
        return self.position(ticket)

    def position(self, ticket: str) -> int:
        """The place of a demand, from 1. Raises InvalidArgument if it does not wait."""
        for number, (queued, _) in enumerate(self._in_turn(), 1):
            if queued == ticket:
                return number
        raise InvalidArgument(f"{ticket} does not wait for a machine")

    def order(self) -> list[str]:
        """All tickets in the order in which they will be served."""
        return [ticket for ticket, _ in self._in_turn()]

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


# -- live fleet -------------------------------------------------------------------------------------------------------


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

    async def note_absences(self) -> None:
        """Has the holders' bucket know since when a machine is gone, until it is cancelled."""
        while True:
            changed = self._membership.changed  # before the look: what happens after it is not missed
            self._ownership.note_present([machine.id for machine in self.machines()], GRACE_SECONDS)
            await changed.wait()

    async def holder(self, session_id: str) -> str | None:
        holding = await self._ownership.last(session_id)
        if holding is not None and holding.arriving:
            return ""
        return holding.machine if holding is not None else None

    async def absent(self, principal: str) -> Sequence[Holding]:
        return await self._ownership.not_held_by({machine.id for machine in self.machines()}, principal)

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        return await self._ownership.give(session_id, principal, machine_id)

    async def give_back(self, session_id: str, principal: str, machine_id: str) -> None:
        await self._ownership.give_back(session_id, principal, machine_id)

    async def take_back(self, holding: Holding) -> None:
        await self._ownership.release(holding)


def choose_machine(machines: Sequence[Machine], request: PlacementRequest) -> Machine:
    """A machine of this very version for a new session. Raises NoMachine with the reason for each machine."""
    return choose(machines, demand_of(request))


def demand_of(request: PlacementRequest) -> Demand:
    """What a request needs: a machine of this very version, beside what it says itself."""
    return Demand(version=__version__, machine=request.machine, labels=request.labels)
