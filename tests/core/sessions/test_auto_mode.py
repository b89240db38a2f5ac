"""Sessions in auto mode: calls that its safety check lets pass, blocks, and asks about after several blocked ones."""

from claude_code_mcp.core.model.options import SessionOptions
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import modify, script, text, tool
from tests.conftest import StartService
from tests.support.waiting import until_true


async def test_calls_pass_are_blocked_and_are_asked_about(start_service: StartService, sandbox: Sandbox) -> None:
    service = await start_service()
    said = ["", "Risky one.", "Risky two.", "Risky three."]
    calls = [modify(tool("Bash", command=f"touch file{at} && sh -c true"), blocked=why) for at, why in enumerate(said)]
    options = SessionOptions(cwd=str(sandbox.project), permission_mode="auto")
    turn = await service.create(script("Do it", *calls, text("It said: ${tool_result}")), options)
    await until_true(service.broker.pending)
    question = service.broker.pending()[0]
    assert question.tool_input["command"].startswith("touch file3")
    assert "Risky three." in (question.reason or "")
    service.respond(question.session_id, question.id, Answer(allow=True), person=True)
    assert (await turn.outcome()).result is not None
    made = {file.name for file in sandbox.project.glob("file*")}
    assert made == {"file0", "file3"}
