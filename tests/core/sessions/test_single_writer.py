"""One writer per session, within a server and between servers."""

import asyncio
import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.core.errors import ProcessFailed, SessionBusy
from claude_code_mcp.core.model.events import ProcessChanged
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state import server_life, session_leases
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import ENDLESS, end_of, events, options, parked, question, run, say, until, uses_tool

OTHER_SERVER = """
import asyncio, json, os, sys
from claude_code_mcp.core.config import load_settings
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service

async def serve(state, cwd, prompt):
    async with Service(load_settings({}, state_dir=state), dict(os.environ)) as service:
        turns = [await service.create(prompt, SessionOptions(cwd=cwd)) for _ in range(2)]
        for turn in turns:
            await turn.outcome()
        print(json.dumps([turn.session.id for turn in turns]), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(serve(*sys.argv[1:]))
"""


@contextmanager
def another_server(sandbox: Sandbox, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A server in a process of its own, that has two sessions at rest and tells their ids."""
    arguments = [sys.executable, "-c", OTHER_SERVER, str(sandbox.root / "state"), str(sandbox.project)]
    source = str(Path(__file__).parents[3] / "src")
    server = subprocess.Popen(
        [*arguments, script("one", "first")],
        env={**environment, "PYTHONPATH": source},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        yield server
        server.kill()


def ids_from(server: "subprocess.Popen[str]") -> list[str]:
    assert server.stdout is not None
    return list(json.loads(server.stdout.readline()))


async def test_idle_session_moves_to_another_server_and_is_free_after_a_kill(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    with another_server(sandbox, environment) as server:
        given, left = await asyncio.to_thread(ids_from, server)
        assert (await say(service, given, script("two", "second"))).result == "second"
        server.kill()
        await asyncio.to_thread(server.wait)
        assert (await say(service, left, script("two", "second"))).result == "second"


async def test_session_continued_by_another_server_is_read_again(start_service: StartService, sandbox: Sandbox) -> None:
    here, there = await start_service(), await start_service()
    session, first = await run(here, script("one", "first"), options(sandbox))
    await parked(session)
    second = await say(there, session.id, script("two", "second"))
    assert (first.result, second.result) == ("first", "second")
    assert here.session(session.id).outcome is first
    await here.stored.entries()
    assert here.sessions() == [], "what was in memory is out of date"
    found = await here.find(session.id)
    assert found.outcome is not None
    assert (found.outcome.result, found.usage.cost_usd) == ("second", there.session(session.id).usage.cost_usd)
    assert (await say(here, session.id, script("three", "third"))).result == "third"
    again = (await there.find(session.id)).outcome
    assert again is not None
    assert again.result == "third"


async def test_session_busy_in_another_server_is_reported_with_its_question_and_uses_no_slot(
    start_service: StartService, sandbox: Sandbox
) -> None:
    """The refusal comes before another session would be parked to make room."""
    here, there = await start_service(max_sessions=1), await start_service()
    asked = await there.create(script("ask", tool("Bash", command="touch asked"), "done"), options(sandbox))
    question_id = await question(asked.session)
    mine, _ = await run(here, script("two", "second"), options(sandbox))
    with pytest.raises(SessionBusy, match=f"server with process id {os.getpid()}"):
        await here.send(asked.session.id, "hello")
    assert mine.live
    assert here.sessions() == [mine]
    assert asked.session.busy, "nothing was done to it"
    seen = await here.find(asked.session.id)
    assert seen.runs_elsewhere
    stores = seen.deps.stores
    await here.peers.wait_for_rest(seen.id, stores.recorder.records, stores.leases, 60)
    report = await here.peers.report(seen.id)
    assert f"process id {os.getpid()}" in report
    assert "touch asked" in report
    there.respond(asked.session.id, question_id, Answer(allow=False))
    await end_of(asked)
    assert not (await here.find(asked.session.id)).runs_elsewhere


async def test_a_session_whose_lock_cannot_be_looked_at_is_never_said_to_be_interrupted(
    start_service: StartService, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = await start_service(), await start_service()
    allowed = options(sandbox, allowed_tools=("Bash",))
    session = (await there.create(script("work", tool("Bash", command=ENDLESS)), allowed)).session
    await until(session, lambda: uses_tool(session))

    usual = server_life.file_lock_at

    def failing(path: Path) -> Any:
        if path.parent.name == "locks":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return usual(path)

    with monkeypatch.context() as patch:
        patch.setattr(session_leases, "file_lock_at", failing)
        seen = await here.find(session.id)
        assert (seen.runs_elsewhere, seen.state) == (True, State.RUNNING)
        assert (await here.stored.last_states([session.id]))[session.id] is State.RUNNING
        with pytest.raises(SessionBusy):
            await here.send(session.id, "hello")
        with pytest.raises(ProcessFailed, match=os.strerror(errno.EMFILE)):
            await here.peers.request_release(session.id, seen.deps.stores.leases)
    assert session.busy, "nothing was done to it"


@pytest.mark.soak  # of two replies: test_own_turns.py
async def test_messages_at_once_start_one_process_in_memory_and_from_disk(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    session, _ = await run(first, script("one", "first"), options(sandbox))
    await parked(session)
    sent = await asyncio.gather(*(first.send(session.id, script(f"{number}", "more")) for number in range(3)))
    assert all([(await end_of(turn)).ok for turn in sent])
    assert [one.change for one in events(session, ProcessChanged)].count("started") == 2
    await first.__aexit__()
    second = await start_service()
    sent = await asyncio.gather(*(second.send(session.id, script(f"{number}", "more")) for number in range(2)))
    resumed = sent[0].session
    assert resumed is sent[1].session
    assert all([(await end_of(turn)).ok for turn in sent])
    started = [one for one in events(resumed, ProcessChanged) if one.change == "started"]
    assert [one.pid for one in started] == [resumed.pid]
    assert started[0].pid != os.getpid()
