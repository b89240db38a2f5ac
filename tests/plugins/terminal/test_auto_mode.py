"""A terminal in auto mode: what its safety check blocks, and what it asks after that."""

import pytest

from claude_code_mcp.core.model.events import AuditEvent, AuditKind, Event
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import modify, script, text, tool

from .conftest import StartClaude, eventually, question_in


class Denials:
    """The denied calls in the audit trail."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def event(self, session_id: str, owner: str, event: Event) -> None: ...

    def act(self, act: AuditEvent) -> None:
        if act.kind is AuditKind.CALL_DENIED:
            self.reasons.append(str(act.details["reason"]))


@pytest.mark.soak
async def test_what_the_check_lets_pass_is_not_asked_and_a_question_after_blocked_calls_says_why(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    denials = Denials()
    server.observe(denials)
    why = [f"It is risky for the reason {number}." for number in (1, 2, 3)]
    calls = [modify(tool("Bash", command=f"touch file{at} && sh -c true"), blocked=said) for at, said in enumerate(why)]
    passed = modify(tool("Bash", command="touch passed && sh -c true"), blocked="")
    claude(script("Do it", passed, *calls, text("All is done.")), mode="auto")
    question = await question_in(server)
    assert (sandbox.project / "passed").exists(), "the call that the check lets pass"
    assert question.tool_input["command"].startswith("touch file2")
    assert denials.reasons == why[:2]
    assert question.reason is not None
    assert question.reason.startswith("Auto mode needs your confirmation.")
    assert all(said in question.reason for said in why[:2])
    session = server.session(question.session_id)
    assert session.outside is not None
    assert session.outside.permission_mode == "auto"
    server.respond(session.id, question.id, Answer(allow=True), by="web", person=True)
    await eventually((sandbox.project / "file2").exists, "the call")
    await eventually(lambda: session.outcome, "the end of the turn")
    assert not server.broker.pending()
    assert not (sandbox.project / "file0").exists()
