"""The state machine of a connection: legal moves, when to try again, when to give up, and who may wait."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.hub.reconnection import (
    LASTING,
    MAX_ATTEMPTS,
    MOVES,
    Conclusion,
    Connection,
    ConnectionState,
    IllegalConnectionMove,
    NextStep,
    Phase,
)

S = ConnectionState
NOW = 1000.0


def connecting() -> Connection:
    return Connection().requested_by_caller().attempted()


def established() -> Connection:
    return connecting().connected(NOW)


def conclude(
    connection: Connection, reason: str = "why", after: float = 0, needs_auth: bool = False, caller_waits: bool = False
) -> Conclusion:
    return connection.concluded(reason, NOW + after, needs_auth=needs_auth, caller_waits=caller_waits)


def test_it_begins_pending_and_untried_with_no_attempt_due() -> None:
    assert Connection() == Connection(S.PENDING, attempt=0, reason=None)
    assert not Connection().attempt_due
    assert Connection().requested_by_caller().attempt_due


def test_from_an_attempt_it_gets_connected_fails_or_needs_a_sign_in() -> None:
    assert connecting().attempt == 1
    assert established().state is S.CONNECTED
    assert conclude(connecting()).connection.state is S.FAILED
    assert conclude(connecting()).connection.reason == "why"
    assert conclude(connecting(), needs_auth=True).connection.state is S.NEEDS_AUTH


@pytest.mark.parametrize("from_", [S.FAILED, S.NEEDS_AUTH, S.DISABLED])
def test_only_an_attempt_leads_to_a_connection(from_: ConnectionState) -> None:
    with pytest.raises(IllegalConnectionMove):
        Connection(from_).connected(NOW)
    with pytest.raises(IllegalConnectionMove):
        Connection(from_, phase=Phase.CONNECTING).connected(NOW)
    with pytest.raises(IllegalConnectionMove):
        Connection().connected(NOW)


def test_abandoned_attempt_does_not_connect() -> None:
    for given_up in (connecting().reconnecting(), connecting().at_rest("x", caller_waits=True)):
        with pytest.raises(IllegalConnectionMove):
            given_up.connected(NOW)


@pytest.mark.parametrize("under_way", [connecting, established])
def test_attempts_do_not_overlap(under_way: Callable[[], Connection]) -> None:
    with pytest.raises(IllegalConnectionMove):
        under_way().attempted()


def test_disabled_is_left_only_when_it_is_enabled_again() -> None:
    disabled = established().disabled("by hand")
    with pytest.raises(IllegalConnectionMove):
        disabled.needs_auth("late")
    with pytest.raises(IllegalConnectionMove):
        disabled.requested_by_caller()
    concluded = conclude(disabled).connection
    assert concluded == Connection(S.DISABLED, reason="by hand")
    assert concluded.enabled() == Connection(reason="by hand")
    assert not concluded.enabled().attempt_due, "it waits for a caller"


def test_one_that_is_enabled_while_its_connection_is_still_closing_waits_for_a_caller() -> None:
    enabled = established().disabled("by hand").enabled()
    assert not conclude(enabled).connection.attempt_due
    assert conclude(enabled, caller_waits=True).connection.attempt_due


# -- trying again ---------------------------------------------------------------------------------------------


def test_a_first_attempt_that_fails_is_not_repeated_automatically() -> None:
    assert not connecting().may_retry
    conclusion = conclude(connecting())
    assert not conclusion.connection.attempt_due
    assert conclusion.refuse_callers


def test_a_lost_connection_is_tried_for_again_a_few_times() -> None:
    connection = conclude(established().lost(NOW + LASTING + 1), "closed", LASTING + 1).connection
    tries = 0
    while connection.attempt_due:
        conclusion = conclude(connection.attempted(), "still not")
        assert conclusion.refuse_callers, "those who waited for this attempt"
        connection = conclusion.connection
        tries += 1
    assert tries == MAX_ATTEMPTS
    assert connection.state is S.FAILED
    assert not connection.may_retry


def test_callers_keep_waiting_while_a_lost_connection_is_made_again() -> None:
    assert not conclude(established().lost(NOW)).refuse_callers


def test_a_connection_that_never_lasts_uses_up_its_attempts() -> None:
    connection = Connection().requested_by_caller()
    for _ in range(MAX_ATTEMPTS):
        assert connection.attempt_due
        connection = conclude(connection.attempted().connected(NOW).lost(NOW), "closed at once").connection
    assert connection.state is S.FAILED
    lasting = conclude(established().lost(NOW + LASTING + 1), "closed after hours", LASTING + 1).connection
    assert (lasting.attempt, lasting.attempt_due) == (0, True)


def test_caller_resets_the_reconnect_attempts() -> None:
    failed = conclude(connecting()).connection
    assert failed.requested_by_caller().attempt == 0
    assert failed.requested_by_caller().attempt_due


def test_a_caller_changes_nothing_about_an_attempt_that_is_under_way() -> None:
    assert connecting().requested_by_caller() == connecting()


@pytest.mark.parametrize("under_way", [connecting, established])
def test_a_reconnect_is_followed_by_an_attempt_and_keeps_callers_waiting(under_way: Callable[[], Connection]) -> None:
    conclusion = conclude(under_way().reconnecting(), "given up")
    assert conclusion.connection.attempt_due
    assert conclusion.connection.attempt == 0
    assert not conclusion.refuse_callers


@pytest.mark.parametrize("under_way", [connecting, established])
def test_after_a_reset_nothing_follows_unless_a_caller_waits(under_way: Callable[[], Connection]) -> None:
    rest = under_way().at_rest("signed out", caller_waits=False)
    assert (rest.state, rest.reason, rest.next_step) == (S.PENDING, "signed out", NextStep.REST)
    assert conclude(rest).connection == Connection(reason="signed out")
    assert conclude(rest, needs_auth=True).connection == Connection(reason="signed out")
    waited_for = conclude(rest, caller_waits=True)
    assert waited_for.connection.attempt_due
    assert not waited_for.refuse_callers


def test_reset_between_attempts_cancels_the_next_one() -> None:
    pausing = conclude(established().lost(NOW)).connection
    assert pausing.attempt_due
    assert not pausing.at_rest("signed out", caller_waits=False).attempt_due
    assert pausing.at_rest("signed out", caller_waits=True).attempt_due


def test_connection_is_dropped_after_three_errors_without_an_answer() -> None:
    connection = established().error_counted().error_counted()
    assert not connection.has_too_many_errors
    assert connection.error_counted().has_too_many_errors
    assert not connection.answered().error_counted().has_too_many_errors


def test_pauses_grow_to_a_limit_and_are_spread() -> None:
    pauses = [Connection(attempt=attempt).pause(1.0) for attempt in range(1, 12)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 0.5
    assert pauses[-1] == 30
    assert Connection(attempt=1).pause(0.0) == 0.25


# -- who may wait ---------------------------------------------------------------------------------------------


def test_waiting_for_a_disabled_server_or_a_closing_hub_fails() -> None:
    assert Connection().refusal() is None
    assert Connection().disabled("by hand").refusal() == ("disabled", "disabled: by hand")
    closing = Connection().disabled("by hand").closing()
    refusal = closing.refusal()
    assert refusal is not None
    assert refusal.state == "closing"


def test_when_the_hub_closes_no_attempt_follows() -> None:
    assert not Connection().requested_by_caller().closing().attempt_due
    conclusion = conclude(established().closing())
    assert not conclusion.connection.attempt_due
    assert not conclusion.refuse_callers


def test_needed_sign_in_is_not_waited_for() -> None:
    needed = conclude(connecting(), "sign in", needs_auth=True).connection
    refusal = needed.refusal(sign_in_remembered=True)
    assert refusal is not None
    assert refusal.state == "needs-auth"
    assert refusal.reason.endswith(": sign in")
    assert needed.refusal() is None
    assert needed.requested_by_caller().attempt_due


def test_a_remembered_sign_in_counts_only_while_no_attempt_is_under_way() -> None:
    assert Connection().sign_in_remembered("lately").state is S.NEEDS_AUTH
    assert connecting().sign_in_remembered("lately") == connecting()
    assert connecting().refusal(sign_in_remembered=True) is None


# -- all paths ------------------------------------------------------------------------------------------------

STEPS: dict[str, Callable[[Connection], Connection]] = {
    "request": lambda it: it.requested_by_caller(),
    "attempt": lambda it: it.attempted(),
    "connect": lambda it: it.connected(NOW),
    "lose": lambda it: it.lost(NOW),
    "fail": lambda it: conclude(it).connection,
    "need a sign-in": lambda it: conclude(it, needs_auth=True).connection,
    "reconnect": lambda it: it.reconnecting(),
    "reset": lambda it: it.at_rest("x", caller_waits=True),
    "disable": lambda it: it.disabled("x"),
    "enable": lambda it: it.enabled(),
    "remember": lambda it: it.sign_in_remembered("lately"),
    "close": lambda it: it.closing(),
}


@given(st.lists(st.sampled_from(list(STEPS)), max_size=30))
def test_random_transitions_stay_within_the_table(path: list[str]) -> None:
    connection = Connection()
    for step in path:
        before = connection
        try:
            connection = STEPS[step](before)
        except IllegalConnectionMove:
            continue
        assert connection.state is before.state or connection.state in MOVES[before.state]
        assert (connection.state is S.CONNECTED) <= (connection.phase is Phase.ESTABLISHED)
        assert before.closed <= connection.closed
        assert connection.attempt_due <= (connection.state is S.PENDING and not connection.closed)
