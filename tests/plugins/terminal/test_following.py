"""What Claude writes in a terminal is followed from elsewhere while it is written."""

import json
import re
from typing import Any

import pytest

from claude_code_mcp.core.model.events import Output
from claude_code_mcp.core.model.question import Answer
from claude_code_mcp.core.service import Service
from claude_code_mcp.testing.script import script, text, tool
from tests.startup.greeting.client import INITIALIZED, Client, initialize, request
from tests.startup.shared.support import SharedPlace, next_answer
from tests.support.terminal import Terminal, Words
from tests.support.waiting import until

from .conftest import StartClaude, eventually, question_in
from .test_front_ends import asked, by_command, shared  # noqa: F401 - a fixture


def output_of(service: Service, session_id: str) -> list[str]:
    return [event.line for event in service.session(session_id).events.after(0) if isinstance(event, Output)]


async def test_each_line_is_output_once_also_after_the_session_was_resumed(
    server: Service, claude: StartClaude
) -> None:
    terminal = claude(script("Do it", tool("Bash", command="touch done"), text("All is done.")))
    question = await question_in(server)
    server.respond(question.session_id, question.id, Answer(allow=True), by="web", person=True)
    await eventually(lambda: "All is done." in output_of(server, question.session_id), "the answer")
    terminal.process.kill()
    await eventually(lambda: not server.sessions(), "the end of the session in memory")
    claude(script("And now", text("More is done.")), "--resume", question.session_id)
    await eventually(server.sessions, "the session in the next terminal")
    await eventually(lambda: "More is done." in output_of(server, question.session_id), "the next answer")
    shown = output_of(server, question.session_id)
    assert [line for line in shown if line.endswith(" is done.")] == ["All is done.", "More is done."]
    assert [line for line in shown if "touch done" in line] == shown[:2]


def waited(client: Client, number: int, session_id: str) -> dict[str, Any]:
    """The report of a session, when it asks something or is at rest."""
    arguments = {"sessionId": session_id, "waitSeconds": 50}
    client.send(request("tools/call", number, name="claude_get_status", arguments=arguments))
    report: dict[str, Any] = next_answer(client, number)["result"]["structuredContent"]
    return report


def test_a_client_waits_for_the_end_of_a_turn_and_reads_its_output(
    shared: SharedPlace,  # noqa: F811
    claude: StartClaude,
) -> None:
    claude(script("Do it", tool("Bash", command="sleep 3; touch done"), text("All is done.")))
    question = asked(shared)
    session_id = question["sessionId"]
    with shared.client() as client:
        # Without dialogs: a client that shows one waits for its answer.
        assert "result" in client.ask(initialize(capabilities={}))
        client.send(INITIALIZED)
        waiting = waited(client, 1, session_id)
        assert waiting["status"] == "waiting_for_input"
        assert "notice" not in waiting
        assert "costUsd" not in waiting
        by_command(shared, session_id, question["inputId"])
        ended = waited(client, 2, session_id)
        assert (ended["status"], ended["result"]) == ("completed", "All is done.")
    until(lambda: "All is done." in shared.command("logs", session_id).stdout)
    # Until Claude Code records the cost when it ends, a lower bound is shown.
    until(lambda: re.search(r" \N{GREATER-THAN OR EQUAL TO}\$0\.0\d+ ", shared.command("ps").stdout) is not None)


def test_the_terminal_interface_answers_and_follows(
    shared: SharedPlace,  # noqa: F811
    claude: StartClaude,
) -> None:
    claude(script("Do it", tool("Bash", command="touch done; echo $((6*7))"), text("It is ${tool_result}.")))
    session_id = asked(shared)["sessionId"]
    with Terminal.ours(["tui", session_id], shared.environment, shared.sandbox.project, Words()) as interface:
        interface.until("allow once", press="\x0e")  # Ctrl+N: to the question
        interface.type("a")
        until(lambda: json.loads(shared.command("questions", "--json").stdout) == [])
        interface.until("It is 42.")


@pytest.mark.soak  # the same is tested with the console in test_front_ends.py
def test_the_keyboard_is_first_while_the_terminal_interface_asks(
    shared: SharedPlace,  # noqa: F811
    claude: StartClaude,
) -> None:
    terminal = claude(script("Do it", tool("Bash", command="touch done; echo $((6*7))"), text("It is ${tool_result}.")))
    session_id = asked(shared)["sessionId"]
    with Terminal.ours(["tui", session_id], shared.environment, shared.sandbox.project, Words()) as interface:
        interface.until("allow once", press="\x0e")  # Ctrl+N: to the question
        terminal.until("Do you want to proceed?")
        terminal.type("1")
        interface.until("It is 42.")
        interface.type("a")  # the question is gone, so this answers nothing
        assert json.loads(shared.command("questions", "--json").stdout) == []
        assert interface.process.poll() is None
