"""Where a request of a gateway's client goes, decided from the request alone.

A call about a session goes to the machine that holds it, one that begins a session to a machine that is chosen, and
what is about all sessions to every machine. What a machine gives out and is asked for later without a session (the
state of a call that waits for an answer, the id of a task) gets the machine's id in front, so that any gateway finds
the way back.

Pure but for `LiveFleet`, which asks the fleet's buckets.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from ...core.errors import InvalidArgument
from ...core.model.options import DIRECTORY_NAMES
from ...core.model.session_id import is_session_id
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
STAY_SCHEMA: Final = {
    "type": "boolean",
    "description": "Pinned to its machine: not copied, not taken over by others, not paused without the fleet",
}
STAYING: Final = frozenset({"claude_create_session", "claude_code"})
"""The tools that can begin a session which stays on its machine."""

MOVE_SCHEMA: Final = {
    "machine": {"type": "string", "description": "move: name or id of the machine to continue on"},
    "wait": {"type": "boolean", "description": "move: after the running turn"},
}
"""What the managing tool has in a fleet alone."""

_TEXT: Final = {"type": "string"}
_RESULT_FIELDS: Final = {
    "machine": _TEXT,
    "notices": {"type": "array", "items": _TEXT},
    "withoutTree": _TEXT,
    "olderTree": _TEXT,
    "setupFailed": _TEXT,
    "lostTurn": {"type": "object", "properties": {"code": _TEXT, "detail": _TEXT}},
    "unanswered": {"type": "array", "items": {"type": "object", "properties": {"machine": _TEXT, "reason": _TEXT}}},
}
"""What results have in a fleet alone: the machine of a session, the losses with its last machine, and the
machines that did not answer."""
_ROW_FIELDS: Final = {"machine": _TEXT, "machineGone": {"type": "boolean"}}


def fleet_output(schema: JsonObject) -> dict[str, Any]:
    """The schema of a tool's result as a gateway returns it."""
    properties = {**schema.get("properties", {}), **_RESULT_FIELDS}
    for name in ("sessions", "lines", "budgets"):
        if name in properties:
            items = properties[name]["items"]
            rows = {**items, "properties": {**items["properties"], **_ROW_FIELDS}}
            properties[name] = {**properties[name], "items": rows}
    return {**schema, "properties": properties}


def directory_in(arguments: JsonObject) -> object:
    """The directory in the arguments of a tool, by whichever of its names."""
    return next((value for name in DIRECTORY_NAMES if (value := arguments.get(name))), None)


_SESSION_ADDRESS = re.compile(r"claude-session:///([0-9A-Fa-f-]{36})(?=[/?]|$)")
_ALL_SESSIONS = "claude-sessions:///"
_MAX_LABELS = 100


class MachineIdentity(Protocol):
    """What routing needs to know of a machine of the fleet."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> str:
        """Tells its process from those before it; empty if it says nothing of that."""


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

    async def stays(self, session_id: str) -> bool:
        """Whether no other machine than its own can go on with a session."""

    async def absent(self, principal: str | None) -> Sequence[Holding]:
        """The sessions of a principal, or of all, that no machine which is there holds, those first whose holder
        changed last. Raises TimeoutError while they are not known."""

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
        problem = "must be a string" if takes_machine else "unknown field"
        raise InvalidArgument(f"machine: {problem}", field="machine")
    are_labels = isinstance(labels, list) and len(labels) <= _MAX_LABELS and all(isinstance(x, str) for x in labels)
    if labels and (name not in BEGINNING or not are_labels):
        raise InvalidArgument("labels: must be a list of strings, for a new session", field="labels")
    sent = {**params, "arguments": arguments}
    asked_for = arguments.get("sessionId")
    session_id = asked_for.lower() if isinstance(asked_for, str) and is_session_id(asked_for) else None
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
        directory = directory_in(arguments)
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
    problem = "is the name of several machines" if found else "is not a connected machine"
    raise InvalidArgument(f"machine: {wanted[:100]!r} {problem}. There are: {known}.", field="machine")


# -- ids of machines in front of theirs -------------------------------------------------------------------------------


def with_machine(machine_id: str, text: str) -> str:
    """The text with the machine in front."""
    return f"{machine_id}.{text}"


def split_id(text: object) -> tuple[str, str]:
    """The machine and the text behind it. Raises InvalidArgument for what no machine of a fleet has given out."""
    machine, dot, rest = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not dot:
        raise InvalidArgument("This did not come from a machine of the fleet.")
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
        if holding is not None and holding.stays and self._membership.was_removed(holding.machine):
            return None  # its machine may have joined again under another id: it is looked for on the disks
        return holding.machine if holding is not None else None

    async def stays(self, session_id: str) -> bool:
        holding = await self._ownership.last(session_id)
        return holding is not None and holding.stays

    async def absent(self, principal: str | None) -> Sequence[Holding]:
        return await self._ownership.not_held_by({machine.id for machine in self.machines()}, principal)

    async def give(self, session_id: str, principal: str, machine_id: str) -> Holding | None:
        return await self._ownership.give(session_id, principal, machine_id)

    async def give_back(self, session_id: str, principal: str, machine_id: str) -> None:
        await self._ownership.give_back(session_id, principal, machine_id)

    async def take_back(self, holding: Holding) -> None:
        await self._ownership.release(holding)
