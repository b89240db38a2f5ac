"""The broker: one question, many channels, one answer."""

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from claude_code_mcp.core.errors import InvalidArgument, QuestionClosed
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind, Resolution, Scope
from claude_code_mcp.core.model.text import cut
from claude_code_mcp.core.questions.broker import Broker
from tests.support.waiting import HANG_SECONDS

YES, NO = Answer(allow=True), Answer(allow=False)
LONG = 3600.0


class Screen:
    """A channel that shows what it is offered until it is withdrawn."""

    def __init__(self, name: str = "screen", on_offer: Callable[[Question], object] | None = None) -> None:
        self.name = name
        self.shown: list[Question] = []
        self.gone: list[tuple[Question, Resolution]] = []
        self._on_offer = on_offer

    def offer(self, question: Question) -> None:
        self.shown.append(question)
        if self._on_offer is not None:
            self._on_offer(question)

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        self.gone.append((question, resolution))
        self.shown = [one for one in self.shown if one is not question]


class QuestionSource:
    """Stands where a session stands: opens questions and hears how they end."""

    def __init__(self, broker: Broker, session_id: str = "s-1") -> None:
        self._broker = broker
        self.session_id = session_id
        self.resolved: dict[str, tuple[Resolution, dict[str, Any] | None]] = {}
        self.settled = asyncio.Event()

    def ask(self, tool: str = "Bash", **more: Any) -> Question:
        tool_input = more.pop("tool_input", {"command": "ls"})
        return self._broker.open(self.session_id, tool, tool_input, self._settle, **more)

    def _settle(self, question: Question, resolution: Resolution, body: dict[str, Any] | None) -> None:
        assert question.id not in self.resolved, "settled twice"
        self.resolved[question.id] = (resolution, body)
        self.settled.set()


async def offered() -> None:
    """Lets the broker make its offers, which it does right after the code that opened the question."""
    await asyncio.sleep(0)


def why_closed(broker: Broker, question: Question, session_id: str = "s-1") -> QuestionClosed:
    with pytest.raises(QuestionClosed) as caught:
        broker.answer(session_id, question.id, YES, "late")
    return caught.value


async def test_a_question_is_described_dated_and_pending() -> None:
    broker = Broker(LONG)
    question = QuestionSource(broker).ask(
        tool_use_id="toolu_1", suggestions=({"type": "addRules"},), reason="because", blocked_path="/etc"
    )
    assert broker.pending() == [question]
    assert question.kind is QuestionKind.PERMISSION
    assert question.description == "Run: ls"
    assert question.deadline == pytest.approx(question.opened_at + LONG)
    assert (question.tool_use_id, question.reason, question.blocked_path) == ("toolu_1", "because", "/etc")
    assert question.suggestions == ({"type": "addRules"},)


async def test_every_channel_is_offered_a_question_and_the_first_answer_wins() -> None:
    broker, left, right = Broker(LONG), Screen("left"), Screen("right")
    broker.add_channel(left)
    broker.add_channel(right)
    asker = QuestionSource(broker)
    question = asker.ask()
    await offered()
    assert left.shown == right.shown == [question]

    broker.answer("s-1", question.id, YES, "right")

    resolution, body = asker.resolved[question.id]
    assert (resolution.closure, resolution.by, resolution.answer) == (Closure.ANSWERED, "right", YES)
    assert body == {"behavior": "allow", "updatedInput": {"command": "ls"}}
    assert broker.pending() == []
    assert left.shown == right.shown == []
    assert left.gone == right.gone == [(question, resolution)]
    error = why_closed(broker, question)
    assert error.data == {"closed": "answered", "by": "right"}
    assert "right" in error.message


async def test_a_channel_may_answer_while_it_is_being_offered_the_question() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    quick = Screen("quick", lambda question: broker.answer("s-1", question.id, NO, "quick"))
    slow = Screen("slow")
    broker.add_channel(quick)
    broker.add_channel(slow)
    question = asker.ask()
    assert asker.resolved == {}, "the asker must have the question before anybody answers it"
    await offered()
    assert asker.resolved[question.id][0].by == "quick"
    assert slow.shown == []


async def test_a_question_that_ends_before_it_is_offered_is_never_shown() -> None:
    broker, screen = Broker(LONG), Screen()
    broker.add_channel(screen)
    question = QuestionSource(broker).ask()
    broker.withdraw(question.id, "changed its mind")
    await offered()
    assert screen.shown == []
    assert screen.gone == []


async def test_new_channel_gets_open_questions() -> None:
    broker, late = Broker(LONG), Screen()
    asker = QuestionSource(broker)
    answered, first = asker.ask(), asker.ask()
    await offered()
    broker.answer("s-1", answered.id, YES, "queue")
    second = asker.ask()
    broker.add_channel(late)
    await offered()
    assert late.shown == [first, second]


async def test_removed_channel_gets_nothing_and_questions_stay_open() -> None:
    broker, screen = Broker(LONG), Screen()
    broker.add_channel(screen)
    asker = QuestionSource(broker)
    first = asker.ask()
    await offered()
    broker.remove_channel(screen)
    second = asker.ask()
    await offered()
    broker.answer("s-1", first.id, YES, "queue")
    assert screen.shown == [first]
    assert screen.gone == []
    assert broker.pending() == [second]


class BrokenScreen(Screen):
    """A channel that raises whatever it is told."""

    def offer(self, question: Question) -> None:
        raise RuntimeError("screen broken")

    def withdraw(self, question: Question, resolution: Resolution) -> None:
        raise RuntimeError("screen broken")


async def test_failing_channel_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    broker, sound = Broker(LONG), Screen("sound")
    broker.add_channel(BrokenScreen())
    broker.add_channel(sound)
    asker = QuestionSource(broker)
    question = asker.ask()
    await offered()
    assert sound.shown == [question]
    broker.answer("s-1", question.id, YES, "sound")
    assert asker.resolved[question.id][0].by == "sound"
    assert sound.shown == []
    for method, record in zip(("offer", "withdraw"), caplog.records, strict=True):
        assert f"BrokenScreen.{method} " in record.message
        assert "s-1" in record.message


async def test_channels_are_notified_even_if_the_sender_fails() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("session broken")

    broker, screen = Broker(LONG), Screen()
    broker.add_channel(screen)
    question = broker.open("s-1", "Bash", {}, fail)
    await offered()
    with pytest.raises(RuntimeError, match="session broken"):
        broker.answer("s-1", question.id, YES, "queue")
    assert screen.shown == []
    assert broker.pending() == []


async def test_a_withdrawn_question_disappears_everywhere_and_needs_no_reply() -> None:
    broker, screen = Broker(LONG), Screen()
    broker.add_channel(screen)
    asker = QuestionSource(broker)
    question = asker.ask()
    await offered()
    broker.withdraw(question.id, "the turn ended")
    resolution, body = asker.resolved[question.id]
    assert (resolution.closure, resolution.detail, body) == (Closure.WITHDRAWN, "the turn ended", None)
    assert screen.shown == []
    assert broker.pending() == []
    error = why_closed(broker, question)
    assert error.data["closed"] == "withdrawn"
    assert "the turn ended" in error.message


async def test_withdrawing_what_is_closed_or_unknown_does_nothing() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    question = asker.ask()
    broker.answer("s-1", question.id, YES, "queue")
    broker.withdraw(question.id, "late")
    broker.withdraw("q-none", "late")
    assert asker.resolved[question.id][0].closure is Closure.ANSWERED


async def test_after_the_deadline_a_question_counts_as_denied_with_a_message() -> None:
    broker, screen = Broker(0.05), Screen()
    broker.add_channel(screen)
    asker = QuestionSource(broker)
    question = asker.ask()
    await asyncio.wait_for(asker.settled.wait(), HANG_SECONDS)
    resolution, body = asker.resolved[question.id]
    assert (resolution.closure, resolution.by) == (Closure.EXPIRED, "deadline")
    assert "0.05 s" in str(resolution.detail)
    assert body == {"behavior": "deny", "message": resolution.detail}
    assert screen.shown == []
    assert broker.pending() == []
    assert why_closed(broker, question).data["closed"] == "expired"


async def test_an_answer_in_time_stops_the_clock() -> None:
    broker = Broker(0.05)
    asker, other = QuestionSource(broker), QuestionSource(broker, "s-2")
    answered = asker.ask()
    broker.answer("s-1", answered.id, YES, "queue")
    other.ask()  # opened later with the same time to live: when it has expired, the first would have too
    await asyncio.wait_for(other.settled.wait(), HANG_SECONDS)
    assert asker.resolved[answered.id][0].closure is Closure.ANSWERED


async def test_unknown_question_is_distinguished_from_a_closed_one() -> None:
    with pytest.raises(QuestionClosed) as caught:
        Broker(LONG).answer("s-1", "q-none", YES, "queue")
    assert caught.value.data == {"closed": "unknown"}
    assert caught.value.code == "INVALID_ARGUMENT"


async def test_a_foreign_session_can_neither_answer_a_question_nor_learn_of_it() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    question = asker.ask()
    assert why_closed(broker, question, "s-2").data == {"closed": "unknown"}
    assert broker.pending("s-1") == [question]
    broker.answer("s-1", question.id, YES, "queue")
    assert why_closed(broker, question, "s-2").data == {"closed": "unknown"}


async def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    question = asker.ask()
    with pytest.raises(InvalidArgument, match="once"):
        broker.answer("s-1", question.id, Answer(allow=True, scope=Scope.SESSION), "queue")
    assert broker.pending() == [question]
    broker.answer("s-1", question.id, YES, "queue")
    assert question.id in asker.resolved


async def test_several_questions_of_several_sessions_are_kept_apart_and_in_order() -> None:
    broker = Broker(LONG)
    one, two = QuestionSource(broker, "s-1"), QuestionSource(broker, "s-2")
    first, foreign, second = one.ask("Bash"), two.ask("Write"), one.ask("AskUserQuestion")
    assert len({first.id, foreign.id, second.id}) == 3
    assert broker.pending("s-1") == [first, second]
    assert broker.pending("s-2") == [foreign]
    assert broker.pending() == [first, foreign, second]

    broker.answer("s-1", second.id, NO, "queue")
    assert broker.pending("s-1") == [first]

    broker.withdraw_all("s-1", "cancelled")
    assert one.resolved[first.id][0].closure is Closure.WITHDRAWN
    assert broker.pending() == [foreign]
    assert two.resolved == {}


async def test_remembered_closed_questions_are_limited() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    questions = [asker.ask() for _ in range(2001)]
    for question in questions:
        broker.answer("s-1", question.id, YES, "queue")
    assert why_closed(broker, questions[0]).data["closed"] == "unknown"
    assert why_closed(broker, questions[1]).data["closed"] == "answered"


async def test_the_first_answer_wins_whatever_input_it_brings_and_a_refused_one_leaves_the_question_open() -> None:
    broker = Broker(LONG)
    asker = QuestionSource(broker)
    question = asker.ask()
    cut_input = {"command": cut("x" * 100, 10)}
    with pytest.raises(InvalidArgument, match="cut mark"):
        broker.answer("s-1", question.id, Answer(allow=True, updated_input=cut_input), "queue")
    assert broker.pending() == [question]
    broker.answer("s-1", question.id, Answer(allow=True, updated_input={"command": "first"}), "dialog")
    with pytest.raises(QuestionClosed, match="dialog"):
        broker.answer("s-1", question.id, Answer(allow=True, updated_input={"command": "second"}), "queue")
    assert asker.resolved[question.id][1] == {"behavior": "allow", "updatedInput": {"command": "first"}}


async def test_answered_questions_weigh_next_to_nothing() -> None:
    broker = Broker(LONG)

    def ask_and_answer(content: str) -> None:
        question = broker.open("s-1", "Write", {"content": content}, lambda *_: None)
        answer = Answer(allow=True, updated_input={"content": content + "!"})
        broker.answer("s-1", question.id, answer, "queue")

    tracemalloc.start()
    for number in range(20):
        ask_and_answer(f"{number}" * 100_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


async def test_a_description_is_made_of_what_has_no_secrets() -> None:
    broker = Broker(LONG, lambda data: {key: value.replace("hush", "*") for key, value in data.items()})
    question = broker.open("s-1", "Bash", {"command": "echo hush"}, lambda *_: None)
    assert question.description == "Run: echo *"
    assert question.tool_input == {"command": "echo hush"}


async def test_a_question_that_a_person_sees_has_no_deadline() -> None:
    broker = Broker(LONG)
    question = QuestionSource(broker).ask()
    assert question.deadline is not None
    broker.seen(question.id)
    (shown,) = broker.pending()
    assert shown.deadline is None
    broker.seen(question.id)
    broker.seen("q-none")
    assert broker.pending() == [shown]


@pytest.mark.parametrize("seen", [False, True])
async def test_deadline_starts_when_no_person_is_expected(seen: bool) -> None:
    broker = Broker(0.05)
    person, asked_often, deadlines = True, asyncio.Event(), list[float | None]()

    async def expects(_: Question) -> bool:
        deadlines.extend(question.deadline for question in broker.pending())
        if len(deadlines) == 3:
            asked_often.set()
        return person

    broker.add_audience(expects)
    asker = QuestionSource(broker)
    question = asker.ask()
    if seen:
        broker.seen(question.id)
    await asyncio.wait_for(asked_often.wait(), HANG_SECONDS)
    assert asker.resolved == {}
    assert deadlines[1:] == [None, None], "no time runs while a person is there"
    person = False
    await asyncio.wait_for(asker.settled.wait(), HANG_SECONDS)
    assert asker.resolved[question.id][0].closure is Closure.EXPIRED
    assert deadlines[-1] is not None, "it had its full time once nobody was expected"


async def test_a_question_that_is_seen_while_audiences_are_asked_stays_open() -> None:
    broker, looks = Broker(0.0), 0
    looked = asyncio.Event()

    async def leaves(question: Question) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            broker.seen(question.id)  # a page opens just now
        else:
            looked.set()
        return looks > 1

    broker.add_audience(leaves)
    asker = QuestionSource(broker)
    question = asker.ask()
    await asyncio.wait_for(looked.wait(), HANG_SECONDS)
    assert [one.id for one in broker.pending()] == [question.id]


async def test_unseen_question_expires_without_an_expected_person() -> None:
    broker = Broker(0.05)

    async def no_one(_: Question) -> bool:
        return False

    async def fails(_: Question) -> bool:
        raise OSError("no disk")

    broker.add_audience(no_one)
    broker.add_audience(fails)
    asker = QuestionSource(broker)
    question = asker.ask()
    await asyncio.wait_for(asker.settled.wait(), HANG_SECONDS)
    assert asker.resolved[question.id][0].closure is Closure.EXPIRED


async def test_questions_of_sessions_may_have_no_deadline_and_those_of_clients_keep_theirs() -> None:
    broker = Broker(0.05, endless=True)
    asker, client = QuestionSource(broker), QuestionSource(broker)
    question, of_client = asker.ask(), client.ask(of_client=True)
    await asyncio.wait_for(client.settled.wait(), HANG_SECONDS)
    broker.seen(question.id)
    assert [(one.id, one.deadline) for one in broker.pending()] == [(question.id, None)]
    assert client.resolved[of_client.id][0].closure is Closure.EXPIRED
    broker.answer("s-1", question.id, YES, "queue")
    assert asker.resolved[question.id][0].closure is Closure.ANSWERED


async def test_an_answer_that_comes_when_the_time_is_over_and_before_audiences_are_asked_counts() -> None:
    asked = asyncio.Event()

    async def expects(_: Question) -> bool:
        asked.set()
        return False

    broker = Broker(0.0)
    broker.add_audience(expects)
    asker = QuestionSource(broker)
    question = asker.ask()
    # The broker's timer comes first and starts the task, which runs only after the second one has answered.
    asking: asyncio.Future[set[asyncio.Task[None]]] = asyncio.get_running_loop().create_future()

    def answer() -> None:
        broker.answer("s-1", question.id, YES, "queue")
        asking.set_result(set(broker._waiting_for_audiences))

    asyncio.get_running_loop().call_later(0.0, answer)
    (task,) = await asyncio.wait_for(asking, HANG_SECONDS)
    await asyncio.wait([task])
    assert asker.resolved[question.id][0].closure is Closure.ANSWERED
    assert task.exception() is None
    assert not asked.is_set()
