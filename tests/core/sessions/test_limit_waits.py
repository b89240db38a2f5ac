"""Sessions that wait for a usage limit: the sleep, over a simulated week, and servers that are killed meanwhile."""

import asyncio
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import SessionBusy, TranscriptUnreadable
from claude_code_mcp.core.model.events import AuditEvent, Event, TurnEnded, WaitChanged
from claude_code_mcp.core.model.usage_limits import LimitWait, StoppedTurn, wait_after
from claude_code_mcp.core.sessions.limit_waits import MAX_SLEEP, LimitWaits
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .limit_worker import MOMENTS
from .support import PATIENCE
from .usage_limit_support import SUBSCRIPTION, limited

ROOT = Path(__file__).parents[3]
WEEK = 7 * 86_400.0


class SimulatedTime:
    """A clock that only sleeping moves."""

    def __init__(self, end: float) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []
        self.over = asyncio.Event()
        self._end = end

    async def sleep(self, seconds: float, changed: asyncio.Event) -> None:
        await asyncio.sleep(0)  # the tasks that were started run first
        if changed.is_set():
            return
        self.sleeps.append(seconds)
        self.now += max(seconds, 0.001)
        if self.now >= self._end:
            self.over.set()
            await asyncio.Event().wait()


_tasks: set["asyncio.Task[Any]"] = set()


def start_task(work: Coroutine[Any, Any, object], endless: bool = False) -> "asyncio.Task[Any]":
    task = asyncio.get_running_loop().create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


Begin = Callable[[LimitWaits, SimulatedTime], None]


async def simulated(
    end: float, begin: Begin, continued: list[tuple[str, float]], problem: Exception | None = None
) -> SimulatedTime:
    """Runs the waits until `end`; each session that continues is noted with the time."""
    clock = SimulatedTime(end)

    async def continue_session(session_id: str, owner: str) -> float | None:
        continued.append((session_id, clock.now))
        if problem is not None and len(continued) < 3:
            raise problem
        return None

    waits = LimitWaits((), start_task, clock=lambda: clock.now, sleep=clock.sleep)
    begin(waits, clock)
    running = asyncio.ensure_future(waits.run(continue_session))
    async with asyncio.timeout(PATIENCE):
        await clock.over.wait()
    running.cancel()
    return clock


async def test_a_week_of_limits_continues_every_session_once_at_its_time() -> None:
    planned: dict[str, float] = {}

    def begin(waits: LimitWaits, clock: SimulatedTime) -> None:
        for number in range(200):
            turn = StoppedTurn("work", worked=False, continued=False)
            reset = 5 * 3600.0 * (1 + number % 33)  # until the end of the week
            wait = wait_after(turn, None, "five_hour", reset, 0.0, number / 200, wanted=True, new_id=str(number))
            planned[str(number)] = wait.continues_at
            waits.event(str(number), "local", WaitChanged(wait, stopped=True))

    continued: list[tuple[str, float]] = []
    clock = await simulated(WEEK, begin, continued)
    assert len(continued) == len(dict(continued)) == 200
    late = [at - planned[session_id] for session_id, at in continued]
    assert min(late) >= 0
    assert max(late) < 1
    assert len({round(at, 3) for _, at in continued}) > 190, "spread, not all at once"
    assert max(clock.sleeps) <= MAX_SLEEP
    assert len(clock.sleeps) < WEEK / MAX_SLEEP + 2 * 200, "it sleeps, and does not poll"


async def test_changed_limit_wait_survives_the_sleep() -> None:
    def begin(waits: LimitWaits, clock: SimulatedTime) -> None:
        wait = LimitWait("w", "work", since=0, continues_at=5000)
        waits.event("given up", "local", WaitChanged(wait))
        waits.event("given up", "local", WaitChanged(wait.switched(False)))
        waits.event("answered", "local", WaitChanged(wait))
        waits.event("answered", "local", WaitChanged(None))
        waits.event("continuing_now", "local", WaitChanged(wait))
        waits.event("continuing_now", "local", WaitChanged(wait.continuing_now(7)))

    continued: list[tuple[str, float]] = []
    await simulated(9000, begin, continued)
    assert [session_id for session_id, _ in continued] == ["continuing_now"]
    assert 7 <= continued[0][1] < 8


async def test_a_wait_that_begins_before_the_last_one_is_done_is_not_forgotten() -> None:
    clock, continued = SimulatedTime(WEEK), list[float]()

    async def continue_session(session_id: str, owner: str) -> float | None:
        continued.append(clock.now)
        if len(continued) == 1:
            wait = LimitWait("w", "work", since=0, continues_at=clock.now)
            waits.event(session_id, owner, WaitChanged(wait, stopped=True))
            for _ in range(20):  # the sleep ends meanwhile
                await asyncio.sleep(0)
        return None

    waits = LimitWaits((), start_task, clock=lambda: clock.now, sleep=clock.sleep)
    waits.plan("session", "local", 10.0)
    running = asyncio.ensure_future(waits.run(continue_session))
    async with asyncio.timeout(PATIENCE):
        await clock.over.wait()
    running.cancel()
    assert len(continued) == 2


@pytest.mark.parametrize("problem", [SessionBusy("at work"), TranscriptUnreadable("no descriptor"), OSError("disk")])
async def test_a_session_that_cannot_continue_just_now_is_tried_again(problem: Exception) -> None:
    def begin(waits: LimitWaits, clock: SimulatedTime) -> None:
        waits.plan("busy", "local", 10.0)

    continued: list[tuple[str, float]] = []
    await simulated(1000, begin, continued, problem)
    times = [at for _, at in continued]
    assert len(times) == 3
    assert all(30 <= later - earlier <= 61 for earlier, later in itertools.pairwise(times))


# -- servers that are killed ------------------------------------------------------------------------------------------


class Settled:
    """Waits until what had been stopped has run, or is known to have run."""

    def __init__(self) -> None:
        self.ended = False
        self._happened = asyncio.Event()

    def event(self, session_id: str, owner: str, event: Event) -> None:
        self.ended = self.ended or isinstance(event, TurnEnded)
        if isinstance(event, WaitChanged) and event.wait is None:
            self._happened.set()

    def act(self, act: AuditEvent) -> None:
        """Of no interest."""

    async def wait(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._happened.wait()


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("stopped", marks=pytest.mark.soak),
        *(pytest.param(name, marks=() if name == "ended" else pytest.mark.soak) for name in MOMENTS),
    ],
)
async def test_a_killed_server_neither_loses_the_message_nor_runs_it_twice(
    moment: str, start_service: StartService, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    prompt = script("work", limited(time.time() + 3600, times=1, then="done"))
    command = (sys.executable, "-m", "tests.core.sessions.limit_worker", moment, prompt)
    worker = await asyncio.create_subprocess_exec(
        *command,
        str(sandbox.root / "state"),
        str(sandbox.project),
        cwd=ROOT,
        env={**environment, **SUBSCRIPTION},
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await asyncio.wait_for(worker.communicate(), PATIENCE)
    assert worker.returncode == -signal.SIGKILL
    session_id = output.decode().strip()

    settled = Settled()
    service = await start_service(SUBSCRIPTION, observers=[settled])
    if moment == "stopped":
        [row], _ = await service.stored.page(active=True)
        assert (row.session_id, row.in_memory) == (session_id, False)
        assert row.continues_at is not None
        await service.steer_limit(session_id, "now")
    await settled.wait()
    session = await service.find(session_id)
    assert session.limit_wait is None
    if settled.ended:  # the next server has run it
        assert session.outcome is not None
        assert session.outcome.result == "done"
    [transcript] = sandbox.home.glob(f".claude/projects/*/{session_id}.jsonl")
    lines = [json.loads(line) for line in transcript.read_text(encoding="utf-8").splitlines()]
    sent = [line for line in lines if line.get("type") == "user" and line["message"]["content"] == prompt]
    assert len(sent) == 2, "the message that the limit stopped, and once more after it"
