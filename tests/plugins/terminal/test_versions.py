"""The newest versions of Claude Code, each in a terminal that is answered from elsewhere and at the keyboard."""

import asyncio
import os

import pytest

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.scenarios.cli_versions.versions import WIDER, executable_of
from tests.support.npm import Unavailable

from .conftest import StartClaude, eventually

VERSIONS = [one for one in os.environ.get(WIDER, "").split(",") if one] or ["2.1.326", "2.1.327", "2.1.328"]


@pytest.mark.soak  # test_questions.py, on the bundled version
@pytest.mark.parametrize("version", VERSIONS)
async def test_both_sides_answer(server: Service, claude: StartClaude, sandbox: Sandbox, version: str) -> None:
    try:
        executable = await asyncio.to_thread(executable_of, version)
    except Unavailable as error:
        pytest.skip(f"version {version} is not there: {error}")
    calls = [tool("Bash", command="touch first"), tool("Bash", command="touch second")]
    terminal = claude(script("Do it", *calls, text("All is done.")), executable=executable)
    await eventually(server.broker.pending, "the first question")
    question = server.broker.pending()[0]
    session = server.session(question.session_id)
    server.respond(session.id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "first").exists, "the first call")
    await eventually(server.broker.pending, "the second question")
    await asyncio.to_thread(terminal.until, "touch second")
    await eventually(lambda: session.state.value == "waiting", "the second dialog")
    terminal.type("1")
    await eventually(lambda: not server.broker.pending(), "the end of the question")
    await eventually((sandbox.project / "second").exists, "the second call")
    await eventually(lambda: session.outcome, "the end of the turn")
