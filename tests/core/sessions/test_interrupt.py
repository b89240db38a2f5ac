"""Interrupting ends the turn and keeps the session, at every moment of a turn."""

import asyncio

import pytest

from claude_code_mcp.core.model.events import Message, TurnEnded
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli

from .support import (
    IN_A_TOOL,
    MOMENTS,
    PATIENCE,
    STREAMING,
    Moment,
    SharedSessions,
    at,
    end_of,
    events,
    events_of_turn,
    on_shared_loop,
    options,
    say,
    shared_at,
    streams,
    until,
)

STARTING, *_ = MOMENTS
# Where it asks and where it streams: tests/server/test_sessions.py and below.
LATER = [
    pytest.param(moment, marks=pytest.mark.soak) if moment.name in ("asking", "streaming") else moment
    for moment in MOMENTS[1:]
]


async def test_a_turn_whose_process_is_starting_can_be_interrupted(service: Service, sandbox: Sandbox) -> None:
    async with at(STARTING, service, sandbox) as (session, sent):
        await goes_on_after_an_interruption(service, session, sent)


@on_shared_loop
@pytest.mark.parametrize("moment", LATER, ids=lambda moment: moment.name)
async def test_an_interrupted_turn_leaves_a_session_that_continues(shared: SharedSessions, moment: Moment) -> None:
    async with shared_at(moment, shared) as (session, sent):
        pid = session.pid
        await goes_on_after_an_interruption(shared.service, session, sent)
        assert session.pid == pid, "in the same process"


async def goes_on_after_an_interruption(service: Service, session: Session, sent: list[PendingTurn]) -> None:
    interrupted = await service.interrupt(session.id)
    assert interrupted.session is session
    outcomes = [await end_of(turn) for turn in sent]
    assert outcomes[0].code is OutcomeCode.INTERRUPTED
    assert {outcome.code for outcome in outcomes[1:]} <= {OutcomeCode.DROPPED}
    assert list(interrupted.dropped) == [turn.message for turn in sent[1:]]
    assert (session.state, session.questions) == (State.INTERRUPTED, [])
    assert (session.activity.retrying, session.stalled) == (None, False)
    assert len(events_of_turn(session, TurnEnded)) == 1
    assert (await say(service, session, script("go on", "here I am"))).result == "here I am"
    assert session.state is State.IDLE


@on_shared_loop
async def test_interrupting_an_idle_session_does_nothing(shared: SharedSessions) -> None:
    session = await shared.session()
    outcome = await say(shared.service, session, script("one", "first"))
    seen, pid = session.log.last_seq, session.pid
    await shared.service.interrupt(session.id)
    assert (session.state, session.outcome, session.pid) == (State.IDLE, outcome, pid)
    assert [one for one in session.log.after(seen) if not isinstance(one, Message)] == []


@on_shared_loop
async def test_every_interrupting_caller_gets_the_result(shared: SharedSessions) -> None:
    async with shared_at(STREAMING, shared) as (session, sent):
        await asyncio.gather(*(shared.service.interrupt(session.id) for _ in range(4)))
        assert session.state is State.INTERRUPTED
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED


@on_shared_loop
async def test_a_message_behind_the_interruption_is_a_new_turn(shared: SharedSessions) -> None:
    async with shared_at(IN_A_TOOL, shared) as (session, sent):
        interruption = asyncio.create_task(shared.service.interrupt(session.id))
        await asyncio.sleep(0)  # it gets as far as to ask the process, and no further
        behind = await shared.service.send(session.id, script("and now", "something else"))
        await interruption
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED
        assert (await end_of(behind)).result == "something else"


@on_shared_loop
async def test_interruption_continues_after_its_caller_disconnects(shared: SharedSessions) -> None:
    async with shared_at(STREAMING, shared) as (session, sent):
        caller = asyncio.create_task(shared.service.interrupt(session.id))
        await asyncio.sleep(0)
        caller.cancel()
        assert (await end_of(sent[0])).code is OutcomeCode.INTERRUPTED
        await session.wait(PATIENCE)
        assert (await say(shared.service, session, script("go on", "here"))).result == "here"


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
    assert "did not respond" in outcome.detail
    again = await service.send(session.id, "go")
    await until(session, lambda: session.live)
    assert not again.done()


async def test_late_output_does_not_revive_an_ended_turn(start_service: StartService, sandbox: Sandbox) -> None:
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
