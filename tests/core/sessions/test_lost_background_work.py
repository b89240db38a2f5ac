"""A session whose CLI was killed while a command ran in the background goes on with the next message."""

import os
import signal
import sys

import pytest

from claude_code_mcp.core.model.events import Message
from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, stall, tool
from tests.support.waiting import until_true

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")

ENDLESS = "until [ -e never ]; do sleep 0.1; done"


async def written(sandbox: Sandbox, session_id: str, words: str) -> None:
    """Waits until the CLI has written these words into its transcript."""
    await until_true(lambda: _in_transcript(sandbox, session_id, words))


def _in_transcript(sandbox: Sandbox, session_id: str, words: str) -> bool:
    return any(words in path.read_text() for path in sandbox.home.glob(f".claude/projects/*/{session_id}.jsonl"))


@pytest.mark.soak
async def test_a_message_is_not_mistaken_for_answered_by_the_news_of_lost_work(
    service: Service, sandbox: Sandbox
) -> None:
    background = tool("Bash", command=ENDLESS, run_in_background=True)
    options = SessionOptions(cwd=str(sandbox.project), allowed_tools=("Bash",))
    turn = await service.create(script("Work.", background, stall("Waiting")), options)
    session = turn.session
    await written(sandbox, session.id, '"tool_result"')
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    assert not (await turn.outcome()).ok
    turn = await service.send(session.id, script("Again.", "Again."))
    assert (await turn.outcome()).result == "Again."
    news = [event for event in session.log.after(0) if isinstance(event, Message) and event.raw.get("origin")]
    assert [one.raw["origin"]["kind"] for one in news] == ["task-notification"]
