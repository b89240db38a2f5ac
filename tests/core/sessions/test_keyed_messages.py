"""A message with a key is taken once, however often it is sent; one that waits can be taken back."""

import asyncio

import pytest

from claude_code_mcp.core.errors import Cancelled, InvalidArgument
from claude_code_mcp.core.model.events import MessageDropped, MessageQueued, TurnStarted
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.sessions.keyed_messages import digest_of
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.state.message_keys import KeyName, KeyState, MessageKeys
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .support import (
    IN_A_TOOL,
    STREAMING,
    SharedSessions,
    end_of,
    events,
    events_of_turn,
    on_shared_loop,
    options,
    say,
    shared_at,
)


@on_shared_loop
async def test_a_message_that_is_sent_again_is_taken_once_also_at_the_same_time(shared: SharedSessions) -> None:
    session = await shared.session()
    turns = session.turns
    prompt = script("once", "only once")
    sent = [shared.service.send(session.id, prompt, key="k-1") for _ in range(3)]
    first, *others = await asyncio.gather(*sent)
    late = await shared.service.send(session.id, prompt, key="k-1")
    assert {turn.message_id for turn in (*others, late)} == {first.message_id}
    assert sorted(turn.repeated for turn in (first, *others)) == [False, True, True]
    assert [(await end_of(turn)).result for turn in (first, *others, late)] == ["only once"] * 4
    assert session.turns == turns + 1
    with pytest.raises(InvalidArgument, match="another message"):
        await shared.service.send(session.id, "something else", key="k-1")


@on_shared_loop
async def test_message_is_kept_when_its_caller_disconnects(shared: SharedSessions) -> None:
    session = await shared.session()
    prompt = script("and gone", "here")
    caller = asyncio.create_task(shared.service.send(session.id, prompt, key="k-2"))
    await asyncio.sleep(0)
    caller.cancel()
    again = await shared.service.send(session.id, prompt, key="k-2")
    assert (await end_of(again)).result == "here"
    assert [started.message_id for started in events(session, TurnStarted)].count(again.message_id) == 1


async def test_keys_are_known_after_a_restart_and_a_refused_message_leaves_its_key_free(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    first = await start_service()
    prompt = script("begin", "begun")
    made = await first.create(prompt, options(sandbox), key="new")
    assert (await end_of(made)).result == "begun"
    asked = len(model.requests)
    second = await start_service()
    found = await second.create(prompt, options(sandbox), key="new")
    assert (found.session.id, found.message_id, found.repeated) == (made.session.id, made.message_id, True)
    assert await second.message_state(made.session.id, made.message_id) == "taken"
    assert (await end_of(found)).result == "begun"
    assert len(model.requests) == asked
    await first.cancel(made.session.id)
    for _ in range(2):
        with pytest.raises(Cancelled):
            await first.send(made.session.id, "more", key="refused")


async def test_message_delivered_by_a_killed_server_is_found_in_the_transcript(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service()
    made = await service.create(script("begin", "begun"), options(sandbox))
    await end_of(made)
    session = made.session
    keys = MessageKeys(service.state)
    lost, read = KeyName("local", session.id, "lost"), KeyName("local", session.id, "read")
    unread = keys.take(lost, digest_of([script("lost", "found")]))
    was_read = keys.take(read, digest_of([script("read", "again")]))
    keys.close()  # as a server that dies after it has taken the keys
    [path] = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    with path.open("a") as file:
        file.write(f'{{"type":"user","uuid":"{was_read.message_id}","message":{{"role":"user","content":"read"}}}}\n')
    turns = session.turns
    again = await service.send(session.id, script("read", "again"), key="read")
    assert (again.repeated, again.message_id, session.turns) == (True, was_read.message_id, turns)
    sent = await service.send(session.id, script("lost", "found"), key="lost")
    assert (sent.repeated, sent.message_id) == (False, unread.message_id)
    assert (await end_of(sent)).result == "found"


@pytest.mark.soak  # tests/core/state/test_message_keys.py
async def test_a_refusal_does_not_make_one_forget_what_a_killed_server_may_have_handed_over(
    start_service: StartService, sandbox: Sandbox
) -> None:
    service = await start_service()
    made = await service.create(script("begin", "begun"), options(sandbox))
    await end_of(made)
    session, keys, prompt = made.session, MessageKeys(service.state), script("read", "again")
    taken = keys.take(KeyName("local", session.id, "k"), digest_of([prompt]))
    keys.close()  # as a server that dies after it has taken the key; what it has started still works
    for text, at in ((prompt, "no-such-message"), ("something else", None)):
        with pytest.raises(InvalidArgument):
            await service.send(session.id, text, at_message=at, key="k")
    [path] = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    with path.open("a") as file:
        file.write(f'{{"type":"user","uuid":"{taken.message_id}","message":{{"role":"user","content":"read"}}}}\n')
    turns, other = session.turns, MessageKeys(service.state)
    # At any server: the one that has refused it does not keep it.
    assert other.take(KeyName("local", session.id, "k"), digest_of([prompt])).state is KeyState.ORPHANED
    other.close()
    again = await service.send(session.id, prompt, key="k")
    assert (again.repeated, again.message_id, session.turns) == (True, taken.message_id, turns)


@on_shared_loop
async def test_a_queued_message_is_reported_and_can_be_taken_back_once(shared: SharedSessions) -> None:
    async with shared_at(IN_A_TOOL, shared) as (session, _):
        given = await shared.service.send(session.id, "into the turn")
        held = await shared.service.send(session.id, "on its own", busy_mode=BusyMode.QUEUE)
        assert [message.text for message in session.queued_messages] == ["into the turn", "on its own"]
        assert [one.message_id for one in events_of_turn(session, MessageQueued)] == [given.message_id, held.message_id]
        for turn in (given, held):
            assert await shared.service.message_state(session.id, turn.message_id) == "queued"
            taken = await shared.service.withdraw(session.id, turn.message_id)
            assert taken is turn.message
            assert (await end_of(turn)).code is OutcomeCode.DROPPED
            assert await shared.service.withdraw(session.id, turn.message_id) is None
            assert await shared.service.message_state(session.id, turn.message_id) == "dropped"
        dropped = [one.message_id for one in events_of_turn(session, MessageDropped)]
        assert dropped == [given.message_id, held.message_id]
        assert session.queued_messages == []
        assert list((await shared.service.interrupt(session.id)).dropped) == []
    assert (await say(shared.service, session, script("and now", "nothing was left"))).result == "nothing was left"


@pytest.mark.soak
@on_shared_loop
async def test_the_message_of_the_turn_itself_and_one_it_has_taken_up_stay(shared: SharedSessions) -> None:
    async with shared_at(STREAMING, shared) as (session, sent):
        assert await shared.service.withdraw(session.id, sent[0].message_id) is None
        assert await shared.service.withdraw(session.id, "no-such-message") is None
        assert await shared.service.message_state(session.id, sent[0].message_id) == "taken"
        assert await shared.service.message_state(session.id, "no-such-message") == "unknown"
