"""The plan that is shown is the one in the dialog, also while the transcript does not have it yet."""

import json
from pathlib import Path
from typing import Any

from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox

from .conftest import question_in
from .test_forged_events import OVER, connection, note, reply_to, written
from .test_hook import event


def offered(call_id: str, plan: str) -> str:
    call = {"type": "tool_use", "id": call_id, "name": "ExitPlanMode", "input": {"plan": plan}}
    return _line("assistant", call)


def sent_back(call_id: str) -> str:
    return _line("user", {"type": "tool_result", "tool_use_id": call_id, "content": "Again.", "is_error": True})


def _line(role: str, block: dict[str, Any]) -> str:
    return json.dumps({"type": role, "message": {"role": role, "content": [block]}}) + "\n"


def _write(transcript: Path, more: str) -> None:
    transcript.parent.mkdir(parents=True, exist_ok=True)
    with transcript.open("a") as file:
        file.write(more)


async def test_a_plan_that_was_sent_back_is_not_shown_for_the_next_one(server: Service, sandbox: Sandbox) -> None:
    hook_input = event(sandbox, tool_name="ExitPlanMode", tool_input={})
    note(sandbox, hook_input["session_id"])
    transcript = Path(hook_input["transcript_path"])
    _write(transcript, offered("1", "The first plan") + sent_back("1"))
    async with connection(sandbox) as (reader, writer):
        writer.write(written("PermissionRequest", hook_input))
        assert not server.broker.pending()
        _write(transcript, offered("2", "The second plan"))
        question = await question_in(server)
        assert question.tool_input["plan"] == "The second plan"
        server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
        assert b"allow" in await reader.readline()
    # The result is not there yet either, but this plan was approved above.
    assert await reply_to(sandbox, "PermissionRequest", hook_input) == OVER
