"""One writer per session, within a server and between servers."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.errors import SessionBusy
from claude_code_mcp.model.events import ProcessChanged
from claude_code_mcp.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .support import end_of, events, options, parked, run, say

OTHER_SERVER = """
import asyncio, json, os, sys
from claude_code_mcp.config import load_settings
from claude_code_mcp.model.options import SessionOptions
from claude_code_mcp.service import Service

async def serve(state, cwd, prompt):
    async with Service(load_settings({}, state_dir=state), dict(os.environ)) as service:
        turns = [await service.create(prompt, SessionOptions(cwd=cwd)) for _ in range(2)]
        for turn in turns:
            await turn.outcome()
        print(json.dumps([turn.session.id for turn in turns]), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        turns[0].session.evict()
        await turns[0].session.closed()
        print(json.dumps("parked"), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(serve(*sys.argv[1:]))
"""


@contextmanager
def another_server(sandbox: Sandbox, environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    """A server in a process of its own, with two sessions; the line that it is sent makes it park the first."""
    arguments = [sys.executable, "-c", OTHER_SERVER, str(sandbox.root / "state"), str(sandbox.project)]
    source = str(Path(__file__).parents[2] / "src")
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


def step(server: "subprocess.Popen[str]") -> Any:
    assert server.stdin is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return heard(server)


def heard(server: "subprocess.Popen[str]") -> Any:
    assert server.stdout is not None
    return json.loads(server.stdout.readline())


async def test_a_session_live_in_another_server_is_busy_until_it_is_parked_or_the_server_killed(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    with another_server(sandbox, environment) as server:
        parked, killed = await asyncio.to_thread(heard, server)
        for session_id in (parked, killed):
            with pytest.raises(SessionBusy):
                await service.send(session_id, "hello")
        assert service.sessions() == []
        assert await asyncio.to_thread(step, server) == "parked"
        assert (await say(service, parked, script("two", "second"))).result == "second"
        with pytest.raises(SessionBusy):
            await service.send(killed, "hello")
        server.kill()
        await asyncio.to_thread(server.wait)
        assert (await say(service, killed, script("two", "second"))).result == "second"


async def test_a_busy_session_costs_nobody_a_slot(start_service: StartService, sandbox: Sandbox) -> None:
    """The refusal comes before another session would be parked to make room."""
    first, second = await start_service(), await start_service(max_sessions=1)
    taken, _ = await run(first, script("one", "first"), options(sandbox))
    mine, _ = await run(second, script("two", "second"), options(sandbox))
    with pytest.raises(SessionBusy):
        await second.send(taken.id, "hello")
    assert mine.live


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
