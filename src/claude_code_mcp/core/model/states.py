"""The states of a session with their legal moves, and what tools call them."""

from enum import StrEnum


class State(StrEnum):
    """The state of a session. Whether it has a live process is not part of the state."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    ERROR = "error"
    LIMITED = "limit_reached"
    """A usage limit ended the last turn."""


BUSY = frozenset({State.STARTING, State.RUNNING, State.WAITING})
AT_REST = frozenset({State.IDLE, State.INTERRUPTED, State.ERROR, State.LIMITED})
FINAL = frozenset({State.CANCELLED})

_TURN_ENDS = AT_REST | FINAL
MOVES: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING}) | _TURN_ENDS,
    # From a turn whose process crashed to the next turn, for which another process starts.
    State.RUNNING: frozenset({State.WAITING, State.STARTING}) | _TURN_ENDS,
    State.WAITING: frozenset({State.RUNNING, State.STARTING}) | _TURN_ENDS,
    State.IDLE: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.ERROR: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.LIMITED: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.CANCELLED: frozenset(),
}

SESSION_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "waiting_for_input",
    State.IDLE: "completed",
    State.INTERRUPTED: "interrupted",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
    State.LIMITED: "limit_reached",
}
BUSY_STATUSES = frozenset(SESSION_TOOL_STATUS[state] for state in BUSY)
"""Statuses of a session whose turn runs or waits for an answer."""

CODE_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.IDLE: "idle",
    State.INTERRUPTED: "idle",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
    State.LIMITED: "error",
}


class IllegalMove(ValueError):
    """A bug in the engine: the state machine has no such transition."""
