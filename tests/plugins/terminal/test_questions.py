"""The questions of a terminal are answered at the keyboard or elsewhere; the first answer counts."""

import asyncio
from typing import Any

from claude_code_mcp.core.model.events import Event, QuestionSettled
from claude_code_mcp.core.model.question import Answer, Closure, QuestionKind
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool

from .conftest import StartClaude, eventually, question_in

ASKS = script("Do it", tool("Bash", command="touch done", description="Touch a file"), text("All is done."))


class Settlements:
    """How questions ended."""

    def __init__(self) -> None:
        self.seen: list[QuestionSettled] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, QuestionSettled):
            self.seen.append(event)

    def act(self, act: Any) -> None: ...


async def test_an_answer_from_elsewhere_closes_the_dialog(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    terminal = claude(ASKS)
    question = await question_in(server)
    assert question.tool_input["command"] == "touch done"
    assert question.deadline is None
    session = server.session(question.session_id)
    assert session.state is State.WAITING
    assert [listed.id for listed in server.sessions()] == [session.id]
    server.respond(session.id, question.id, Answer(allow=True), by="web", person=True)
    await eventually(lambda: session.outcome is not None, "the end of the turn")
    assert session.outcome is not None
    assert session.outcome.result == "All is done."
    assert (sandbox.project / "done").exists()
    await eventually(lambda: session.state is State.IDLE, "the state of a terminal at rest")
    assert terminal.process.poll() is None


async def test_an_answer_at_the_keyboard_withdraws_the_question(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    settlements = Settlements()
    server.observe(settlements)
    slow = script("Do it", tool("Bash", command="sleep 3; touch done", description="Wait"), text("All is done."))
    terminal = claude(slow)
    await question_in(server)
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    await asyncio.to_thread(terminal.type, "1")
    # The command still runs: the end of the dialog is noticed, and not the end of the call.
    settled = await eventually(lambda: settlements.seen, "the end of the question")
    assert settled[0].resolution.closure is Closure.WITHDRAWN
    assert not (sandbox.project / "done").exists()
    assert not server.broker.pending()
    await eventually((sandbox.project / "done").exists, "the end of the command")


async def test_a_denial_reaches_the_model_with_its_reason(server: Service, claude: StartClaude) -> None:
    terminal = claude(script("Do it", tool("Bash", command="touch done"), text("It said: ${tool_result}")))
    question = await question_in(server)
    server.respond(question.session_id, question.id, Answer(allow=False, message="Not today."), by="web", person=True)
    await asyncio.to_thread(terminal.until, "It said: Not today.")


async def test_escape_at_the_keyboard_withdraws_the_question(server: Service, claude: StartClaude) -> None:
    terminal = claude(ASKS)
    await question_in(server)
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    await asyncio.to_thread(terminal.type, "\x1b")
    await eventually(lambda: not server.broker.pending(), "the end of the question")


async def test_a_question_with_several_parts_is_answered_from_elsewhere(server: Service, claude: StartClaude) -> None:
    options = [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}]
    sizes = [{"label": "Small", "description": "s"}, {"label": "Large", "description": "l"}]
    asked = [
        {"question": "Which color?", "header": "Color", "multiSelect": False, "options": options},
        {"question": "Which sizes?", "header": "Size", "multiSelect": True, "options": sizes},
    ]
    terminal = claude(script("Do it", tool("AskUserQuestion", questions=asked), text("It said: ${tool_result}")))
    question = await question_in(server)
    assert question.kind is QuestionKind.USER_QUESTION
    answers = {"Which color?": "Blue", "Which sizes?": ["Small", "Large"]}
    server.respond(question.session_id, question.id, Answer(allow=True, answers=answers), by="web", person=True)
    said = await asyncio.to_thread(lambda: terminal.until("It said:") + terminal.until("Large"))
    assert "Blue" in said


async def test_a_plan_is_sent_back_and_then_approved(server: Service, claude: StartClaude) -> None:
    plans = [tool("ExitPlanMode", plan="# The plan\n- first"), tool("ExitPlanMode", plan="# The plan\n- second")]
    terminal = claude(script("Plan it", *plans, text("Now in work.")), mode="plan")
    question = await question_in(server)
    assert question.kind is QuestionKind.PLAN_REVIEW
    assert question.tool_input["plan"] == "# The plan\n- first"
    server.respond(question.session_id, question.id, Answer(allow=False, message="Do the second."), person=True)
    await eventually(lambda: [one for one in server.broker.pending() if one.id != question.id], "the second plan")
    second = server.broker.pending()[0]
    assert second.tool_input["plan"] == "# The plan\n- second"
    server.respond(second.session_id, second.id, Answer(allow=True), person=True)
    session = server.session(second.session_id)
    await eventually(lambda: session.outcome is not None, "the end of the turn")
    assert session.outcome is not None
    assert session.outcome.result == "Now in work."
    assert terminal.process.poll() is None


async def test_the_session_is_on_disk_again_when_the_terminal_is_closed(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    terminal = claude(ASKS)
    question = await question_in(server)
    transcripts = sandbox.home / ".claude" / "projects"
    # Claude Code writes it a moment after it asks, and its first lines are not of the conversation.
    written = transcripts.rglob
    await eventually(
        lambda: any('"type":"user"' in file.read_text() for file in written(f"{question.session_id}.jsonl")),
        "the transcript",
    )
    terminal.process.kill()
    await eventually(lambda: not server.broker.pending(), "the end of the question")
    await eventually(lambda: not server.sessions(), "the end of the session in memory")
    # It is taken over with the next message, as any other session on disk.
    turn = await server.send(question.session_id, script("Go on", text("Taken over.")))
    assert (await turn.outcome()).result == "Taken over."


async def test_a_person_who_types_is_at_the_terminal(server: Service, claude: StartClaude) -> None:
    terminal = claude(ASKS)
    question = await question_in(server)
    outside = server.session(question.session_id).outside
    assert outside is not None
    await asyncio.to_thread(terminal.until, "Do you want to proceed?")
    terminal.type("\x1b[B")  # moves within the dialog
    await eventually(outside.attended, "the person at the keyboard")
    assert server.broker.pending() == [question]
