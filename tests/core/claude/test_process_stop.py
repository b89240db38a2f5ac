"""The stop ladder: interrupt, end of input, SIGTERM, SIGKILL, sweep. Each step only when the one before failed."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.protocol import Result, StreamEvent
from claude_code_mcp.core.processes.child import Exit
from tests.support.clock import settled, stopped_clock

from .conftest import PATIENCE, Start, Started, gone, number_in, runs

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")

CLOSED_STDIN = 77
"""The exit code of a process that saw its stdin close."""
TERMINATED = 143
STEP = 0.3


async def stop(started: Started, monkeypatch: pytest.MonkeyPatch, *, until: str) -> tuple[Exit, dict[str, int]]:
    """Stops a process on a clock that moves until this step of the ladder is taken, and then stands still: the steps
    before run out of their time, and this one may take as long as it needs. Returns the end, and how many times the
    time of a step had passed when each was taken."""
    taken: dict[str, float] = {}
    with stopped_clock() as clock:
        begun = clock.now
        child = started.process._child

        def take(step: str, act: Callable[[], None]) -> None:
            taken[step] = clock.now - begun
            act()

        for step in ("close_input", "terminate", "kill"):
            monkeypatch.setattr(child, step, partial(take, step, getattr(child, step)))
        stopping = asyncio.create_task(started.process.stop(STEP))
        await settled()
        while until not in taken:
            await clock.advance(STEP / 10)
        exit_ = await stopping
    return exit_, {step: round(seconds / STEP) for step, seconds in taken.items()}


async def in_a_turn(started: Started) -> Started:
    started.process.send("go", "m1")
    await started.listener.first(StreamEvent)
    return started


def at_eof() -> dict[str, object]:
    return {"crash": CLOSED_STDIN, "crash_at": "eof"}


async def test_an_idle_process_is_ended_by_the_end_of_its_input(start: Start) -> None:
    started = await start(**at_eof())
    assert (await started.process.stop(PATIENCE)).code == CLOSED_STDIN


async def test_a_process_that_never_became_ready_is_ended_too(start: Start) -> None:
    started = await start(initialized=False, no_init=True, **at_eof())
    assert (await started.process.stop(PATIENCE)).code == CLOSED_STDIN


async def test_a_turn_is_interrupted_first(start: Start) -> None:
    started = await in_a_turn(await start(silent=True, **at_eof()))
    assert (await started.process.stop(PATIENCE)).code == CLOSED_STDIN
    assert [frame.raw["terminal_reason"] for frame in started.listener.of(Result)] == ["aborted_streaming"]


async def test_a_turn_that_cannot_be_interrupted_is_terminated_with_its_input_still_open(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await in_a_turn(await start(silent=True, ignore_interrupt=True, **at_eof()))
    end, waited = await stop(started, monkeypatch, until="terminate")
    assert (end.code, waited) == (TERMINATED, {"terminate": 1})


async def test_process_that_ignores_end_of_input_is_terminated(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    started = await start(ignore_eof=True)
    end, waited = await stop(started, monkeypatch, until="terminate")
    assert (end.code, waited) == (TERMINATED, {"close_input": 0, "terminate": 1})


async def test_process_that_ignores_signals_is_killed_within_the_limits(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await in_a_turn(await start(silent=True, ignore_interrupt=True, ignore_eof=True, ignore_signals=True))
    end, waited = await stop(started, monkeypatch, until="kill")
    assert (end.code, waited) == (-signal.SIGKILL, {"terminate": 1, "kill": 2})


async def test_the_input_is_never_closed_while_a_question_is_open(start: Start) -> None:
    started = await start(ask=True, **at_eof())
    started.process.send("go", "m1")
    await started.listener.question()
    assert (await started.process.stop(PATIENCE)).code == TERMINATED


async def test_once_the_question_is_answered_the_input_may_be_closed(start: Start) -> None:
    started = await start(ask=True, **at_eof())
    started.process.send("go", "m1")
    question = await started.listener.question()
    started.process.answer(question.id, {"behavior": "deny", "message": "no"})
    await started.listener.result()
    assert (await started.process.stop(PATIENCE)).code == CLOSED_STDIN


async def test_cancelled_caller_does_not_stop_process_termination(start: Start) -> None:
    started = await in_a_turn(await start(silent=True, ignore_interrupt=True, ignore_eof=True, ignore_signals=True))
    caller = asyncio.create_task(started.process.stop(STEP))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert not started.process.exited.done()
    assert (await started.listener.ended()).code == -signal.SIGKILL
    await asyncio.wait_for(started.process.cleaned.wait(), PATIENCE)


async def test_second_stop_gets_the_same_result(start: Start) -> None:
    started = await start()
    first, second = await asyncio.gather(started.process.stop(PATIENCE), started.process.stop(PATIENCE))
    assert first is second
    assert (await started.process.stop(PATIENCE)) is first


async def test_a_process_that_is_dead_already_needs_no_stopping(start: Start) -> None:
    started = await start()
    os.kill(started.process.pid, signal.SIGKILL)
    await started.listener.ended()
    assert (await started.process.stop(PATIENCE)).code == -signal.SIGKILL


async def test_a_stopped_process_takes_no_part_in_anything(start: Start) -> None:
    started = await start()
    before = started.process.alive
    stopping = asyncio.create_task(started.process.stop(PATIENCE))
    await asyncio.sleep(0)
    assert (before, started.process.alive) == (True, False)
    await stopping


@pytest.mark.parametrize("crash", [False, True])
async def test_children_in_a_session_of_their_own_are_swept(start: Start, tmp_path: Path, crash: bool) -> None:
    started = await start(leave_child=600, child_file=str(tmp_path / "child"))
    child = await number_in(tmp_path / "child")
    assert os.getsid(child) != os.getsid(started.process.pid)
    if crash:
        os.kill(started.process.pid, signal.SIGKILL)
        await asyncio.wait_for(started.process.cleaned.wait(), PATIENCE)
    else:
        await started.process.stop(PATIENCE)
    await gone(child)


async def test_the_children_of_another_process_are_left_alone(start: Start, tmp_path: Path) -> None:
    stopped = await start(leave_child=600, child_file=str(tmp_path / "one"))
    await start(leave_child=600, child_file=str(tmp_path / "two"))
    other = await number_in(tmp_path / "two")
    await stopped.process.stop(PATIENCE)
    await gone(await number_in(tmp_path / "one"))
    assert runs(other)
