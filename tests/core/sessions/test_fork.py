"""Forks: a copy with an id, a transcript and costs of its own."""

import pytest

from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.core.model.events import Message
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService

from .support import (
    ENDLESS,
    SharedSessions,
    end_of,
    events,
    on_shared_loop,
    options,
    parked,
    run,
    say,
    until,
    uses_tool,
)


def transcript(sandbox: Sandbox, session: Session) -> bytes:
    [path] = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    return path.read_bytes()


async def test_a_fork_knows_what_was_said_pays_from_zero_and_leaves_its_parent_alone(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    parent, first = await run(service, script("remember heron", "I will"), options(sandbox))
    await parked(parent)
    before, spent = transcript(sandbox, parent), parent.usage.cost_usd
    turn = await service.fork(parent.id, script("what was it", "heron"))
    fork = turn.session
    second = await end_of(turn)
    assert second.result == "heron"
    assert fork.id != parent.id
    assert fork.options == parent.options
    assert "remember heron" in str(model.requests[-1].body)
    assert transcript(sandbox, parent) == before
    assert parent.usage.cost_usd == spent
    assert {one.id for one in service.sessions()} == {fork.id, parent.id}
    assert fork.usage.cost_usd == pytest.approx(second.usage.cost_usd)
    assert 0 < second.usage.cost_usd < 2 * first.usage.cost_usd
    await parked(fork)
    third = await say(service, fork, script("three", "third"))
    assert third.result == "third"
    assert fork.usage.cost_usd == pytest.approx(second.usage.cost_usd + third.usage.cost_usd)


@pytest.mark.soak
@on_shared_loop
async def test_a_running_session_can_be_forked(shared: SharedSessions) -> None:
    service, parent = shared.service, await shared.session(allowed_tools=("Bash",))
    running = await service.send(parent.id, script("two", tool("Bash", command=ENDLESS)))
    await until(parent, lambda: uses_tool(parent))
    turn = await service.fork(parent.id, script("three", "third"))
    assert (await end_of(turn)).result == "third"
    assert parent.busy
    await service.interrupt(parent.id)
    assert (await end_of(running)).code == "interrupted"
    await service.cancel(turn.session.id)


@pytest.mark.soak  # at a message: test_resume.py
async def test_a_fork_at_a_message_forgets_what_came_after_it_and_may_have_options_of_its_own(
    start_service: StartService, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    service = await start_service()
    parent, _ = await run(service, script("remember heron", text("I keep heron", repeat=50)), options(sandbox))
    kept = next(one.raw["uuid"] for one in events(parent, Message) if one.type == "assistant")
    await say(service, parent, script("remember stork", "I keep stork"))
    given = options(sandbox, model="claude-haiku-4-5").model_copy(update={"cwd": None})
    turn = await service.fork(parent.id, script("which", "heron"), at_message=kept, options=given)
    fork = turn.session
    assert (await end_of(turn)).result == "heron"
    assert "I keep heron" in str(model.requests[-1].body)
    assert "stork" not in str(model.requests[-1].body)
    assert fork.state == "idle"
    assert fork.cwd == parent.cwd
    assert (model.requests[-1].model, parent.options.model) == ("claude-haiku-4-5", None)
    await service.__aexit__()
    another = await start_service()
    more = await say(another, fork.id, script("more", "more"))
    known = another.session(fork.id).usage.cost_usd
    assert known == pytest.approx(fork.usage.cost_usd + more.usage.cost_usd), "another server knows its costs too"


@pytest.mark.soak
async def test_a_session_that_has_said_nothing_cannot_be_forked(service: Service, sandbox: Sandbox) -> None:
    session = (await service.create(script("one", "first"), options(sandbox))).session
    with pytest.raises(SessionNotFound, match="no transcript"):
        await service.fork(session.id, "hello")
    assert [one.id for one in service.sessions()] == [session.id]
