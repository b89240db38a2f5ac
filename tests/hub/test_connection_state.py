"""The state machine of a connection."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.hub.connection_state import (
    MOST_ATTEMPTS,
    MOVES,
    Connection,
    ConnectionState,
    IllegalConnectionMove,
)

S = ConnectionState


def test_it_begins_pending_and_untried() -> None:
    assert Connection() == Connection(S.PENDING, attempt=0, reason=None)


def test_from_an_attempt_it_gets_connected_fails_or_needs_a_sign_in() -> None:
    attempt = Connection().attempted()
    assert attempt.attempt == 1
    assert attempt.connected().state is S.CONNECTED
    assert attempt.failed("why").reason == "why"
    assert attempt.needs_auth("who").state is S.NEEDS_AUTH


@pytest.mark.parametrize("from_", [S.FAILED, S.NEEDS_AUTH, S.DISABLED])
def test_only_an_attempt_leads_to_a_connection(from_: ConnectionState) -> None:
    with pytest.raises(IllegalConnectionMove):
        Connection(from_).connected()


def test_disabled_is_left_only_when_it_is_wanted_again() -> None:
    disabled = Connection().attempted().connected().disabled("by hand")
    with pytest.raises(IllegalConnectionMove):
        disabled.failed("late")
    assert disabled.wanted() == Connection(reason="by hand")


def test_a_first_attempt_that_fails_is_not_repeated_by_itself() -> None:
    assert not Connection().attempted().may_retry


def test_a_lost_connection_is_tried_for_again_a_few_times() -> None:
    lost = Connection().attempted().connected().lost("closed")
    tries = 0
    while (lost := lost.attempted()).may_retry:
        lost = lost.retrying("still not")
        tries += 1
    assert tries == MOST_ATTEMPTS - 1
    assert not lost.failed("no more").may_retry


def test_a_connection_that_never_lasts_uses_up_its_attempts() -> None:
    connection = Connection()
    for _ in range(MOST_ATTEMPTS):
        connection = connection.attempted().connected().lost("closed at once", lasted=False)
    assert not connection.may_retry
    assert Connection().attempted().connected().lost("closed after hours").may_retry


def test_three_errors_wear_it_out_and_one_answer_heals_it() -> None:
    connection = Connection().attempted().connected().troubled().troubled()
    assert not connection.worn_out
    assert connection.troubled().worn_out
    assert not connection.healthy().troubled().worn_out


def test_pauses_grow_to_a_limit_and_are_spread() -> None:
    pauses = [Connection(attempt=attempt).pause(1.0) for attempt in range(1, 12)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.5
    assert pauses[-1] == 30
    assert Connection(attempt=1).pause(0.0) == 0.25


@given(st.lists(st.sampled_from(list(S)), max_size=20))
def test_no_path_leaves_the_table_of_moves(path: list[ConnectionState]) -> None:
    connection = Connection()
    for to in path:
        legal = to is connection.state or to in MOVES[connection.state]
        if legal:
            connection = moved(connection, to)
            assert connection.state is to
        else:
            with pytest.raises(IllegalConnectionMove):
                moved(connection, to)


def moved(connection: Connection, to: ConnectionState) -> Connection:
    match to:
        case S.PENDING:
            return connection.wanted()
        case S.CONNECTED:
            return connection.connected()
        case S.FAILED:
            return connection.failed("x")
        case S.NEEDS_AUTH:
            return connection.needs_auth("x")
        case S.DISABLED:
            return connection.disabled("x")
