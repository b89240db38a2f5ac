"""Closing the service, and callers that go away: nothing is left running, nobody waits for ever."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.process import ClaudeProcess
from claude_code_mcp.core.errors import Cancelled, InvalidArgument
from claude_code_mcp.core.model.events import ProcessChanged
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.processes.child import Exit
from claude_code_mcp.core.service import Service
from claude_code_mcp.hub.auth.sign_in import listen
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService, programs_below
from tests.support.misbehaving_cli import install_misbehaving_cli

from .support import (
    MOMENTS,
    PATIENCE,
    Moment,
    SharedSessions,
    at,
    end_of,
    events,
    on_shared_loop,
    options,
    parked,
    run,
    say,
    streams,
    until,
)

# Closing ends the processes, whatever they do; an interruption, which asks them, is tested at every moment. One that is
# just being started: `test_a_message_on_its_way_while_the_service_closes_is_refused`.
CASES = [
    moment if moment.name == "with a queue" else pytest.param(moment, marks=pytest.mark.soak) for moment in MOMENTS
]


def children() -> set[int]:
    return {one.pid for one in programs_below()}


@pytest.mark.parametrize("moment", CASES, ids=lambda moment: moment.name)
async def test_closing_ends_every_turn_and_every_process(
    start_service: StartService, sandbox: Sandbox, moment: Moment
) -> None:
    before = children()
    service = await start_service()
    async with at(moment, service, sandbox) as (session, sent):
        waiting = asyncio.create_task(service.wait(session.id, for_questions=False))
        await asyncio.sleep(0)
        await service.__aexit__()
        assert {(await end_of(turn)).code for turn in sent} == {OutcomeCode.INTERRUPTED}
        assert (await waiting).state is State.INTERRUPTED
        assert (session.live, session.questions) == (False, [])
        assert children() <= before
        with pytest.raises(Cancelled):
            await service.send(session.id, "hello")
        with pytest.raises(Cancelled):
            await service.create("hello", options(sandbox))


async def test_closing_many_stops_them_all_at_once(
    start_service: StartService, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no longer than closing one: no stop begins when another is over."""
    before, stop, stopping, over = children(), ClaudeProcess.stop, list[int](), list[int]()

    async def counted_stop(process: ClaudeProcess, timeout: float) -> Exit:
        stopping.append(len(over))
        try:
            return await stop(process, timeout)
        finally:
            over.append(process.pid)

    monkeypatch.setattr(ClaudeProcess, "stop", counted_stop)
    cli = install_misbehaving_cli(sandbox.root / "bin")
    ways = {"MISBEHAVE": "silent ignore_interrupt ignore_eof ignore_signals"}
    service = await start_service(ways, claude_path=str(cli), stop_timeout_ms=300, spawn_limit=8)
    sessions = [(await service.create("go", options(sandbox))).session for _ in range(8)]
    for session in sessions:
        await until(session, lambda session=session: streams(session))  # type: ignore[misc]
    await service.__aexit__()
    assert stopping == [0] * len(sessions)
    assert children() <= before


async def test_a_message_on_its_way_while_the_service_closes_is_refused(
    start_service: StartService, sandbox: Sandbox
) -> None:
    before = children()
    service = await start_service()
    session, _ = await run(service, script("one", "first"), options(sandbox))
    session.park()
    sending = asyncio.create_task(service.send(session.id, "hello"))
    creating = asyncio.create_task(service.create("hello", options(sandbox)))
    await asyncio.sleep(0)
    await service.__aexit__()
    results = await asyncio.gather(sending, creating, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            assert isinstance(result, Cancelled)
        else:
            assert (await end_of(result[1])).code is OutcomeCode.INTERRUPTED
    assert children() <= before


async def gone_after(call: Awaitable[object], steps: int) -> None:
    """Lets the loop go round so often and then cancels the caller, who may be done by then."""
    caller = asyncio.ensure_future(call)
    for _ in range(steps):
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])


@pytest.mark.parametrize("rounds", [(4,), pytest.param((0, 1, 2, 8), marks=pytest.mark.soak)], ids=str)
async def test_callers_that_go_away_while_creating_leave_nothing_half_done(
    start_service: StartService, sandbox: Sandbox, rounds: tuple[int, ...]
) -> None:
    service = await start_service(max_sessions=1)
    for steps in rounds:
        await gone_after(service.create(script("one", "first"), options(sandbox)), steps)
        for session in service.sessions():  # it was accepted before the caller had gone: then it runs like any other
            await session.wait(PATIENCE)
            assert session.state is State.IDLE
    _, outcome = await run(service, script("two", "second"), options(sandbox))
    assert outcome.ok


@pytest.mark.parametrize("rounds", [(6,), pytest.param((0, 1, 3), marks=pytest.mark.soak)], ids=str)
async def test_callers_that_go_away_while_sending_leave_the_session_usable(
    service: Service, sandbox: Sandbox, rounds: tuple[int, ...]
) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    for steps in rounds:
        session.park()
        await gone_after(service.send(session.id, script("more", "said")), steps)
        await session.wait(PATIENCE)
        await parked(session)
        assert not session.live
    assert (await say(service, session, script("last", "fine"))).result == "fine"
    started = [one.change for one in events(session, ProcessChanged)].count("started")
    assert started == session.turns


@pytest.mark.soak  # tests/server/test_sessions.py
@on_shared_loop
async def test_a_caller_that_goes_away_while_waiting_leaves_the_turn_alone(shared: SharedSessions) -> None:
    session = await shared.session()
    turn = await shared.service.send(session.id, script("say", "hello"))
    await gone_after(shared.service.wait(session.id), 3)
    await gone_after(end_of(turn), 3)
    assert (await end_of(turn)).result == "hello"


async def test_closing_does_not_wait_for_a_person_who_was_sent_to_sign_in(start_service: StartService) -> None:
    """However long the steps of stopping a process may take."""
    service, listening = await start_service(stop_timeout_ms=3_600_000), asyncio.Event()

    async def sign_in() -> None:
        async with listen(None) as callback:
            listening.set()
            await callback.wait()

    waiting = service.start_task(sign_in())
    await listening.wait()
    await service.__aexit__()
    assert waiting.cancelled()


async def test_closing_waits_for_a_note_and_not_for_an_endless_watch(start_service: StartService) -> None:
    service, watching, over = await start_service(), asyncio.Event(), asyncio.Event()

    async def watch() -> None:
        try:
            watching.set()
            await asyncio.Event().wait()
        finally:
            over.set()

    async def note() -> None:
        await over.wait()

    watched, noted = service.start_task(watch(), endless=True), service.start_task(note())
    await watching.wait()
    await service.__aexit__()
    assert (watched.cancelled(), noted.cancelled()) == (True, False)


@pytest.mark.soak
async def test_missing_directory_is_named_for_every_caller(
    start_service: StartService, sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    service = await start_service()
    there = options(sandbox).model_copy(update={"cwd": str(gone)})
    session, _ = await run(service, script("one", "first"), there)
    await parked(session)
    gone.rmdir()
    with pytest.raises(InvalidArgument, match="gone"):
        await service.send(session.id, "again")
    with pytest.raises(InvalidArgument, match="started in no longer exists"):
        await service.create("hello", options(sandbox).model_copy(update={"cwd": None}))
    with pytest.raises(InvalidArgument, match="started in no longer exists"):
        Service(service.settings)
    gone.mkdir()
    assert (await say(service, session, script("two", "second"))).result == "second"
