"""The session state machine: one set of states, its legal moves, and the two vocabularies callers see."""

from enum import StrEnum


class State(StrEnum):
    """What a session is doing. Whether it has a live process is another matter, and not part of the state."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    ERROR = "error"


BUSY = frozenset({State.STARTING, State.RUNNING, State.WAITING})
AT_REST = frozenset({State.IDLE, State.INTERRUPTED, State.ERROR})
FINAL = frozenset({State.CANCELLED})

_TURN_ENDS = AT_REST | FINAL
MOVES: dict[State, frozenset[State]] = {
    State.STARTING: frozenset({State.RUNNING}) | _TURN_ENDS,
    # From a turn whose process has crashed to the next one, for which another process starts.
    State.RUNNING: frozenset({State.WAITING, State.STARTING}) | _TURN_ENDS,
    State.WAITING: frozenset({State.RUNNING, State.STARTING}) | _TURN_ENDS,
    State.IDLE: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.INTERRUPTED: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
    State.ERROR: frozenset({State.STARTING, State.RUNNING, State.CANCELLED}),
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
}

CODE_TOOL_STATUS = {
    State.STARTING: "running",
    State.RUNNING: "running",
    State.WAITING: "running",
    State.IDLE: "idle",
    State.INTERRUPTED: "idle",
    State.CANCELLED: "cancelled",
    State.ERROR: "error",
}


class IllegalMove(ValueError):
    """A bug in the engine: the state machine was asked for a move it does not have."""


def move(current: State, to: State) -> State:
    """The state after the move; raises IllegalMove if there is no such move. Staying put is always legal."""
    if to is not current and to not in MOVES[current]:
        raise IllegalMove(f"{current} -> {to}")
    return to
