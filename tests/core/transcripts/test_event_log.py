"""The event log: every event has a number, and every number is accounted for."""

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claude_code_mcp.core.model.events import (
    Event,
    Gap,
    Message,
    Noise,
    Output,
    Partial,
    PartialRun,
    QuestionOpened,
    QuestionSettled,
    TurnEnded,
    TurnStarted,
)
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind, Resolution
from claude_code_mcp.core.transcripts.event_log import EventLog, Subscription
from tests.support.waiting import HANG_SECONDS

ROOMY = 1 << 30


def filled(events: Iterable[Event], *, max_events: int = 1000, max_bytes: int = ROOMY) -> EventLog:
    log = EventLog(max_events, max_bytes)
    for event in events:
        log.append(event)
    return log


def covered(events: Iterable[Event]) -> list[int]:
    """The sequence numbers that events stand for."""
    numbers: list[int] = []
    for event in events:
        first = event.first if isinstance(event, Gap | PartialRun) else event.seq
        numbers.extend(range(first, event.seq + 1))
    return numbers


def lines(*names: str) -> list[Event]:
    return [Output(name) for name in names]


def fragments(text: str, kind: str = "text") -> list[Event]:
    return [Partial(character, kind) for character in text]


def drained(subscription: Subscription) -> list[Event]:
    found = []
    while True:
        try:
            found.append(subscription.take())
        except IndexError:
            return found


# -- numbers and dates ------------------------------------------------------------------------------------------


def test_events_are_numbered_from_one_and_dated_in_order() -> None:
    events = lines("a", "b", "c")
    log = filled(events)
    assert [event.seq for event in log.after(0)] == [1, 2, 3]
    assert events[0].at <= events[1].at <= events[2].at
    assert events[0].at > 0
    assert log.last_seq == 3


def test_empty_log_has_no_events_and_no_gap() -> None:
    log = filled([])
    assert (log.first_seq, log.last_seq, log.size) == (1, 0, 0)
    assert list(log.after(0)) == []


def test_a_cursor_at_or_beyond_the_end_finds_nothing() -> None:
    log = filled(lines("a", "b"))
    assert list(log.after(2)) == []
    assert list(log.after(99)) == []


def test_a_cursor_before_the_beginning_means_the_beginning() -> None:
    assert covered(filled(lines("a", "b")).after(-7)) == [1, 2]


def test_the_latest_of_a_kind_are_found_among_others() -> None:
    log = filled([*lines("a", "b"), Noise("x"), *lines("c"), Noise("y")])
    assert [event.line for event in log.latest(Output, 2) if isinstance(event, Output)] == ["b", "c"]
    assert log.latest(Output, 0) == []
    assert log.latest(Message, 5) == []


# -- bounds -----------------------------------------------------------------------------------------------------


def test_kept_events_are_limited_and_the_gap_is_reported() -> None:
    log = filled(lines(*"abcdef"), max_events=2)
    gap, *rest = log.after(1)
    assert isinstance(gap, Gap)
    assert (gap.first, gap.seq) == (2, 4)
    assert gap.at > 0
    assert [event.seq for event in rest] == [5, 6]
    assert log.first_seq == 5


def test_a_cursor_at_the_edge_of_what_is_kept_has_no_gap() -> None:
    log = filled(lines(*"abcdef"), max_events=2)
    assert [type(event) for event in log.after(4)] == [Output, Output]


def test_kept_bytes_are_limited() -> None:
    events = [Message({"text": "x"}, size=1000) for _ in range(100)]
    log = filled(events, max_bytes=10_000)
    assert log.size <= 10_000
    assert 2 <= len(list(log.after(log.first_seq - 1))) < 10


def test_small_events_cost_something_too() -> None:
    assert filled(lines(*("" for _ in range(1000))), max_bytes=10_000).first_seq > 900


def test_fragments_do_not_push_other_events_out() -> None:
    log = filled([*lines("first"), *fragments("x" * 10_000), *lines("last")], max_events=3)
    assert log.first_seq == 1
    assert covered(log.after(0)) == list(range(1, 10_003))


def test_fragments_are_bounded_by_their_bytes() -> None:
    log = filled(fragments("x" * 20_000), max_bytes=100_000)
    assert log.size <= 100_000
    assert 1 < log.first_seq < log.last_seq


def large(kind: type[Event]) -> Event:
    text = "x" * 100_000
    question = Question("q", "s", QuestionKind.PERMISSION, "Write", {"content": [text]}, "…")
    events: list[Event] = [
        Message({"type": "user", "uuid": "u", "message": text}, size=len(text)),
        Output(text, "tool", size=len(text)),
        TurnStarted(1, "m", text, size=len(text)),
        TurnEnded(1, Outcome(OutcomeCode.COMPLETED, result=text)),
        QuestionOpened(question),
    ]
    return next(event for event in events if type(event) is kind)


@pytest.mark.parametrize("kind", [Message, Output, TurnStarted, TurnEnded, QuestionOpened])
def test_event_size_counts_its_content(kind: type[Event]) -> None:
    assert 100_000 <= large(kind).size < 101_000


@pytest.mark.parametrize("kind", [Message, Output, TurnStarted])
def test_the_log_keeps_a_large_event_shortened_and_subscribers_get_the_whole(kind: type[Event]) -> None:
    log = filled(lines("before"), max_bytes=20_000)
    subscription = log.subscribe()
    event = large(kind)
    log.append(event)
    before, kept = log.after(0)
    assert isinstance(before, Output)
    assert (type(kept), kept.seq, kept.at) == (kind, event.seq, event.at)
    assert kept.size < 5000
    assert drained(subscription) == [event]
    assert event.size >= 100_000


def test_a_shortened_message_reports_what_it_was() -> None:
    log = filled([Message({"type": "user", "uuid": "u-1", "message": "x" * 9000}, size=9000)], max_bytes=10_000)
    (kept,) = log.after(0)
    assert isinstance(kept, Message)
    assert kept.raw == {"type": "user", "uuid": "u-1", "omitted_bytes": 9000}


def test_the_log_keeps_the_heading_of_a_question_and_the_decision_and_subscribers_get_the_whole() -> None:
    log = filled([])
    subscription = log.subscribe()
    opened = large(QuestionOpened)
    assert isinstance(opened, QuestionOpened)
    answer = Answer(allow=True, updated_input={"content": "y" * 100_000}, answers=["z" * 100_000])
    settled = QuestionSettled(opened.question, Resolution(Closure.ANSWERED, "a person", answer))
    log.append(opened)
    log.append(settled)
    asked, decided = log.after(0)
    assert isinstance(asked, QuestionOpened)
    assert (asked.question.id, asked.question.description, asked.question.tool_input) == ("q", "…", {})
    assert isinstance(decided, QuestionSettled)
    assert (decided.question, decided.resolution.by) == (asked.question, "a person")
    assert decided.resolution.answer == Answer(allow=True)
    assert log.size < 1000
    assert drained(subscription) == [opened, settled]


@pytest.mark.parametrize("kind", [TurnEnded])
def test_oversized_event_is_kept_only_while_it_is_the_newest(kind: type[Event]) -> None:
    log = filled([*lines("before"), large(kind)], max_bytes=20_000)
    assert [type(event) for event in log.after(0)] == [Gap, kind]
    log.append(Output("after"))
    assert [type(event) for event in log.after(0)] == [Gap, Output]
    assert log.size < 1000


# -- fragments --------------------------------------------------------------------------------------------------


def test_neighboring_fragments_share_an_entry() -> None:
    log = filled([*fragments("hel"), *fragments("lo")])
    (run,) = log.after(0)
    assert isinstance(run, PartialRun)
    assert (run.first, run.seq, run.text, run.kind) == (1, 5, "hello", "text")


def test_fragments_of_another_kind_or_behind_another_event_start_a_new_entry() -> None:
    log = filled([*fragments("ab", "thinking"), *fragments("cd"), *lines("x"), *fragments("ef")])
    found = [(event.kind, event.text) for event in log.after(0) if isinstance(event, PartialRun)]
    assert found == [("thinking", "ab"), ("text", "cd"), ("text", "ef")]


def test_a_fragment_without_text_joins_any_entry() -> None:
    (run,) = filled([*fragments("ab", "thinking"), Partial("")]).after(0)
    assert isinstance(run, PartialRun)
    assert (run.kind, run.text, run.seq) == ("thinking", "ab", 3)


def test_replay_from_the_middle_of_an_entry_gives_the_rest_of_it() -> None:
    log = filled(fragments("hello"))
    (run,) = log.after(2)
    assert isinstance(run, PartialRun)
    assert (run.first, run.seq, run.text) == (3, 5, "llo")


def test_replayed_entry_is_immutable() -> None:
    log = filled(fragments("he"))
    subscription = log.subscribe(after=0)
    (replayed,) = log.after(0)
    for fragment in fragments("llo"):
        log.append(fragment)
    assert isinstance(replayed, PartialRun)
    assert replayed.text == "he"
    assert covered(drained(subscription)) == [1, 2, 3, 4, 5]


# -- the whole, for any history ---------------------------------------------------------------------------------

EVENTS = st.one_of(
    st.builds(Partial, st.text(max_size=30), st.sampled_from(["text", "thinking"])),
    st.builds(Output, st.text(max_size=5)),
    st.integers(0, 3000).map(lambda size: Message({"type": "user"}, size=size)),
    st.builds(TurnStarted, st.just(1), st.just("m"), st.text(max_size=50)),
)
HISTORIES: Any = st.lists(EVENTS, max_size=60)
MAX_EVENTS, MAX_BYTES = st.integers(1, 20), st.integers(1, 5000)


@given(HISTORIES, st.integers(-2, 70), MAX_EVENTS, MAX_BYTES)
def test_any_replay_covers_exactly_what_is_behind_the_cursor(
    history: list[Event], cursor: int, max_events: int, max_bytes: int
) -> None:
    log = filled(history, max_events=max_events, max_bytes=max_bytes)
    replay = list(log.after(cursor))
    assert covered(replay) == list(range(max(0, cursor) + 1, len(history) + 1))
    assert not any(isinstance(event, Gap) for event in replay[1:])


@given(HISTORIES, MAX_EVENTS, MAX_BYTES)
def test_any_history_stays_within_the_bounds(history: list[Event], max_events: int, max_bytes: int) -> None:
    log = filled(history, max_events=max_events, max_bytes=max_bytes)
    kept = [event for event in log.after(0) if not isinstance(event, Gap)]
    assert len(kept) == 1 or not history or log.size <= max_bytes
    assert sum(not isinstance(event, PartialRun) for event in kept) <= max_events


@given(HISTORIES, st.integers(0, 70))
def test_any_replay_has_all_the_text_of_the_fragments(history: list[Event], cursor: int) -> None:
    log = filled(history)
    replayed = "".join(event.text for event in log.after(cursor) if isinstance(event, PartialRun))
    assert replayed == "".join(event.text for event in history[cursor:] if isinstance(event, Partial))


@given(HISTORIES, HISTORIES, st.integers(0, 70), st.integers(1, 10), st.integers(1, 20_000))
def test_any_subscriber_however_slow_sees_every_number_once(
    before: list[Event], later: list[Event], cursor: int, capacity: int, max_bytes: int
) -> None:
    log = filled(before, max_events=5)
    subscription = log.subscribe(after=cursor, capacity=capacity, max_bytes=max_bytes)
    for event in later:
        log.append(event)
    assert covered(drained(subscription)) == [
        *range(cursor + 1, len(before) + 1),
        *range(len(before) + 1, log.last_seq + 1),
    ]


# -- subscribers ------------------------------------------------------------------------------------------------


async def test_a_subscriber_gets_what_comes_next() -> None:
    log = filled(lines("old"))
    with log.subscribe() as subscription:
        waiting = asyncio.ensure_future(anext(aiter(subscription)))
        await asyncio.sleep(0)
        assert not waiting.done()
        log.append(Output("new"))
        event = await asyncio.wait_for(waiting, HANG_SECONDS)
    assert isinstance(event, Output)
    assert event.line == "new"


async def test_a_subscriber_with_a_cursor_gets_the_replay_and_then_what_comes_next() -> None:
    log = filled(lines(*"abcd"), max_events=2)
    with log.subscribe(after=1) as subscription:
        log.append(Output("e"))
        log.close()
        seen = [event async for event in subscription]
    assert [type(event) for event in seen] == [Gap, Output, Output, Output]
    assert covered(seen) == [2, 3, 4, 5]


async def test_live_subscribers_get_fragments_one_by_one() -> None:
    log = filled([])
    with log.subscribe() as subscription:
        for fragment in fragments("abc"):
            log.append(fragment)
        log.close()
        assert [event.text async for event in subscription if isinstance(event, Partial)] == ["a", "b", "c"]


async def test_a_slow_subscriber_loses_the_oldest_and_the_others_lose_nothing() -> None:
    log = filled([])
    slow, quick = log.subscribe(capacity=2), log.subscribe()
    for event in lines(*"abcde"):
        log.append(event)
    log.close()
    seen = [event async for event in slow]
    assert [(type(event), event.seq) for event in seen] == [(Gap, 3), (Output, 4), (Output, 5)]
    assert covered(seen) == [1, 2, 3, 4, 5]
    assert [event.seq async for event in quick] == [1, 2, 3, 4, 5]


async def test_a_slow_subscriber_holds_only_a_limited_number_of_bytes() -> None:
    log = filled([])
    subscription = log.subscribe(max_bytes=2500)
    for _ in range(5):
        log.append(Message({}, size=1000))
    gap, *rest = drained(subscription)
    assert (type(gap), gap.seq, len(rest)) == (Gap, 3, 2)


async def test_an_event_larger_than_a_subscribers_room_still_arrives() -> None:
    log = filled([])
    subscription = log.subscribe(max_bytes=10)
    log.append(Message({}, size=1000))
    assert [type(event) for event in drained(subscription)] == [Message]


async def test_a_subscription_ends_with_the_log_after_what_it_still_holds() -> None:
    log = filled([])
    subscription = log.subscribe()
    log.append(Output("a"))
    log.close()
    log.append(Output("too late"))
    assert [event.seq async for event in subscription] == [1]


async def test_a_waiting_reader_is_woken_by_the_end() -> None:
    log = filled([])

    async def read(subscription: Subscription) -> list[Event]:
        return [event async for event in subscription]

    reading = asyncio.ensure_future(read(log.subscribe()))
    await asyncio.sleep(0)
    log.close()
    assert await asyncio.wait_for(reading, HANG_SECONDS) == []


async def test_subscribing_to_a_closed_log_gives_the_replay_and_ends() -> None:
    log = filled(lines("a", "b"))
    log.close()
    assert [event.seq async for event in log.subscribe(after=0)] == [1, 2]
    assert [event async for event in log.subscribe()] == []


async def test_a_subscriber_that_left_is_offered_nothing_more() -> None:
    log = filled([])
    with log.subscribe() as subscription:
        log.append(Output("a"))
    log.append(Output("b"))
    assert [event.seq for event in drained(subscription)] == [1]


# -- cursors ----------------------------------------------------------------------------------------------------


def test_a_cursor_is_good_in_its_own_log_only() -> None:
    one, two = EventLog(10, 10_000), EventLog(10, 10_000)
    for log in (one, two):
        for number in range(5):
            log.append(Output(f"line {number}"))
    assert [one.position(one.cursor(seq)) for seq in range(6)] == [*range(6)]
    assert two.position(one.cursor(3)) is None
    assert one.position(f"{one.epoch}-6") is None


def test_the_cursors_of_a_restored_log_hold_for_what_was_restored_alone() -> None:
    first, again, other = (EventLog(10, 10_000) for _ in range(3))
    for log, epoch in ((first, "aa"), (again, "aa"), (other, "bb")):
        log.restore((Output(f"line {number}") for number in range(3)), epoch)
    assert again.position(first.cursor(3)) == 3
    assert other.position(first.cursor(3)) is None
    first.append(Output("new"))
    again.append(Output("something else"))
    assert again.position(first.cursor(4)) is None
    assert first.position(first.cursor(4)) == 4


def test_observers_are_not_notified_of_restored_events() -> None:
    delivered: list[Event] = []
    log = EventLog(10, 10_000, delivered.append)
    log.restore([Output("old")], "aa")
    log.append(Output("new"))
    assert [one.line for one in delivered if isinstance(one, Output)] == ["new"]
    assert [one.line for one in log.after(0) if isinstance(one, Output)] == ["old", "new"]


@pytest.mark.parametrize("cursor", ["", "7", "aa", "aa-", "-7", "aa--7", "aa-1 ", "AA-1", "aa-١", "a" * 33 + "-1"])
def test_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        EventLog(10, 10_000).position(cursor)
