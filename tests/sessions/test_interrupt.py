"""Interrupting ends the turn and keeps the session, at every moment of a turn."""

import asyncio

import pytest

from claude_code_mcp.model.events import Message, TurnEnded
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.testing import Sandbox, install_misbehaving_cli
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .support import MOMENTS, PATIENCE, Moment, at, end_of, events, options, run, say, streams, until

every_moment = pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.name)


@every_moment
async def test_an_interrupted_turn_leaves_a_session_that_goes_on(
    service: Service, sandbox: Sandbox, moment: Moment
) -> None:
    async with at(moment, service, sandbox) as (session, sent):
        interrupted = await service.interrupt(session.id)
        assert interrupted.session is session
        outcomes = [await end_of(turn) for turn in sent]
        assert outcomes[0].code is OutcomeCode.INTERRUPTED
        assert {outcome.code for outcome in outcomes[1:]} <= {OutcomeCode.DROPPED}
        assert list(interrupted.dropped) == [turn.message for turn in sent[1:]]
        assert (session.state, session.questions) == (State.INTERRUPTED, [])
        assert (session.retrying, session.stalled) == (None, False)
        assert len(events(session, TurnEnded)) == 1
        assert (await say(service, session, script("go on", "here I am"))).result == "here I am"
        assert session.state is State.IDLE


async def test_an_interrupted_turn_keeps_the_process(service: Service, sandbox: Sandbox) -> None:
    async with at(MOMENTS[2], service, sandbox) as (session, _):
        pid = session.pid
        await service.interrupt(session.id)
        assert (await say(service, session, script("go on", "same process"))).ok
        assert session.pid == pid


async def test_interrupting_an_idle_session_does_nothing(service: Service, sandbox: Sandbox) -> None:
    session, outcome = await run(service, script("one", "first"), options(sandbox))
    seen, pid = session.log.last_seq, session.pid
    await service.interrupt(session.id)
    assert (session.state, session.outcome, session.pid) == (State.IDLE, outcome, pid)
    assert [one for one in session.log.after(seen) if not isinstance(one, Message)] == []


async def test_everybody_who_interrupts_hears_of_the_end(service: Service, sandbox: Sandbox) -> None:
    async with at(MOMENTS[1], service, sandbox) as (session, sent):
        await asyncio.gather(*(service.interrupt(session.id) for _ in range(4)))
        assert session.state is State.INTERRUPTED
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED


async def test_a_message_behind_the_interruption_is_a_new_turn(service: Service, sandbox: Sandbox) -> None:
    async with at(MOMENTS[2], service, sandbox) as (session, sent):
        interruption = asyncio.create_task(service.interrupt(session.id))
        await asyncio.sleep(0)  # it gets as far as to ask the process, and no further
        behind = await service.send(session.id, script("and now", "something else"))
        await interruption
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED
        assert (await end_of(behind)).result == "something else"


async def test_a_process_that_ignores_the_interruption_is_replaced(
    start_service: StartService, sandbox: Sandbox
) -> None:
    cli = install_misbehaving_cli(sandbox.root / "bin")
    service = await start_service({"MISBEHAVE": "silent ignore_interrupt"}, claude_path=str(cli), stop_timeout_ms=200)
    turn = await service.create("go", options(sandbox))
    session = turn.session
    await until(session, lambda: streams(session))
    await service.interrupt(session.id)
    outcome = await end_of(turn)
    assert (outcome.code, session.live) == (OutcomeCode.INTERRUPTED, False)
    assert "did not react" in outcome.detail
    again = await service.send(session.id, "go")
    await until(session, lambda: session.live)
    assert not again.done()


async def test_words_of_a_dead_turn_do_not_bring_it_back(start_service: StartService, sandbox: Sandbox) -> None:
    cli = install_misbehaving_cli(sandbox.root / "bin")
    service = await start_service({"MISBEHAVE": "silent late_frames"}, claude_path=str(cli))
    turn = await service.create("go", options(sandbox))
    session = turn.session
    await until(session, lambda: streams(session))
    await service.interrupt(session.id)
    results = [one.raw["result"] for one in events(session, Message) if one.type == "result"]
    if "late result" not in results:
        await until(session, lambda: any(one.raw.get("result") == "late result" for one in events(session, Message)))
    assert (session.state, session.turns) == (State.INTERRUPTED, 1)
    assert (await end_of(turn)).code is OutcomeCode.INTERRUPTED


async def test_a_caller_that_is_gone_does_not_stop_the_interruption(service: Service, sandbox: Sandbox) -> None:
    async with at(MOMENTS[1], service, sandbox) as (session, sent):
        caller = asyncio.create_task(service.interrupt(session.id))
        await asyncio.sleep(0)
        caller.cancel()
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED
        await session.wait(PATIENCE)
        assert (await say(service, session, script("go on", "here"))).result == "here"
