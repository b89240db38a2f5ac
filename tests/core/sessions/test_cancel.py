"""Cancelling is final, at every moment of a turn and after it."""

import asyncio

import psutil
import pytest

from claude_code_mcp.core.errors import Cancelled
from claude_code_mcp.core.model.events import Message, ProcessChanged, StateChanged, TurnEnded
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService
from tests.support.misbehaving_cli import install_misbehaving_cli

from .support import IN_A_TOOL, MOMENTS, Moment, at, end_of, event, events, options, run, streams, until

# Cancelling ends the process, whatever that does; an interruption, which asks it, is tested at every moment.
CASES = [
    moment if moment.name == "with a queue" else pytest.param(moment, marks=pytest.mark.soak) for moment in MOMENTS
]


@pytest.mark.parametrize("moment", CASES, ids=lambda moment: moment.name)
async def test_cancelled_session_ends_at_once_permanently(service: Service, sandbox: Sandbox, moment: Moment) -> None:
    async with at(moment, service, sandbox) as (session, sent):
        pid = session.pid
        await service.cancel(session.id)
        assert (session.state, session.live, session.questions) == (State.CANCELLED, False, [])
        assert {(await end_of(turn)).code for turn in sent} == {OutcomeCode.CANCELLED}
        seen = session.log.last_seq
        await session.closed()
        assert session.state is State.CANCELLED
        late = [one for one in session.log.after(seen) if isinstance(one, StateChanged | TurnEnded | Message)]
        assert late == []
        assert pid is None or not psutil.pid_exists(pid)
        assert len(events(session, TurnEnded)) == 1
        with pytest.raises(Cancelled):
            await service.send(session.id, "hello")
        with pytest.raises(Cancelled):
            await service.fork(session.id, script("two", "second"))
        await service.interrupt(session.id)
        assert session.state is State.CANCELLED


@pytest.mark.soak  # tests/cli/test_running_sessions.py
async def test_a_session_at_rest_can_be_cancelled(service: Service, sandbox: Sandbox) -> None:
    session, outcome = await run(service, script("one", "first"), options(sandbox))
    await service.cancel(session.id)
    await service.cancel(session.id)
    await session.closed()
    assert (session.state, session.outcome) == (State.CANCELLED, outcome)
    with pytest.raises(Cancelled):
        await service.send(session.id, "hello")


async def test_cancelling_overrides_an_interruption_in_progress(service: Service, sandbox: Sandbox) -> None:
    async with at(IN_A_TOOL, service, sandbox) as (session, sent):
        interruption = asyncio.create_task(service.interrupt(session.id))
        await asyncio.sleep(0)
        await service.cancel(session.id)
        await interruption
        assert (await end_of(sent[0])).code is OutcomeCode.CANCELLED
        assert session.state is State.CANCELLED
        await session.closed()
        assert session.usage.cost_usd > 0, "what a cancelled turn cost is counted"
        assert session.costs.spent_usd == pytest.approx(session.usage.cost_usd)


@pytest.mark.soak
async def test_a_message_on_its_way_into_a_parked_session_is_refused(service: Service, sandbox: Sandbox) -> None:
    session, outcome = await run(service, script("one", "first"), options(sandbox))
    session.park()
    sending = asyncio.create_task(service.send(session.id, "hello"))
    await asyncio.sleep(0)
    await service.cancel(session.id)
    with pytest.raises(Cancelled):
        await sending
    await session.closed()
    assert [one.change for one in events(session, ProcessChanged)] == ["started", "parked"]
    assert (session.state, session.outcome) == (State.CANCELLED, outcome)


async def test_a_process_that_is_just_being_started_is_stopped(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("one", "first"), options(sandbox))
    session = turn.session
    started = await event(session, ProcessChanged)
    await service.cancel(session.id)
    assert (await end_of(turn)).code is OutcomeCode.CANCELLED
    await session.closed()
    assert started.pid is not None
    assert not psutil.pid_exists(started.pid)


async def test_resisting_process_is_removed(start_service: StartService, sandbox: Sandbox) -> None:
    cli = install_misbehaving_cli(sandbox.root / "bin")
    ways = {"MISBEHAVE": "silent ignore_interrupt ignore_signals ignore_eof"}
    service = await start_service(ways, claude_path=str(cli), stop_timeout_ms=200)
    session = (await service.create("go", options(sandbox))).session
    await until(session, lambda: streams(session))
    pid = session.pid
    await service.cancel(session.id)
    await session.closed()
    assert pid is not None
    assert not psutil.pid_exists(pid)
