"""When a session was last used, and its cost, are the same in every list, after a restart too."""

import json
import os
import shutil

import pytest

from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.transcripts.session_catalog import Entry
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script
from tests.conftest import StartService

from .support import options, parked, run, until


async def listed(service: Service) -> dict[str, Entry]:
    return {entry.session_id: entry for entry in await service.stored.entries()}


@pytest.mark.soak
async def test_the_end_of_a_process_is_not_a_use(start_service: StartService, sandbox: Sandbox) -> None:
    first_server = await start_service()
    older, _ = await run(first_server, script("one", "first"), options(sandbox))
    newer, _ = await run(first_server, script("two", "second"), options(sandbox))
    before = await listed(first_server)
    await parked(newer)
    await parked(older)  # now its transcript is the youngest file
    (transcript,) = sandbox.home.glob(f".claude/projects/*/{older.id}.jsonl")
    assert json.loads(transcript.read_text().splitlines()[-1])["type"] == "cost-state"
    after = await listed(first_server)
    assert [*after] == [newer.id, older.id]
    assert after[older.id].last_used == before[older.id].last_used
    await first_server.__aexit__()
    shutil.rmtree(sandbox.root / "state" / "index")
    second_server = await start_service()
    assert await listed(second_server) == after
    found = await second_server.find(older.id)
    assert found.used_at == pytest.approx(older.used_at)


async def test_a_session_of_the_terminal_was_used_when_its_last_message_was_written(
    start_service: StartService, sandbox: Sandbox
) -> None:
    server = await start_service()
    session, _ = await run(server, script("one", "first"), options(sandbox))
    await server.__aexit__()
    shutil.rmtree(sandbox.root / "state")  # so that only Claude Code knows it
    (transcript,) = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    os.utime(transcript)
    other = await start_service()
    found = await other.find(session.id)
    assert session.created_at <= found.used_at <= session.used_at
    assert found.used_at < transcript.stat().st_mtime
    assert found.created_at <= found.used_at


async def test_the_cost_of_a_session_whose_process_was_killed_is_listed_after_a_restart(
    start_service: StartService, sandbox: Sandbox
) -> None:
    server = await start_service()
    session, outcome = await run(server, script("one", "first"), options(sandbox))
    assert session.pid is not None
    os.kill(session.pid, 9)
    await until(session, lambda: not session.live)
    assert session.state is State.IDLE
    await server.__aexit__()
    (transcript,) = sandbox.home.glob(f".claude/projects/*/{session.id}.jsonl")
    assert "cost-state" not in transcript.read_text()
    entry = (await listed(await start_service()))[session.id]
    assert entry.cost_usd == pytest.approx(outcome.usage.cost_usd)
