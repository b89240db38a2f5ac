"""Messages and the turns they start or join."""

import uuid

import pytest

from claude_code_mcp.errors import InvalidArgument, SessionBusy, SessionNotFound
from claude_code_mcp.model.events import TurnStarted
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.states import State
from claude_code_mcp.service import Service
from claude_code_mcp.sessions.messages import WhenBusy
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text, tool
from tests.support.waiting import HANG_SECONDS

from .support import end_of, event, events, options, run, say, streams, until

FIRST = script("first", tool("Bash", command="while [ ! -e go ]; do sleep 0.02; done"), "first done")
"""A turn that ends when the file `go` appears."""


async def test_the_id_is_final_before_anything_has_started(service: Service, sandbox: Sandbox) -> None:
    turn = await service.create(script("say", "hello"), options(sandbox))
    session = turn.session
    assert session.state is State.STARTING
    assert uuid.UUID(session.id)
    assert service.session(session.id) is session
    assert (await end_of(turn)).ok
    assert [path.stem for path in sandbox.home.glob(".claude/projects/*/*.jsonl")] == [session.id]


async def test_a_second_turn_runs_in_the_same_process(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    pid = session.pid
    outcome = await say(service, session, script("two", "second"))
    assert (outcome.result, session.pid, session.turns) == ("second", pid, 2)


async def test_messages_sent_while_the_process_starts_are_not_lost(service: Service, sandbox: Sandbox) -> None:
    first = await service.create("Hello.", options(sandbox, persist=False))
    session = first.session
    second = await service.send(session.id, script("say", "both heard"))
    assert session.state is State.STARTING
    outcomes = [await end_of(first), await end_of(second)]
    assert all(outcome.ok for outcome in outcomes)
    assert outcomes[-1].result == "both heard"


async def test_a_message_in_mid_turn_joins_the_turn(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    first = await service.create(FIRST, options(sandbox, allowed_tools=("Bash",)))
    session = first.session
    await until(session, lambda: bool(session.readable_lines.tools))
    second = await service.send(session.id, "Mind the gap.")
    (sandbox.project / "go").touch()
    assert await end_of(first) is await end_of(second)
    assert (await end_of(first)).result == "first done"
    assert session.turns == 1
    assert "Mind the gap." in str(model.requests[-1].body)


async def test_a_later_message_becomes_a_turn_of_its_own(service: Service, sandbox: Sandbox) -> None:
    first = await service.create(FIRST, options(sandbox, allowed_tools=("Bash",)))
    session = first.session
    await until(session, lambda: bool(session.readable_lines.tools))
    second = await service.send(session.id, script("later", "second done"), when_busy=WhenBusy.QUEUE)
    (sandbox.project / "go").touch()
    assert [(await end_of(one)).result for one in (first, second)] == ["first done", "second done"]
    started = events(session, TurnStarted)
    assert [one.message_id for one in started] == [first.message_id, second.message_id]


async def test_a_message_that_comes_too_late_becomes_a_turn_of_its_own(service: Service, sandbox: Sandbox) -> None:
    """The model gives its last answer while the message is on its way: nothing is left that it could join."""
    slow = script("slow", text("first done", chunks=5, until=str(sandbox.project / "go")))
    first = await service.create(slow, options(sandbox))
    session = first.session
    await until(session, lambda: streams(session))
    second = await service.send(session.id, script("late", "second done"))
    (sandbox.project / "go").touch()
    assert [(await end_of(one)).result for one in (first, second)] == ["first done", "second done"]
    assert session.turns == 2


async def test_a_queued_turn_can_be_interrupted_as_soon_as_it_has_begun(service: Service, sandbox: Sandbox) -> None:
    first = await service.create(FIRST, options(sandbox, allowed_tools=("Bash",)))
    session = first.session
    await until(session, lambda: bool(session.readable_lines.tools))
    second = await service.send(session.id, script("later", text("slow", delay=30)), when_busy=WhenBusy.QUEUE)
    (sandbox.project / "go").touch()
    await event(session, TurnStarted, 2)
    await service.interrupt(session.id)
    assert (await end_of(first)).code is OutcomeCode.COMPLETED
    assert (await end_of(second)).code is OutcomeCode.INTERRUPTED
    assert (await say(service, session, script("go on", "third"))).result == "third"


async def test_a_message_that_wants_a_turn_of_its_own_is_refused_by_a_busy_session(
    service: Service, sandbox: Sandbox
) -> None:
    gate = sandbox.project / "go"
    turn = await service.create(script("slow", text("done", until=str(gate))), options(sandbox))
    session = turn.session
    with pytest.raises(SessionBusy):
        await service.send(session.id, "hello", when_busy=WhenBusy.REFUSE)
    gate.touch()
    assert (await end_of(turn)).result == "done"


@pytest.mark.parametrize("words", ["", "  \n"])
async def test_empty_messages_are_refused(service: Service, sandbox: Sandbox, words: str) -> None:
    with pytest.raises(InvalidArgument):
        await service.create(words, options(sandbox))
    assert service.sessions() == []


async def test_wait_returns_at_the_end_of_the_turn_or_at_its_timeout(service: Service, sandbox: Sandbox) -> None:
    gate = sandbox.project / "go"
    session = (await service.create(script("slow", text("done", until=str(gate))), options(sandbox))).session
    assert (await service.wait(session.id, 0.01)).busy
    gate.touch()
    assert (await service.wait(session.id, HANG_SECONDS)).state is State.IDLE
    assert session.outcome is not None
    assert session.outcome.result == "done"


async def test_bypassing_permissions_as_root_is_explained_before_anything_starts(
    service: Service, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(InvalidArgument, match="IS_SANDBOX"):
        await service.create("go", options(sandbox, permission_mode="bypassPermissions"))
    with pytest.raises(InvalidArgument, match="IS_SANDBOX"):
        await service.create("go", options(sandbox, dangerously_skip_permissions=True))
    allowed = options(sandbox, permission_mode="bypassPermissions", env={"IS_SANDBOX": "1"})
    prompt = script("write", tool("Bash", command="touch made"), "ok")
    _, outcome = await run(service, prompt, allowed)
    assert outcome.ok
    assert (sandbox.project / "made").exists()


async def test_a_session_that_is_not_persisted_lives_as_long_as_its_process(service: Service, sandbox: Sandbox) -> None:
    session, outcome = await run(service, script("say", "one"), options(sandbox, persist=False))
    assert outcome.ok
    assert not session.evictable
    assert (await say(service, session, script("say", "two"))).result == "two"
    assert list(sandbox.home.glob(".claude/projects/*/*.jsonl")) == []
    session.evict()
    with pytest.raises(SessionNotFound, match="not persisted"):
        await service.send(session.id, "three")
