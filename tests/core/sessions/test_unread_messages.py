"""A message to a process that has just died: the next process gets it, unless the dead one may have run it."""

import os
import signal

import psutil
import pytest

from claude_code_mcp.core.model.events import ProcessChanged, TurnStarted
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.messages import BusyMode
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, text

from .support import PATIENCE, end_of, event, events, options, run, say, until


def die(session: Session) -> None:
    """It is dead at once, and nobody has heard of it yet."""
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)


@pytest.mark.parametrize("known_dead", [pytest.param(False, marks=pytest.mark.soak), True], ids=["dying", "dead"])
async def test_a_message_to_a_process_that_died_while_idle_is_not_lost(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread, known_dead: bool
) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    die(session)
    if known_dead:
        psutil.wait_procs([psutil.Process(session.pid)], timeout=PATIENCE)  # the loop stands still meanwhile
    turn = await service.send(session.id, script("two", "second"), busy_mode=BusyMode.REFUSE)
    behind = await service.send(session.id, script("three", "third"), busy_mode=BusyMode.QUEUE)
    assert (await end_of(turn)).result == "second"
    assert (await end_of(behind)).result == "third"
    assert [change.change for change in events(session, ProcessChanged)][-2:] == ["ended", "started"]
    assert [start.message_id for start in events(session, TurnStarted)][-2:] == [turn.message_id, behind.message_id]
    asked = [request for request in model.requests if request.session_id == session.id and "two S" in str(request.body)]
    assert len(asked) == 2, "once for the message, once in the history of the next"


@pytest.mark.soak
async def test_a_message_that_the_dying_process_has_taken_up_does_not_run_twice(
    service: Service, sandbox: Sandbox
) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    turn = await service.send(session.id, script("two", text("second", delay=60)))
    await until(session, lambda: turn.message.started)
    die(session)
    assert (await end_of(turn)).code is OutcomeCode.CRASHED
    assert (await say(service, session, script("three", "third"))).result == "third"
    die(session)
    turn = await service.send(session.id, script("four", "fourth"))
    [path] = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    with path.open("a") as file:
        file.write(f'{{"type":"user","uuid":"{turn.message_id}","message":{{"role":"user","content":"four"}}}}\n')
    assert (await end_of(turn)).code is OutcomeCode.CRASHED, "one that is in the transcript may have run"


@pytest.mark.soak
async def test_interrupting_ends_a_message_that_is_sent_again(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    die(session)
    turn = await service.send(session.id, script("two", text("never", delay=60)))
    await event(session, ProcessChanged, 2)
    await service.interrupt(session.id)
    assert (await end_of(turn)).code is OutcomeCode.INTERRUPTED
    assert (await say(service, session, script("three", "third"))).result == "third"


@pytest.mark.soak
async def test_a_session_that_is_not_persisted_cannot_be_resumed(service: Service, sandbox: Sandbox) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox, persist=False))
    die(session)
    turn = await service.send(session.id, script("two", "second"))
    assert (await end_of(turn)).code is OutcomeCode.CRASHED
