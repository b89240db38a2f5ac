"""Subagents in the background: their end starts a turn that nobody sent a message for."""

import asyncio

import pytest

from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.core.model.events import ProcessChanged, TurnEnded, TurnStarted
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, modify, script, text, tool
from tests.conftest import StartService
from tests.support.waiting import HANG_SECONDS

from .support import (
    ENDLESS,
    PATIENCE,
    SharedSessions,
    end_of,
    events,
    on_shared_loop,
    options,
    question,
    say,
    until,
    uses_tool,
)

WAITS = tool("Bash", command="until [ -e go ]; do sleep 0.05; done")
PROMPT = script(
    "delegate", agent("look", script("look", WAITS, "seen"), background=True), "on its way", text("all done")
)


@pytest.mark.soak  # the next test waits for that turn
@on_shared_loop
async def test_the_end_of_a_background_agent_is_a_turn_of_its_own(shared: SharedSessions) -> None:
    session = await shared.session(allowed_tools=("Bash", "Agent"))
    turn = await shared.service.send(session.id, PROMPT)
    number = session.turns
    assert (await end_of(turn)).result == "on its way"
    assert session.state is State.IDLE
    await until(session, lambda: session.activity.background_tasks == 1)
    (shared.project / "go").touch()
    started = await turn_started(session, number + 1)
    assert (started.message_id, started.prompt) == ("", "")
    await session.wait(HANG_SECONDS)
    assert session.outcome is not None
    assert session.outcome.result == "all done"
    assert (session.turns, session.activity.background_tasks) == (number + 1, 0)


async def turn_started(session: Session, number: int) -> TurnStarted:
    """The turn of this number, as soon as it has started."""

    def numbered() -> list[TurnStarted]:
        return [one for one in events(session, TurnStarted) if one.number == number]

    await until(session, lambda: bool(numbered()))
    return numbered()[0]


IN_A_SHELL = script(
    "build", tool("Bash", command="until [ -e go ]; do sleep 0.05; done", run_in_background=True), "started", "all done"
)


@pytest.mark.soak
@pytest.mark.parametrize("prompt", [PROMPT, pytest.param(IN_A_SHELL, marks=pytest.mark.soak)], ids=["agent", "shell"])
async def test_background_work_keeps_the_session_and_its_process_for_however_long_they_are_idle(
    start_service: StartService, sandbox: Sandbox, prompt: str
) -> None:
    service = await start_service(session_ttl_ms=1, idle_park_ms=20)
    turn = await service.create(prompt, options(sandbox, allowed_tools=("Bash", "Agent")))
    session = turn.session
    await end_of(turn)
    await until(session, lambda: session.activity.background_tasks == 1)
    service._sessions._clean_up(session)
    assert service.session(session.id) is session
    assert session.live
    (sandbox.project / "go").touch()
    await log_closed(session)
    assert [one.outcome.result for one in events(session, TurnEnded)][1:] == ["all done"]
    with pytest.raises(SessionNotFound):
        service.session(session.id)


async def test_turns_and_background_work_have_a_time_limit(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(running_session_max_ms=1)
    work = script("work", tool("Bash", command=ENDLESS))
    turn = await service.create(work, options(sandbox, allowed_tools=("Bash",)))
    session = turn.session
    await until(session, lambda: uses_tool(session))
    service._sessions._clean_up(session)
    assert (await end_of(turn)).code is OutcomeCode.TIMEOUT
    assert (session.state, session.busy) == (State.ERROR, False)
    await say(service, session, IN_A_SHELL)
    await until(session, lambda: session.activity.background_tasks == 1)
    service._sessions._clean_up(session)
    await until(session, lambda: not session.live)
    assert [one.change for one in events(session, ProcessChanged)] == ["started", "parked"]


async def log_closed(session: Session) -> None:
    """Until the session has been let go of."""
    async with asyncio.timeout(PATIENCE):
        with session.log.subscribe() as all_events:
            async for _ in all_events:
                pass


@pytest.mark.soak  # tests/server/tools/test_waiting.py, beside any turn
@on_shared_loop
async def test_a_message_next_to_a_turn_that_started_automatically_gets_its_own_outcome(shared: SharedSessions) -> None:
    session = await shared.session(allowed_tools=("Bash", "Agent"))
    turn = await shared.service.send(session.id, PROMPT)
    number = session.turns
    await end_of(turn)
    (shared.project / "go").touch()
    await turn_started(session, number + 1)
    mine = await shared.service.send(session.id, script("and this", "my answer"))
    assert (await end_of(mine)).result == "my answer"
    await session.wait(HANG_SECONDS)
    assert session.state is State.IDLE


def asking(before: float, after: float) -> str:
    """An agent in the background asks after some seconds; the turn that started it takes some seconds more."""
    asks = script("look", modify(tool("Bash", command="touch made"), delay=before), "seen ${tool_result}")
    return script("delegate", agent("look", asks, background=True), text("on its way", delay=after), "all done")


@pytest.mark.soak  # so may the one below, whose turn has ended
@on_shared_loop
async def test_a_background_agent_may_ask_when_no_turn_is_running(shared: SharedSessions) -> None:
    service, session = shared.service, await shared.session(allowed_tools=("Agent",))
    turn = await service.send(session.id, asking(0.5, 0))
    number = session.turns
    assert (await end_of(turn)).result == "on its way"
    service.respond(session.id, await question(session), Answer(allow=True))
    assert session.state is State.RUNNING
    await session.wait(HANG_SECONDS)
    assert (shared.project / "made").exists()
    assert session.outcome is not None
    assert (session.outcome.result, session.turns) == ("all done", number + 1)


@on_shared_loop
async def test_the_question_of_a_background_agent_outlives_the_turn_that_started_it(shared: SharedSessions) -> None:
    service, session = shared.service, await shared.session(allowed_tools=("Agent",))
    turn = await service.send(session.id, asking(0, 1))
    asked = await question(session)
    assert not turn.done()
    assert (await end_of(turn)).result == "on its way"
    assert (session.state, [one.id for one in session.questions]) == (State.WAITING, [asked])
    message = await service.send(session.id, script("meanwhile", "here I am"))
    assert (await end_of(message)).result == "here I am"
    assert (session.state, [one.id for one in session.questions]) == (State.WAITING, [asked])
    service.respond(session.id, asked, Answer(allow=True))
    await session.wait(HANG_SECONDS)
    assert (shared.project / "made").exists()
    assert session.state is State.IDLE


@on_shared_loop
async def test_interrupting_leaves_a_background_agent_without_its_answer(shared: SharedSessions) -> None:
    service, session = shared.service, await shared.session(allowed_tools=("Agent",))
    turn = await service.send(session.id, asking(0.5, 0))
    await end_of(turn)
    await question(session)
    pid, number = session.pid, session.turns
    await service.interrupt(session.id)
    assert (session.state, session.questions, session.pid) == (State.INTERRUPTED, [], pid)
    assert session.outcome is not None
    assert session.outcome.code is OutcomeCode.INTERRUPTED
    await turn_started(session, number + 1)  # the agent hears that nobody answered, and reports back
    await session.wait(HANG_SECONDS)
    assert not (shared.project / "made").exists()
    assert (await say(service, session, script("go on", "fine"))).result == "fine"
