"""A session that another Claude Code process has open is busy: the CLI has no lock, and two writers split it."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.errors import SessionBusy
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script

from .support import PATIENCE, options, parked, run, say


@asynccontextmanager
async def open_in_claude(
    sandbox: Sandbox, environment: dict[str, str], session_id: str, *how: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Somebody has the session open in Claude Code itself."""
    wire = ("--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
    process = await asyncio.create_subprocess_exec(
        find_executable(),
        "-p",
        *wire,
        *how,
        session_id,
        env=environment,
        cwd=sandbox.project,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        message = {"type": "user", "message": {"role": "user", "content": script("there", "here")}}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            async for line in process.stdout:
                if json.loads(line).get("type") == "result":
                    break
        yield process
    finally:
        if process.returncode is None:
            process.stdin.close()
            await process.wait()


async def test_a_session_that_is_open_in_claude_code_is_busy_and_what_a_killed_process_leaves_locks_nothing(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    session_id = str(uuid.uuid4())
    async with open_in_claude(sandbox, environment, session_id, "--session-id") as other:
        with pytest.raises(SessionBusy, match=str(other.pid)):
            await service.send(session_id, "second writer")
        turn = await service.fork(session_id, script("copy", "a copy"))
        fork = turn.session
        assert (await asyncio.wait_for(turn.outcome(), PATIENCE)).result == "a copy"
        assert fork.id != session_id
        other.kill()
        await other.wait()
    left = [json.loads(path.read_text()) for path in sandbox.home.glob(".claude/sessions/*.json")]
    assert session_id in [one["sessionId"] for one in left]
    assert (await say(service, session_id, script("now", "mine"))).result == "mine"


@pytest.mark.soak  # as one of the test above is
async def test_parked_session_open_elsewhere_is_busy_until_closed_there(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    session, _ = await run(service, script("one", "first"), options(sandbox))
    await parked(session)
    async with open_in_claude(sandbox, environment, session.id, "--resume"):
        with pytest.raises(SessionBusy):
            await service.send(session.id, "second writer")
        assert not session.busy
    assert (await say(service, session, script("now", "mine"))).result == "mine"
