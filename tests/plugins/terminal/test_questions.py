"""The questions of a terminal are answered at the keyboard or elsewhere; the first answer counts."""

from typing import Any

import pytest

from claude_code_mcp.core.model.events import Event, QuestionSettled
from claude_code_mcp.core.model.question import Answer, Closure, Question, QuestionKind
from claude_code_mcp.core.model.states import State
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import parallel, script, text, tool

from .conftest import StartClaude, eventually, output_of, press, question_in


class Settlements:
    """How questions ended."""

    def __init__(self) -> None:
        self.seen: list[QuestionSettled] = []

    def event(self, session_id: str, owner: str, event: Event) -> None:
        if isinstance(event, QuestionSettled):
            self.seen.append(event)

    def act(self, act: Any) -> None: ...


async def test_each_kind_of_question_is_answered_from_elsewhere_or_at_the_keyboard(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    settlements = Settlements()
    server.observe(settlements)
    options = [{"label": "Red", "description": "r"}, {"label": "Blue", "description": "b"}]
    sizes = [{"label": "Small", "description": "s"}, {"label": "Large", "description": "l"}]
    asked = [
        {"question": "Which color?", "header": "Color", "multiSelect": False, "options": options},
        {"question": "Which sizes?", "header": "Size", "multiSelect": True, "options": sizes},
    ]
    waits = "until [ -e go ]; do sleep 0.1; done; touch waited"
    terminal = claude(
        script(
            "Plan it",
            tool("ExitPlanMode", plan="# The plan\n- first"),
            tool("ExitPlanMode", plan="# The plan\n- second"),
            parallel("Now in work.", tool("Bash", command="touch denied")),
            parallel("Heard: ${tool_result}", tool("AskUserQuestion", questions=asked)),
            parallel("Chosen: ${tool_result}", tool("Bash", command="touch allowed", description="Touch a file")),
            tool("Bash", command=waits, description="Wait"),
            tool("Bash", command="touch escaped"),
        ),
        mode="plan",
    )

    def answer(question: Question, **about: Any) -> None:
        server.respond(question.session_id, question.id, Answer(**about), by="web", person=True)

    def output() -> str:
        return "\n".join(output_of(server, session.id))

    # A plan is sent back, and the second one is approved.
    question = await question_in(server)
    session = server.session(question.session_id)
    assert question.kind is QuestionKind.PLAN_REVIEW
    assert question.tool_input["plan"] == "# The plan\n- first"
    answer(question, allow=False, message="Do the second.")
    question = await question_in(server)
    assert question.tool_input["plan"] == "# The plan\n- second"
    answer(question, allow=True)
    # A denial reaches the model with its reason.
    question = await question_in(server)
    assert question.tool_input["command"] == "touch denied", "the call after the approval of the plan"
    await eventually(lambda: "Now in work." in output(), "the text after the approval of the plan")
    answer(question, allow=False, message="Not today.")
    # A question with several parts.
    question = await question_in(server)
    assert question.kind is QuestionKind.USER_QUESTION
    await eventually(lambda: "Heard: Not today." in output(), "the reason of the denial")
    answer(question, allow=True, answers={"Which color?": "Blue", "Which sizes?": ["Small", "Large"]})
    # A call.
    question = await question_in(server)
    assert question.tool_input["command"] == "touch allowed"
    assert question.deadline is None
    assert session.state is State.WAITING
    assert [listed.id for listed in server.sessions()] == [session.id]
    said = (await eventually(lambda: "Chosen: " in output() and output(), "the chosen answers")).partition("Chosen: ")[
        2
    ]
    assert all(chosen in said for chosen in ("Blue", "Small", "Large")), said
    assert "Red" not in said
    answer(question, allow=True)
    # The keyboard: the end of the dialog is noticed, and not the end of the call, which still runs.
    question = await question_in(server)
    assert (sandbox.project / "allowed").exists(), "the call that was allowed from elsewhere"
    assert not (sandbox.project / "denied").exists(), "the call that was denied"
    assert question.tool_input["command"] == waits
    await press(terminal, "1", lambda: len(settlements.seen) == 6, "the end of the question that the keyboard answered")
    assert settlements.seen[-1].resolution.closure is Closure.WITHDRAWN
    assert not server.broker.pending()
    assert not (sandbox.project / "waited").exists()
    (sandbox.project / "go").touch()
    # Escape.
    question = await question_in(server)
    assert (sandbox.project / "waited").exists(), "the call that was allowed at the keyboard"
    assert question.tool_input["command"] == "touch escaped"
    await press(terminal, "\x1b", lambda: not server.broker.pending(), "the end of the question after Escape")
    assert settlements.seen[-1].resolution.closure is Closure.WITHDRAWN
    await eventually(lambda: session.state is State.IDLE, "the state of a terminal at rest")
    assert terminal.process.poll() is None
    assert not (sandbox.project / "escaped").exists()


@pytest.mark.soak
async def test_a_closed_terminal_leaves_its_session_to_the_next_and_to_a_client(
    server: Service, claude: StartClaude, sandbox: Sandbox
) -> None:
    done, more = tool("Bash", command="touch done"), tool("Bash", command="touch more")
    terminal = claude(script("Do it", done, parallel("All is done.", more)))
    question = await question_in(server)
    session_id = question.session_id
    server.respond(session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually(lambda: "All is done." in output_of(server, session_id), "the first answer")
    # A person who types is at the terminal: the arrow moves within the dialog.
    question = await question_in(server)
    outside = server.session(session_id).outside
    assert outside is not None
    await press(terminal, "\x1b[B", outside.attended, "the person at the keyboard")
    assert server.broker.pending() == [question]
    # Claude Code writes it a moment after it asks, and its first lines are not of the conversation.
    written = (sandbox.home / ".claude" / "projects").rglob
    await eventually(
        lambda: any('"type":"user"' in file.read_text() for file in written(f"{session_id}.jsonl")), "the transcript"
    )
    terminal.process.kill()
    await eventually(lambda: not server.broker.pending(), "the end of the question")
    await eventually(lambda: not server.sessions(), "the end of the session in memory")
    # The next terminal resumes it: each line is output once.
    terminal = claude(script("And now", text("More is done.")), "--resume", session_id)
    await eventually(server.sessions, "the session in the next terminal")
    await eventually(lambda: "More is done." in output_of(server, session_id), "the next answer")
    shown = output_of(server, session_id)
    assert [line for line in shown if line.endswith(" is done.")] == ["All is done.", "More is done."]
    assert [line for line in shown if "touch done" in line] == shown[:2]
    session = server.session(session_id)
    outcome = await eventually(lambda: session.outcome, "the end of the turn")
    assert outcome.result == "More is done."
    await eventually(lambda: session.state is State.IDLE, "the state of a terminal at rest")
    assert terminal.process.poll() is None
    terminal.process.kill()
    await eventually(lambda: not server.sessions(), "the end of the session in memory")
    # It is taken over with the next message, as any other session on disk.
    turn = await server.send(session_id, script("Go on", text("Taken over.")))
    assert (await turn.outcome()).result == "Taken over."
