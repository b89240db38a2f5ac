"""Routing of a gateway's requests, decided from the request alone.

A call about a session goes to the machine that holds it, a call that creates a session to a chosen machine, and a call
about all sessions to every machine. Values that a machine hands out and later expects back without a session (the state
of a call that waits for an answer, the id of a task) are prefixed with the machine's id, so that any gateway finds the
way back. Pure: what the fleet's buckets say is in `live_fleet.py`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from ...core.errors import InvalidArgument
from ...core.model.options import DIRECTORY_NAMES
from ...core.model.session_id import is_session_id

JsonObject = Mapping[str, Any]

BEGINNING: Final = frozenset({"claude_create_session", "claude_code", "claude_code_query"})
"""The tools that create a session: they accept `machine` and `labels`."""
CONTINUING: Final = frozenset({"claude_send_message", "claude_code_reply"})
"""The tools whose call continues a session: if its machine is offline, another one takes over."""
ABOUT_ALL: Final = frozenset({"claude_list_sessions", "claude_session_costs"})
ABOUT_A_MACHINE: Final = frozenset(
    {"claude_code_configure", "claude_mcp_servers", "claude_mcp_search", "claude_mcp_call"}
)
"""The tools whose subject belongs to one machine."""
MANAGING: Final = "claude_manage_session"
"""The tool that also moves a session, if there is another machine."""
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
"""The tools that can create a session that stays on its machine."""

MOVE_SCHEMA: Final = {
    "machine": {"type": "string", "description": "move: name or id of the machine to continue on"},
    "wait": {"type": "boolean", "description": "move: after the running turn"},
}
"""Additional parameters of the managing tool in a fleet."""

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
"""Additional result fields in a fleet: a session's machine, its losses with its previous machine, and machines that did
not answer."""
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
    """The directory in a tool's arguments, under any of its names."""
    return next((value for name in DIRECTORY_NAMES if (value := arguments.get(name))), None)


_SESSION_ADDRESS = re.compile(r"claude-session:///([0-9A-Fa-f-]{36})(?=[/?]|$)")
_ALL_SESSIONS = "claude-sessions:///"
_MAX_LABELS = 100


class MachineIdentity(Protocol):
    """What routing needs to know about a machine."""

    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> str:
        """Distinguishes its process from earlier ones; empty if unknown."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The machine on which a session should be created."""

    principal: str
    machine: str | None = None
    """Its id or its name."""
    labels: frozenset[str] = frozenset()
    directory: str | None = None


class Goal(Enum):
    """The machines that a request is for."""

    SESSION = "session"
    """The machine that holds a session."""
    MACHINE = "machine"
    """A named machine."""
    NEW = "new"
    """A chosen machine."""
    ALL = "all"
    ANY = "any"
    """Any machine: the answer is the same everywhere."""


@dataclass(frozen=True, slots=True)
class RequestRoute:
    """The destination and the content of a request."""

    goal: Goal
    params: JsonObject
    key: str = ""
    """The session or the machine."""
    placement: PlacementRequest | None = None
    continues: bool = False
    """Whether the session continues with it, elsewhere if its machine is offline."""
    move_to: str = ""
    """The machine that a session will be moved to."""
    message_key: str | None = None
    """The same key always chooses the same machine: a repeated call counts once."""


def route(method: str, params: JsonObject, principal: str) -> RequestRoute:
    """The route of a request. Raises InvalidArgument if it cannot be determined."""
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


def _tool_route(params: JsonObject, principal: str) -> RequestRoute:
    name, call_arguments = params.get("name"), params.get("arguments") or {}
    if not isinstance(name, str) or not isinstance(call_arguments, Mapping):
        return RequestRoute(Goal.ANY, params)  # the machine refuses it
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
    # First: a move that reached only its machine would be incomplete.
    if moves and session_id is not None:
        if not machine:
            raise InvalidArgument("machine: required for move", field="machine")
        return RequestRoute(Goal.SESSION, sent, session_id, move_to=machine)
    if params.get("requestState") is not None:
        # A later round of a call that waits for an answer goes to its machine, whatever holder the session has.
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
    return RequestRoute(Goal.ANY, sent)  # the machine refuses it with the reason


def _resource_route(params: JsonObject) -> RequestRoute:
    uri = params.get("uri")
    session_id = session_of(uri) if isinstance(uri, str) else None
    if session_id is not None:
        return RequestRoute(Goal.SESSION, params, session_id)
    return RequestRoute(Goal.ALL if isinstance(uri, str) and uri.startswith(_ALL_SESSIONS) else Goal.ANY, params)


def session_of(uri: str) -> str | None:
    """The session that a resource belongs to; None for other resources."""
    found = _SESSION_ADDRESS.match(uri)
    return found[1].lower() if found is not None else None


def find_machine(machines: Sequence[MachineIdentity], wanted: str) -> MachineIdentity:
    """The machine with this id, or otherwise with this name. Raises InvalidArgument if there is none, or more than
    one."""
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
    """The text prefixed with the machine."""
    return f"{machine_id}.{text}"


def split_id(text: object) -> tuple[str, str]:
    """The machine and the text after it. Raises InvalidArgument if no machine of a fleet issued it."""
    machine, dot, rest = text.partition(".") if isinstance(text, str) else ("", "", "")
    if not dot:
        raise InvalidArgument("This did not come from a machine of the fleet.")
    return machine, rest


@dataclass(slots=True)
class ListenFilter:
    """The notifications that a client of 2026-07-28 subscribes to, by machine."""

    lists: JsonObject
    """The lists whose changes every machine reports."""
    _everywhere: dict[str, list[str]] = field(default_factory=dict)
    _by_machine: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, kind: str, key: str, machine_id: str | None = None) -> None:
        """Adds a resource (`resourceSubscriptions`) or task (`taskIds`) on one machine or every machine."""
        wanted = self._everywhere if machine_id is None else self._by_machine.setdefault(machine_id, {})
        wanted.setdefault(kind, []).append(key)

    def at(self, machine_id: str) -> JsonObject:
        """The filter for one machine; empty if it has nothing to report."""
        wanted = dict(self.lists)
        for part in (self._everywhere, self._by_machine.get(machine_id, {})):
            for kind, keys in part.items():
                wanted[kind] = [*wanted.get(kind, ()), *keys]
        return wanted
