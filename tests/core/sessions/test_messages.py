"""The queue of accepted messages, without a process: what is held back, sent again and settled."""

import pytest

from claude_code_mcp.core.errors import LimitReached
from claude_code_mcp.core.model.image import Image
from claude_code_mcp.core.model.outcome import Outcome, OutcomeCode
from claude_code_mcp.core.sessions.messages import MessageQueue, UserMessage

DONE = Outcome(OutcomeCode.COMPLETED)


def queue_of(*messages: UserMessage) -> MessageQueue:
    queue = MessageQueue()
    for message in messages:
        queue.accept(message)
    return queue


async def test_a_message_that_wants_its_own_turn_is_held_back_until_then() -> None:
    first, joining, own = UserMessage("first"), UserMessage("joining"), UserMessage("own", later=True)
    queue = queue_of(first, joining, own)
    assert queue.take_unsent(first.id, question_only=False) == [first, joining]
    assert queue.unsent == {own.id}
    assert queue.take_unsent(own.id, question_only=False) == [own]
    assert queue.unsent == frozenset()


async def test_no_more_messages_wait_than_there_is_memory_for() -> None:
    many = queue_of(*(UserMessage("x") for _ in range(200)))
    image = Image("image/png", "A" * (20 << 20))  # one text, which five messages share
    large = queue_of(*(UserMessage("x", images=(image,)) for _ in range(5)))
    for full in (many, large):
        with pytest.raises(LimitReached, match="messages are queued"):
            full.check_room()
        full.settle_turn(DONE, 1, except_for=set())
        full.check_room()


async def test_nothing_is_held_back_behind_a_mere_question_of_the_background() -> None:
    first, second = UserMessage("first", later=True), UserMessage("second", later=True)
    queue = queue_of(first, second)
    assert queue.take_unsent("", question_only=True) == [first], "one at a time: the CLI would make one turn of both"
    assert queue.take_unsent("", question_only=True) == []


async def test_an_outcome_is_for_all_but_those_that_wait_and_the_next_is_one_that_may_join() -> None:
    done, own, joining = UserMessage("done"), UserMessage("own", later=True), UserMessage("joining")
    queue = queue_of(done, own, joining)
    assert queue.settle_turn(DONE, 1, except_for={own.id, joining.id}) is joining
    assert (done.outcome.result(), done.turn) == (DONE, 1)
    assert queue.open == [own, joining]
    assert queue.find(done.id) is done, "a call may come back for it"


async def test_messages_are_taken_back_once() -> None:
    message = UserMessage("hello")
    queue = queue_of(message)
    queue.take_unsent(message.id, question_only=False)
    assert message.unread
    queue.take_back()
    assert queue.unsent == {message.id}
    assert not message.unread, "a second process that dies of it ends it"


async def test_a_settled_message_keeps_its_first_outcome() -> None:
    message = UserMessage("hello")
    queue = queue_of(message)
    queue.settle(message, Outcome(OutcomeCode.DROPPED))
    queue.settle(message, DONE, 1)
    assert (message.outcome.result().code, message.turn) == (OutcomeCode.DROPPED, 0)
    assert queue.unsent == frozenset()


async def test_only_the_last_settled_messages_are_kept() -> None:
    messages = [UserMessage(str(number)) for number in range(40)]
    queue = queue_of(*messages)
    queue.settle_turn(DONE, 1)
    assert queue.find(messages[0].id) is None
    assert queue.find(messages[-1].id) is messages[-1]
