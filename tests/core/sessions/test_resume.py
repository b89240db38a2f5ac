"""A session outlives its processes: it is resumed by its id, where it was, as it was."""

import asyncio
import json
import os
import signal
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from claude_code_mcp.core.claude.executable import find_executable
from claude_code_mcp.core.errors import InvalidArgument, SessionNotFound
from claude_code_mcp.core.model.events import Message, ProcessChanged
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import script, tool
from tests.conftest import StartService

from .support import end_of, event, events, kill, options, parked, run, say

WHERE = script("where", tool("Bash", command="pwd"), "in ${tool_result}")


# After a kill: tests/server/test_faults.py; with its conversation: test_clear.py; where and how it was:
# tests/server/test_list_sessions.py and test_option_notices.py.
@pytest.mark.soak
@pytest.mark.parametrize("end", [parked, kill])
async def test_a_session_without_a_process_is_resumed_where_and_as_it_was(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread, end: Callable[[Session], Awaitable[None]]
) -> None:
    given = options(sandbox, allowed_tools=("Bash",), append_system_prompt="Speak like a pirate.")
    session, _ = await run(service, script("remember the word heron", "I will"), given)
    await end(session)
    assert (session.live, session.state) == (False, State.IDLE)
    outcome = await say(service, session, WHERE)
    assert outcome.result == f"in {sandbox.project}"
    last = model.requests[-1]
    assert "remember the word heron" in str(last.body)
    assert "Speak like a pirate." in last.system
    assert [change.change for change in events(session, ProcessChanged)].count("started") == 2


async def test_a_session_killed_before_its_first_line_starts_again_under_its_id(
    service: Service, sandbox: Sandbox
) -> None:
    turn = await service.create(script("one", "never said"), options(sandbox))
    session = turn.session
    await event(session, ProcessChanged)
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    assert (await end_of(turn)).code == "start_failed"
    assert (await say(service, session, script("two", "here"))).result == "here"


@pytest.mark.soak
async def test_a_session_killed_before_its_first_message_is_written_starts_again_under_its_id(
    service: Service, sandbox: Sandbox
) -> None:
    session, _ = await run(service, script("one", "said"), options(sandbox))
    await parked(session)
    (path,) = sandbox.home.rglob(f"{session.id}.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    begun = "".join(line for line in lines if json.loads(line)["type"] not in ("user", "assistant"))
    assert begun
    path.write_text(begun)
    assert (await say(service, session, script("two", "here"))).result == "here"
    assert path.with_suffix(".unused").read_text() == begun
    assert "two" in path.read_text()


@pytest.mark.soak  # test_records.py
async def test_a_session_of_another_server_is_resumed_in_its_own_directory_and_a_refused_resume_leaves_no_trace(
    start_service: StartService, sandbox: Sandbox
) -> None:
    first = await start_service()
    session, _ = await run(first, script("one", "first"), options(sandbox))
    await first.__aexit__()
    second = await start_service()
    with pytest.raises(SessionNotFound):
        second.session(session.id)
    assert not (await second.interrupt(session.id)).session.busy
    assert second.sessions() == [], "there was nothing to interrupt"
    with pytest.raises(InvalidArgument):
        await second.send(session.id, "hello", options=options(sandbox, permission_mode="delegate"))
    assert second.sessions() == []
    with pytest.raises(SessionNotFound):
        second.session(session.id)
    given = options(sandbox, allowed_tools=("Bash",)).model_copy(update={"cwd": None})
    outcome = await say(second, session.id, WHERE, options=given)
    assert outcome.result == f"in {sandbox.project}"
    assert [one.id for one in second.sessions()] == [session.id]


@pytest.mark.soak  # tests/server/test_list_sessions.py
async def test_a_session_of_the_bare_cli_is_resumed(
    service: Service, sandbox: Sandbox, environment: dict[str, str]
) -> None:
    bare = await asyncio.create_subprocess_exec(
        *(find_executable(None, environment), "-p", script("one", "first"), "--output-format=json"),
        cwd=sandbox.project,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await bare.communicate()
    session_id = json.loads(output)["session_id"]
    assert (await say(service, session_id, script("two", "second"))).result == "second"
    session = service.session(session_id)
    assert Path(session.cwd) == sandbox.project


async def test_an_id_that_exists_nowhere_is_not_found(service: Service) -> None:
    with pytest.raises(SessionNotFound):
        await service.send(str(uuid.uuid4()), "hello")
    with pytest.raises(SessionNotFound):
        await service.fork(str(uuid.uuid4()), "hello")
    with pytest.raises(SessionNotFound):
        await service.interrupt(str(uuid.uuid4()))
    assert service.sessions() == []


async def test_invalid_id_is_an_invalid_argument(service: Service) -> None:
    for session_id in ("", "latest", "../../etc/passwd", "*", "--help", "0" * 36):
        with pytest.raises(InvalidArgument):
            await service.send(session_id, "hello")


async def test_a_conversation_can_be_taken_back_to_a_message(
    service: Service, sandbox: Sandbox, model: ScriptedModelThread
) -> None:
    session, _ = await run(service, script("remember heron", "I keep heron"), options(sandbox))
    kept = next(one.raw["uuid"] for one in events(session, Message) if one.type == "assistant")
    await say(service, session, script("remember stork", "I keep stork"))
    with pytest.raises(InvalidArgument, match="no message"):
        await service.send(session.id, "hello", at_message=str(uuid.uuid4()))
    with pytest.raises(InvalidArgument, match="no message"):
        await service.fork(session.id, "hello", at_message="--help")
    assert session.live
    outcome = await say(service, session, script("which", "heron only"), at_message=kept)
    assert outcome.result == "heron only"
    assert "remember heron" in str(model.requests[-1].body)
    assert "stork" not in str(model.requests[-1].body)
    await parked(session)
    await say(service, session, script("and now", "the same"))
    assert "heron only" in str(model.requests[-1].body)
    assert "stork" not in str(model.requests[-1].body)
