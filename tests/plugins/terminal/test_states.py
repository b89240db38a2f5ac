"""Claude Code's record of a terminal and its hook events arrive in any order; a caller that waits gets both."""

import asyncio
import time

import pytest

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.plugins.terminal import terminal_session
from claude_code_mcp.testing import Sandbox

from .conftest import question_in
from .test_forged_events import connection, note, reply_to, written
from .test_hook import event


@pytest.fixture(autouse=True)
def long_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, what is late here is not too late."""
    monkeypatch.setattr(terminal_session, "_RECORD_DELAY", 1000.0)


async def test_a_turn_has_ended_when_its_result_is_there(server: Service, sandbox: Sandbox) -> None:
    hook_input = event(sandbox, prompt="Do it", last_assistant_message="All is done.")
    note(sandbox, hook_input["session_id"], status="busy", statusUpdatedAt=time.time() * 1000)
    await reply_to(sandbox, "UserPromptSubmit", hook_input)
    session = server.session(hook_input["session_id"])
    rest = asyncio.ensure_future(session.wait(None))
    note(sandbox, session.id, status="idle", statusUpdatedAt=time.time() * 1000)
    for _ in range(20):
        await reply_to(sandbox, "PostToolUse", hook_input)  # the record is read meanwhile
    assert not rest.done()
    await reply_to(sandbox, "Stop", hook_input)
    await rest
    assert session.state is State.IDLE
    assert session.outcome is not None
    assert session.outcome.result == "All is done."


async def test_an_answered_question_is_not_waited_for(server: Service, sandbox: Sandbox) -> None:
    hook_input = event(sandbox)
    asked = time.time() * 1000
    note(sandbox, hook_input["session_id"], status="waiting", statusUpdatedAt=asked)
    async with connection(sandbox) as (reader, writer):
        writer.write(written("PermissionRequest", hook_input))
        question = await question_in(server)
        session = server.session(question.session_id)
        server.respond(session.id, question.id, Answer(allow=True), by="web", person=True)
        rest = asyncio.ensure_future(session.wait(None))
        await reader.readline()
    for number in range(20):  # the record changes, and is read, before the dialog is gone from it
        note(sandbox, session.id, status="waiting", statusUpdatedAt=asked, number=number)
        await reply_to(sandbox, "PostToolUse", {**hook_input, "tool_input": {"command": "another"}})
    assert not rest.done()
    note(sandbox, session.id, status="idle", statusUpdatedAt=time.time() * 1000)
    await reply_to(sandbox, "Stop", hook_input)
    await rest
    assert session.state is State.IDLE
