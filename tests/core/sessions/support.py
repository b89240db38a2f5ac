"""What the tests of the engine share: waiting on events, and the moments in the life of a turn."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from claude_code_mcp.core.model.events import Event, Message, Partial, PartialRun, TurnStarted
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.outcome import Outcome
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import PendingTurn, Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import fail, script, text, tool
from tests.support.waiting import HANG_SECONDS

ENDLESS = "until [ -e never ]; do sleep 0.1; done"
"""A command that runs until it is ended; the CLI refuses to run a long `sleep` as it is."""

E = TypeVar("E", bound=Event)

PATIENCE = HANG_SECONDS
"""Seconds after which something that must happen counts as not happening, on however busy a machine."""


def options(sandbox: Sandbox, **more: Any) -> SessionOptions:
    return SessionOptions(cwd=str(sandbox.project), **more)


async def end_of(turn: PendingTurn) -> Outcome:
    async with asyncio.timeout(PATIENCE):
        return await turn.outcome()


async def written_to(pipe: Path, turn: PendingTurn) -> None:
    """Waits until a command of the turn has opened the named pipe and closed it; fails with the turn's outcome if that
    ends before. A thread that opens the pipe would wait for ever, and the test's event loop for the thread."""
    loop, happened = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    loop.add_reader(descriptor, happened.set)
    waits = [asyncio.ensure_future(happened.wait()), asyncio.ensure_future(turn.outcome())]
    try:
        await asyncio.wait(waits, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert happened.is_set(), waits[1].result() if waits[1].done() else "neither the pipe nor the end came"
    finally:
        for wait in waits:
            wait.cancel()
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def run(service: Service, prompt: str, given: SessionOptions, **how: Any) -> tuple[Session, Outcome]:
    """A new session and the outcome of its first turn."""
    turn = await service.create(prompt, given, **how)
    session = turn.session
    return session, await end_of(turn)


async def say(service: Service, session: Session | str, prompt: str, **how: Any) -> Outcome:
    """The outcome of one more message."""
    turn = await service.send(session if isinstance(session, str) else session.id, prompt, **how)
    return await end_of(turn)


async def until(session: Session, reached: Callable[[], bool]) -> None:
    """Waits until something is true of a session, looking at every event of it."""
    async with asyncio.timeout(PATIENCE):
        with session.log.subscribe() as events:
            if reached():
                return
            async for _ in events:
                if reached():
                    return
    raise AssertionError("the log was closed before that")


async def event(session: Session, kind: type[E], count: int = 1) -> E:
    """The `count`th event of a kind."""
    await until(session, lambda: len(events(session, kind)) >= count)
    return events(session, kind)[count - 1]


def events(session: Session, kind: type[E]) -> list[E]:
    return [one for one in session.log.after(0) if isinstance(one, kind)]


def events_of_turn(session: Session, *kinds: type[E]) -> list[E]:
    """The events of these kinds since the last turn began, which is when its message was accepted."""
    [begun] = session.log.latest(TurnStarted, 1)
    return [one for one in session.log.after(begun.seq) if isinstance(one, kinds)]


def api_times(session: Session) -> list[int]:
    """The time with the API at the end of every turn, as the CLI counts it: over the whole conversation."""
    return [event.raw["duration_api_ms"] for event in events(session, Message) if event.type == "result"]


async def question(session: Session) -> str:
    """The id of the question that the session asks."""
    await until(session, lambda: session.state is State.WAITING)
    return session.questions[0].id


async def parked(session: Session) -> None:
    """Parks a session and waits until its process is gone."""
    session.park()
    await session.closed()


on_shared_loop = pytest.mark.asyncio(loop_scope="session")
"""For tests that use the fixture `shared`."""


class SharedSessions:
    """A service, and sessions at rest with a process, one for each set of options."""

    def __init__(self, service: Service, sandbox: Sandbox) -> None:
        self.service = service
        self.sandbox = sandbox
        self._made: dict[str, Session] = {}

    @property
    def project(self) -> Path:
        return self.sandbox.project

    async def session(self, **given: Any) -> Session:
        """The session with these options, idle and with a process; a new one if a test has left it otherwise."""
        wanted = options(self.sandbox, **given)
        key = wanted.model_dump_json()
        session = self._made.get(key)
        if session is None or not session.live or session.state not in (State.IDLE, State.INTERRUPTED, State.ERROR):
            session, outcome = await run(self.service, script("hello", "ready"), wanted)
            assert outcome.ok, outcome
            self._made[key] = session
        return session


@dataclass(frozen=True)
class Moment:
    """A point in a turn, and how to get there."""

    name: str
    prompt: str
    reached: Callable[[Session], bool]
    allowed: tuple[str, ...] = ("Bash",)
    queued: bool = False


def streams(session: Session) -> bool:
    """Whether the turn has said something."""
    return any(isinstance(one, Partial | PartialRun) and one.text for one in events_of_turn(session, Event))


def uses_tool(session: Session) -> bool:
    return any(one.status == "running" for one in session.readable_lines.tools.values())


MOMENTS = [
    Moment("starting", script("start", "never said"), lambda session: session.state is State.STARTING),
    Moment("streaming", script("stream", text("word " * 400, chunks=400, interval=0.1)), streams),
    Moment("in a tool", script("work", tool("Bash", command=ENDLESS)), uses_tool),
    Moment("retrying", script("retry", fail(529)), lambda session: session.activity.retrying is not None),
    Moment("asking", script("ask", tool("Bash", command="touch asked")), lambda session: bool(session.questions), ()),
    Moment("with a queue", script("work", tool("Bash", command=ENDLESS)), uses_tool, queued=True),
]
STREAMING, IN_A_TOOL = MOMENTS[1:3]


@asynccontextmanager
async def at(moment: Moment, service: Service, sandbox: Sandbox) -> AsyncIterator[tuple[Session, list[PendingTurn]]]:
    """A new session at that moment, and everything it was sent."""
    given = options(sandbox, allowed_tools=moment.allowed)
    turn = await service.create(moment.prompt, given)
    yield turn.session, await _reach(moment, service, turn)


@asynccontextmanager
async def shared_at(moment: Moment, shared: SharedSessions) -> AsyncIterator[tuple[Session, list[PendingTurn]]]:
    """A shared session at that moment of its next turn, which is none at which its process starts."""
    session = await shared.session(allowed_tools=moment.allowed)
    turn = await shared.service.send(session.id, moment.prompt)
    yield session, await _reach(moment, shared.service, turn)


async def _reach(moment: Moment, service: Service, turn: PendingTurn) -> list[PendingTurn]:
    session, sent = turn.session, [turn]
    await until(session, lambda: moment.reached(session))
    if moment.queued:
        sent.append(await service.send(session.id, "joins"))
        sent.append(await service.send(session.id, script("own turn", "never said"), busy_mode=BusyMode.QUEUE))
    return sent


async def busy(service: Service, sandbox: Sandbox) -> Session:
    given = options(sandbox, allowed_tools=("Bash",))
    session = (await service.create(script("work", tool("Bash", command=ENDLESS)), given)).session
    await until(session, lambda: uses_tool(session))
    return session


async def kill(session: Session) -> None:
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    await until(session, lambda: not session.live)
