"""What Claude Code reports of usage limits, and when a session that one has stopped continues."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.usage_limits import (
    MAX_ATTEMPTS,
    MAX_SPREAD,
    MAX_TEXT,
    MAX_WAIT,
    LimitWait,
    StoppedTurn,
    limit_sentence,
    read_plan_usage,
    wait_after,
)
from tests.support.tables import every_row

RESET = 1_794_983_113
NOW = RESET - 3600.0
OF_2_1_250 = {
    "status": "rejected",
    "resetsAt": RESET,
    "rateLimitType": "five_hour",
    "overageStatus": "rejected",
    "overageDisabledReason": "org_level_disabled",
    "isUsingOverage": False,
    "unifiedWindows": {
        "five_hour": {"utilization": 1, "resetsAt": RESET},
        "seven_day": {"utilization": 0.4, "resetsAt": RESET + 500_000},
    },
}
"""As 2.1.250 and 2.1.290 write it."""
OF_2_1_325 = {
    **OF_2_1_250,
    "unifiedWindows": {
        "five_hour": {"utilization": 1, "resetsAt": RESET, "status": "rejected"},
        "seven_day": {"utilization": 0.4, "resetsAt": RESET + 500_000, "status": "allowed"},
    },
}
WARNING = {
    "status": "allowed_warning",
    "resetsAt": RESET,
    "rateLimitType": "five_hour",
    "utilization": 0.92,
    "isUsingOverage": False,
    "surpassedThreshold": 0.9,
    "unifiedWindows": {"five_hour": {"utilization": 0.92, "resetsAt": RESET, "surpassedThreshold": 0.9}},
}


def stopped(before: LimitWait | None = None, *, text: str = "work", **how: Any) -> LimitWait:
    turn = StoppedTurn(text, how.pop("worked", False), how.pop("continued", False))
    given = {"kind": "five_hour", "resets_at": RESET, "now": NOW, "chance": 0.0, "wanted": True, "new_id": "w", **how}
    return wait_after(turn, before, **given)


@every_row("info", [OF_2_1_250, OF_2_1_325])
def test_a_limit_is_read_as_each_version_reports_it(info: dict[str, Any]) -> None:
    plan = read_plan_usage(info)
    assert plan is not None
    assert (plan.rejected, plan.kind, plan.resets_at) == (True, "five_hour", RESET)
    assert plan.line == "5-hour 100%, weekly 40%"
    assert plan.as_json()["windows"]["seven_day"] == {"used": 0.4, "resetsAt": "2026-11-24T01:18:33.000Z"}


def test_a_warning_is_no_limit() -> None:
    plan = read_plan_usage(WARNING)
    assert plan is not None
    assert (plan.rejected, plan.line) == (False, "5-hour 92%")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists))
def test_whatever_a_session_writes_is_read_without_an_error(value: object) -> None:
    for info in (value, {"status": value}, {**OF_2_1_325, "resetsAt": value, "rateLimitType": value}):
        read_plan_usage(info)
    forged = read_plan_usage({**OF_2_1_325, "unifiedWindows": {"\x1b[31m": {}, "five_hour": {"utilization": value}}})
    assert forged is not None
    assert "\x1b" not in str(forged.as_json())


def test_the_sentence_says_which_limit_and_when() -> None:
    assert limit_sentence("five_hour", RESET) == "The 5-hour limit is reached. It resets at 2026-11-18T06:25Z."
    assert limit_sentence("seven_day", None) == "The weekly limit is reached."
    assert limit_sentence(None, None) == "The usage limit is reached."


def test_the_same_message_is_sent_a_moment_after_the_reset() -> None:
    wait = stopped()
    assert (wait.text, wait.continues_at, wait.on, wait.attempt) == ("work", RESET + 1, True, 1)
    assert not stopped(wanted=False).on


def test_many_sessions_are_spread_and_none_comes_early() -> None:
    times = [stopped(chance=number / 100).continues_at for number in range(100)]
    assert times == sorted(set(times))
    assert times[0] > RESET
    assert times[-1] - times[0] == pytest.approx(0.99 * MAX_SPREAD)
    assert stopped(resets_at=NOW + 1, chance=0.99).continues_at < NOW + 2.5, "a short wait is spread little"


def test_wait_of_a_week_is_accepted_and_absurd_times_are_not() -> None:
    assert stopped(resets_at=NOW + 7 * 86_400).on
    assert not stopped(resets_at=NOW + MAX_WAIT + 1).on


def test_without_a_known_reset_the_pauses_grow() -> None:
    wait, pauses = stopped(resets_at=None), []
    for _ in range(8):
        pauses.append(wait.continues_at - NOW)
        wait = stopped(wait, resets_at=None, continued=True)
    assert pauses == [30, 60, 120, 240, 480, 900, 900, 900]


def test_wrong_reset_time_is_retried_with_growing_pauses_up_to_a_limit() -> None:
    again = stopped(stopped(), resets_at=NOW - 5, continued=True)
    assert (again.attempt, again.text, again.continues_at) == (2, "work", NOW + 60)
    for _ in range(MAX_ATTEMPTS - 2):
        again = stopped(again, continued=True)
    assert again.on
    assert not stopped(again, continued=True).on


def test_messages_that_arrive_during_a_wait_are_sent_together() -> None:
    assert stopped(stopped(), text="and this").text == "work\n\nand this"
    assert stopped(stopped(), text="work").text == "work", "sent again by hand"
    assert stopped(stopped(wanted=False), text="and this").text == "and this", "the first was given up"


def test_work_that_had_begun_is_mentioned_once() -> None:
    first = stopped(worked=True)
    assert first.text.endswith("\n\nwork")
    assert first.text.startswith("[A usage limit stopped")
    assert stopped(first, worked=True, continued=True).text == first.text


def test_a_turn_without_a_message_and_one_that_is_too_long_are_continued() -> None:
    assert (
        stopped(text="").text
        == stopped(text="x" * (MAX_TEXT + 1)).text
        == "Continue where the usage limit stopped you."
    )


def test_limit_wait_can_be_shortened_and_switched() -> None:
    wait = stopped(wanted=False)
    assert wait.continuing_now(NOW).continues_at == NOW
    assert wait.continuing_now(NOW).on
    assert wait.switched(True).as_json()["continuesAt"] == "2026-11-18T06:25:14.000Z"
    assert "continuesAt" not in wait.as_json()
    assert wait.switched(True).sentence.endswith("The session continues automatically at 2026-11-18T06:25Z.")


def test_a_message_that_was_not_read_is_sent_later() -> None:
    wait = stopped().unread(NOW, 0.0, "w2")
    assert (wait.id, wait.attempt, wait.on, wait.continues_at) == ("w2", 2, True, NOW + 60)
