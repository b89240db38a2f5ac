"""The session state machine: every move there is, and none else."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.states import (
    AT_REST,
    BUSY,
    CODE_TOOL_STATUS,
    FINAL,
    SESSION_TOOL_STATUS,
    IllegalMove,
    State,
)
from claude_code_mcp.core.sessions.session_state import StateTracker
from claude_code_mcp.core.transcripts.event_log import EventLog
from tests.support.tables import every_row

LEGAL = {
    "starting": "running idle interrupted cancelled error limit_reached",
    "running": "starting waiting idle interrupted cancelled error limit_reached",
    "waiting": "starting running idle interrupted cancelled error limit_reached",
    "idle": "starting running cancelled",
    "interrupted": "starting running cancelled",
    "error": "starting running cancelled",
    "limit_reached": "starting running cancelled",
    "cancelled": "",
}
PAIRS = list(itertools.product(State, State))


def move(current: State, to: State) -> State:
    """The state of a session that was in one and has moved to another."""
    tracker = StateTracker(EventLog(100, 1 << 20))
    tracker.state = current
    tracker.move(to)
    return tracker.state


@every_row(("current", "to"), [pair for pair in PAIRS if pair[1] in LEGAL[pair[0]].split()])
def test_allowed_transition_reaches_its_state(current: State, to: State) -> None:
    assert move(current, to) is to


@every_row("state", State)
def test_transition_to_the_same_state_is_allowed(state: State) -> None:
    assert move(state, state) is state


@every_row(
    ("current", "to"), [pair for pair in PAIRS if pair[0] is not pair[1] and pair[1] not in LEGAL[pair[0]].split()]
)
def test_invalid_transitions_are_refused_with_their_name(current: State, to: State) -> None:
    with pytest.raises(IllegalMove, match=f"{current} -> {to}"):
        move(current, to)


@given(st.lists(st.sampled_from(State)))
def test_cancelled_is_final_whatever_comes_later(attempts: list[State]) -> None:
    state = State.CANCELLED
    for attempt in attempts:
        try:
            state = move(state, attempt)
        except IllegalMove:
            continue
    assert state is State.CANCELLED


def test_every_state_is_busy_at_rest_or_final_and_only_one_of_them() -> None:
    assert sorted([*BUSY, *AT_REST, *FINAL]) == sorted(State)


@every_row("state", State)
def test_every_state_but_the_final_one_can_run_again(state: State) -> None:
    reachable = {state}
    while more := {to for one in reachable for to in LEGAL[one].split()} - reachable:
        reachable |= {State(one) for one in more}
    assert (State.RUNNING in reachable) == (state is not State.CANCELLED)


@every_row(
    ("state", "session_tools", "code_tools"),
    [
        (State.STARTING, "running", "running"),
        (State.RUNNING, "running", "running"),
        (State.WAITING, "waiting_for_input", "running"),
        (State.IDLE, "completed", "idle"),
        (State.INTERRUPTED, "interrupted", "idle"),
        (State.CANCELLED, "cancelled", "cancelled"),
        (State.ERROR, "error", "error"),
    ],
)
def test_each_tool_family_has_its_word_for_a_state(state: State, session_tools: str, code_tools: str) -> None:
    assert SESSION_TOOL_STATUS[state] == session_tools
    assert CODE_TOOL_STATUS[state] == code_tools
