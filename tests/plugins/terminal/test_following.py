"""What Claude writes in a terminal is followed from elsewhere while it is written.

That each line is output once: test_questions.py.
"""

import itertools
import json
import re
import time

import pytest

from claude_code_mcp.testing.script import parallel, script, text, tool
from tests.startup.greeting.client import INITIALIZED, initialize
from tests.startup.shared.support import SharedPlace
from tests.support.terminal import Terminal, Words
from tests.support.waiting import HANG_SECONDS, until

from .conftest import StartClaude
from .test_front_ends import asked, by_command, called, shared  # noqa: F401 - a fixture


def test_the_terminal_interface_answers_and_follows_and_a_client_waits_for_the_end(
    shared: SharedPlace,  # noqa: F811
    claude: StartClaude,
) -> None:
    first = tool("Bash", command="touch first; echo $((6*7))")
    claude(
        script(
            "Do it",
            first,
            parallel("It is ${tool_result}.", tool("Bash", command="sleep 3; touch done")),
            "All is done.",
        )
    )
    question = asked(shared)
    session_id = question["sessionId"]
    with Terminal.ours(["tui", session_id], shared.environment, shared.sandbox.project, Words()) as interface:
        interface.until("allow once", press="\x0e")  # Ctrl+N: to the question
        interface.type("a")
        interface.until("It is 42.")
    question = asked(shared, after=question["inputId"])
    assert "sleep 3" in question["description"]
    with shared.client() as client:
        # Without dialogs: a client that shows one waits for its answer.
        assert "result" in client.ask(initialize(capabilities={}))
        client.send(INITIALIZED)
        waiting = called(client, 1, "claude_get_status", sessionId=session_id, waitSeconds=50)
        assert waiting["status"] == "waiting_for_input"
        assert "notice" not in waiting
        assert "costUsd" not in waiting
        by_command(shared)(session_id, question["inputId"])
        # On a busy machine, the hook that has the result can come later than the server waits for it after Claude
        # Code's record of the status.
        deadline, numbers = time.monotonic() + HANG_SECONDS, itertools.count(2)
        while "result" not in (
            ended := called(client, next(numbers), "claude_get_status", sessionId=session_id, waitSeconds=50)
        ):
            assert time.monotonic() < deadline, ended
            time.sleep(0.1)
        assert (ended["status"], ended["result"]) == ("completed", "All is done.")
    until(lambda: "All is done." in shared.command("logs", session_id).stdout)
    # Until Claude Code records the cost when it ends, a lower bound is shown.
    until(lambda: re.search(r" \N{GREATER-THAN OR EQUAL TO}\$0\.0\d+ ", shared.command("ps").stdout) is not None)


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
