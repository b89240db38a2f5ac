"""Subagents in the background: their end starts a turn that nobody sent a message for."""

import asyncio

import pytest

from claude_code_mcp.model.events import ProcessChanged, TurnEnded, TurnStarted
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.question import Answer
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, modify, script, text, tool
from tests.conftest import StartService
from tests.support.waiting import HANG_SECONDS

from .support import PATIENCE, end_of, event, events, options, question, say, until

WAITS = tool("Bash", command="until [ -e go ]; do sleep 0.05; done")
PROMPT = script(
    "delegate", agent("look", script("look", WAITS, "seen"), background=True), "on its way", text("all done")
)


async def test_the_end_of_a_background_agent_is_a_turn_of_its_own(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    session = turn.session
    assert (await end_of(turn)).result == "on its way"
    assert session.state is State.IDLE
    await until(session, lambda: session.background_tasks == 1)
    (sandbox.project / "go").touch()
    started = await event(session, TurnStarted, 2)
    assert (started.message_id, started.prompt) == ("", "")
    await session.wait(HANG_SECONDS)
    assert session.outcome is not None
    assert session.outcome.result == "all done"
    assert (session.turns, session.background_tasks) == (2, 0)


async def test_a_session_with_background_work_is_not_parked(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(max_sessions=2, idle_park_ms=50, cleanup_interval_ms=50)
    turn = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    session = turn.session
    await end_of(turn)
    await until(session, lambda: session.background_tasks == 1)
    other = (await service.create(script("one", "first"), options(sandbox))).session
    await until(other, lambda: other.turns == 1 and not other.live and not other.busy)
    assert session.live
    (sandbox.project / "go").touch()
    await until(session, lambda: not session.live)
    assert [one.number for one in events(session, TurnStarted)] == [1, 2]


IN_A_SHELL = script(
    "build", tool("Bash", command="until [ -e go ]; do sleep 0.05; done", run_in_background=True), "started", "all done"
)


@pytest.mark.parametrize("prompt", [PROMPT, IN_A_SHELL], ids=["agent", "shell"])
async def test_background_work_outlives_the_time_of_an_idle_session(
    start_service: StartService, sandbox: Sandbox, prompt: str
) -> None:
    service = await start_service(session_ttl_ms=100, idle_park_ms=50, cleanup_interval_ms=20)
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash", "Agent")))
    session = turn.session
    await end_of(turn)
    await until(session, lambda: session.background_tasks == 1)
    short = (await service.create(script("one", "first"), options(sandbox))).session
    await log_closed(short)  # its time is over, and so would the other's be
    assert service.session(session.id) is session
    assert session.live
    (sandbox.project / "go").touch()
    await log_closed(session)
    assert [one.outcome.result for one in events(session, TurnEnded)][1:] == ["all done"]


async def test_background_work_ends_when_it_has_run_for_too_long(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(running_session_max_ms=3_600_000, cleanup_interval_ms=50)
    turn = await service.create(IN_A_SHELL, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await end_of(turn)
    await until(session, lambda: session.background_tasks == 1)
    session._events._background_since -= 3601  # as if it had begun an hour ago
    await until(session, lambda: not session.live)
    assert [one.change for one in events(session, ProcessChanged)] == ["started", "parked"]


async def log_closed(session: Session) -> None:
    """Until the session has been let go of."""
    async with asyncio.timeout(PATIENCE):
        with session.log.subscribe() as all_events:
            async for _ in all_events:
                pass


async def test_a_message_beside_a_turn_that_started_by_itself_gets_its_own_outcome(
    service: Service, sandbox: Sandbox
) -> None:
    turn = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    session = turn.session
    await end_of(turn)
    (sandbox.project / "go").touch()
    await event(session, TurnStarted, 2)
    mine = await service.send(session.id, script("and this", "my answer"))
    assert (await end_of(mine)).result == "my answer"
    await session.wait(HANG_SECONDS)
    assert session.state is State.IDLE


def asking(before: float, after: float) -> str:
    """An agent in the background asks after some seconds; the turn that started it takes some seconds more."""
    asks = script("look", modify(tool("Bash", command="touch made"), delay=before), "seen ${tool_result}")
    return script("delegate", agent("look", asks, background=True), text("on its way", delay=after), "all done")


async def test_a_background_agent_may_ask_when_no_turn_is_running(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(asking(0.5, 0), options(sandbox, allowed_tools=("Agent",)))
    session = turn.session
    assert (await end_of(turn)).result == "on its way"
    service.respond(session.id, await question(session), Answer(allow=True))
    assert session.state is State.RUNNING
    await session.wait(HANG_SECONDS)
    assert (sandbox.project / "made").exists()
    assert session.outcome is not None
    assert (session.outcome.result, session.turns) == ("all done", 2)


async def test_the_question_of_a_background_agent_outlives_the_turn_that_started_it(
    service: Service, sandbox: Sandbox
) -> None:
    turn = await service.create(asking(0, 1), options(sandbox, allowed_tools=("Agent",)))
    session = turn.session
    asked = await question(session)
    assert not turn.done()
    assert (await end_of(turn)).result == "on its way"
    assert (session.state, [one.id for one in session.questions]) == (State.WAITING, [asked])
    message = await service.send(session.id, script("meanwhile", "here I am"))
    assert (await end_of(message)).result == "here I am"
    assert (session.state, [one.id for one in session.questions]) == (State.WAITING, [asked])
    service.respond(session.id, asked, Answer(allow=True))
    await session.wait(HANG_SECONDS)
    assert (sandbox.project / "made").exists()
    assert session.state is State.IDLE


async def test_interrupting_leaves_a_background_agent_without_its_answer(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(asking(0.5, 0), options(sandbox, allowed_tools=("Agent",)))
    session = turn.session
    await end_of(turn)
    await question(session)
    pid = session.pid
    await service.interrupt(session.id)
    assert (session.state, session.questions, session.pid) == (State.INTERRUPTED, [], pid)
    assert session.outcome is not None
    assert session.outcome.code is OutcomeCode.INTERRUPTED
    await event(session, TurnStarted, 3)  # the agent hears that nobody answered, and reports back
    await session.wait(HANG_SECONDS)
    assert not (sandbox.project / "made").exists()
    assert (await say(service, session, script("go on", "fine"))).result == "fine"
