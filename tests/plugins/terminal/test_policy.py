"""The policy of the local user applies to the questions of a terminal: no answer of a hook exceeds it."""

import asyncio
import time

import pytest

from claude_code_mcp.core.errors import PermissionDenied
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.policy.policy import Policy, Profile
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.support.waiting import HANG_SECONDS

from .conftest import StartClaude, StartServer, eventually, question_in
from .test_forged_events import connection, note, written
from .test_hook import event


async def test_rules_answer_at_once(start_server: StartServer, claude: StartClaude, sandbox: Sandbox) -> None:
    profile = Profile(allow=("Bash(touch *)",), deny=("Write",))
    server, _ = await start_server(policy=Policy(profile))
    calls = [tool("Bash", command="touch done"), tool("Write", file_path=str(sandbox.project / "secret"), content="x")]
    claude(script("Do it", *calls, text("It said: ${tool_result}")))
    (session,) = await eventually(server.sessions, "the session")
    outcome = await eventually(lambda: session.outcome, "the end of the turn")
    assert "denied by the rule Write" in outcome.result
    assert (sandbox.project / "done").exists()
    assert not (sandbox.project / "secret").exists()
    assert not server.broker.pending()


async def test_an_answer_cannot_exceed_the_policy(start_server: StartServer, sandbox: Sandbox) -> None:
    profile = Profile(mode_ceiling="default", answers="person", deny=("Bash(rm *)",))
    server, _ = await start_server(policy=Policy(profile))
    asked = event(sandbox, tool_input={"command": "touch done"})
    note(sandbox, asked["session_id"], status="waiting", statusUpdatedAt=time.time() * 1000)
    async with connection(sandbox) as (reader, writer):
        writer.write(written("PermissionRequest", asked))
        question = await question_in(server)
        assert not [rule for rule in question.session_rules if "mode" in rule]
        with pytest.raises(PermissionDenied):
            server.respond(question.session_id, question.id, Answer(allow=True), by="claude_respond")
        forbidden = Answer(allow=True, updated_input={"command": "rm -rf ."})
        with pytest.raises(PermissionDenied):
            server.respond(question.session_id, question.id, forbidden, by="web", person=True)
        assert server.broker.pending() == [question]
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        async with asyncio.timeout(HANG_SECONDS):
            while b'"allow"' not in (line := await reader.readline()):
                assert line, "the hook was not told that the call is allowed"
                assert b"behavior" not in line, "the hook was told something else"
