"""Whatever is done to a session in whatever order: every message gets an outcome, and the session goes on."""

import asyncio
import contextlib
import os
import random
import signal

import pytest

from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.support.waiting import HANG_SECONDS

from .support import end_of, options, run, say

PROMPTS = [
    script("short", "done"),
    script("streamed", text("word " * 40, chunks=40, interval=0.01)),
    script("with a tool", tool("Bash", command="sleep 0.2"), "done"),
    script("asking", tool("Bash", command="touch asked"), "done"),
    "no script of its own",
]


class Walk:
    """Random steps with one session, all of them in the middle of the others."""

    def __init__(self, service: Service, session: Session, seed: int) -> None:
        self._service = service
        self._session = session
        self._random = random.Random(seed)
        self._steps = [self.send, self.send, self.send, self.later, self.interrupt, self.park, self.kill]
        self.sent: list[PendingTurn] = []

    async def go(self, steps: int) -> None:
        async with asyncio.TaskGroup() as running:
            for _ in range(steps):
                running.create_task(self._random.choice(self._steps)())
                await asyncio.sleep(self._random.choice([0, 0, 0.01, 0.05, 0.3]))

    async def send(self, busy_mode: BusyMode = BusyMode.JOIN) -> None:
        prompt = self._random.choice(PROMPTS)
        self.sent.append(await self._service.send(self._session.id, prompt, busy_mode=busy_mode))

    async def later(self) -> None:
        await self.send(BusyMode.QUEUE)

    async def interrupt(self) -> None:
        await self._service.interrupt(self._session.id)

    async def park(self) -> None:
        if self._session.can_park:
            self._session.park()

    async def kill(self) -> None:
        if self._session.pid is not None and self._random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._session.pid, signal.SIGKILL)


@pytest.mark.parametrize(("seed", "steps"), [pytest.param(seed, 25, marks=pytest.mark.soak) for seed in (1, 2, 3, 4)])
async def test_a_random_walk_ends_in_a_session_that_works(
    start_service: StartService, sandbox: Sandbox, seed: int, steps: int
) -> None:
    service = await start_service(permission_timeout_ms=300)
    session, _ = await run(service, script("one", "first"), options(sandbox, allowed_tools=("Bash(sleep:*)",)))
    walk = Walk(service, session, seed)
    await walk.go(steps)
    await asyncio.gather(*(end_of(turn) for turn in walk.sent))
    await session.wait(HANG_SECONDS)
    assert session.state in (State.IDLE, State.INTERRUPTED, State.ERROR)
    assert service.broker.pending() == []
    assert (await say(service, session, script("last", "still here"))).result == "still here"
