"""Subagents in the background: their end starts a turn that nobody sent a message for."""

from claude_code_mcp.model.events import TurnStarted
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import agent, script, text, tool

from ..conftest import StartService
from .support import end_of, event, events, options, until

WAITS = tool("Bash", command="until [ -e go ]; do sleep 0.05; done")
PROMPT = script(
    "delegate", agent("look", script("look", WAITS, "seen"), background=True), "on its way", text("all done")
)


async def test_the_end_of_a_background_agent_is_a_turn_of_its_own(service: Service, sandbox: Sandbox) -> None:
    session, delivery = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    assert (await end_of(delivery)).result == "on its way"
    assert session.state is State.IDLE
    await until(session, lambda: session.background_tasks == 1)
    (sandbox.project / "go").touch()
    started = await event(session, TurnStarted, 2)
    assert (started.message_id, started.prompt) == ("", "")
    await session.wait(30)
    assert session.outcome is not None
    assert session.outcome.result == "all done"
    assert (session.turns, session.background_tasks) == (2, 0)


async def test_a_session_with_background_work_is_not_parked(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service(max_sessions=2, idle_park_ms=50, cleanup_interval_ms=50)
    session, delivery = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    await end_of(delivery)
    await until(session, lambda: session.background_tasks == 1)
    other, _ = await service.create(script("one", "first"), options(sandbox))
    await until(other, lambda: other.turns == 1 and not other.live and not other.busy)
    assert session.live
    (sandbox.project / "go").touch()
    await until(session, lambda: not session.live)
    assert [one.number for one in events(session, TurnStarted)] == [1, 2]


async def test_a_message_beside_a_turn_that_started_by_itself_gets_its_own_outcome(
    service: Service, sandbox: Sandbox
) -> None:
    session, delivery = await service.create(PROMPT, options(sandbox, allowed_tools=("Bash", "Agent")))
    await end_of(delivery)
    (sandbox.project / "go").touch()
    await event(session, TurnStarted, 2)
    _, mine = await service.send(session.id, script("and this", "my answer"))
    assert (await end_of(mine)).result == "my answer"
    await session.wait(30)
    assert session.state is State.IDLE
