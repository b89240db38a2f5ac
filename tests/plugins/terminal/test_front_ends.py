"""A terminal beside a shared server: the console, the command line and an MCP client answer it, first or second."""

import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.plugins.console.console_client import Browser
from tests.startup.greeting.client import Client, request
from tests.startup.shared.support import SharedPlace, next_answer, opened, shared_place
from tests.support.waiting import until

from .conftest import StartClaude

ASKS = script("Do it", tool("Bash", command="touch done"), text("All is done."))


@pytest.fixture
def shared(sandbox: Sandbox, environment: dict[str, str]) -> Iterator[SharedPlace]:
    own = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}
    with shared_place(sandbox, own) as place:
        assert place.command("shared", "start").returncode == 0
        yield place


def asked(shared: SharedPlace, after: str = "") -> dict[str, Any]:
    """The open question, as the command line lists it, that is not the one with the id `after`."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        listed = json.loads(shared.command("questions", "--json").stdout)
        found[:] = [question for question in listed if question["inputId"] != after]
        if not found:
            time.sleep(0.2)  # each look takes a process
        return bool(found)

    until(look)
    return found[0]


def browser_of(shared: SharedPlace) -> Browser:
    link = json.loads(shared.command("web", "--json").stdout)
    browser = Browser(link["address"].rstrip("/"))
    assert browser.sign_in(ticket=link["url"].partition("#ticket=")[2]).status == 200
    return browser


Way = Callable[[str, str], str]
"""Allows the question of a session with an id; the value is what the one who answers is told."""


def by_console(browser: Browser) -> Way:
    def answer(session_id: str, question_id: str) -> str:
        path = f"/api/sessions/{session_id}/questions/{question_id}"
        return str(browser.post(path, {"decision": "allow"}).json)

    return answer


def by_command(shared: SharedPlace) -> Way:
    def answer(_: str, question_id: str) -> str:
        done = shared.command("answer", question_id, "allow")
        return done.stdout + done.stderr

    return answer


def called(client: Client, number: int, name: str, **arguments: Any) -> dict[str, Any]:
    """The structured content of a tool's result, which the client is told of among changes of the session."""
    client.send(request("tools/call", number, name=name, arguments=arguments))
    structured: dict[str, Any] = next_answer(client, number)["result"]["structuredContent"]
    return structured


def by_client(client: Client) -> Way:
    numbers = iter(range(100, 1000))

    def answer(session_id: str, question_id: str) -> str:
        given = {"sessionId": session_id, "inputId": question_id, "decision": "allow"}
        return json.dumps(called(client, next(numbers), "claude_respond", **given))

    return answer


def test_every_front_end_shows_a_terminal_and_answers_it_and_the_first_answer_counts(
    shared: SharedPlace, claude: StartClaude, sandbox: Sandbox
) -> None:
    names = ("keyboard", "console", "client", "command", "killed")
    terminal = claude(script("Do it", *(tool("Bash", command=f"touch {name}") for name in names), text("All is done.")))
    question = asked(shared)
    session_id = question["sessionId"]
    browser = browser_of(shared)
    with opened(shared.client()) as client:
        # The session is listed as one in a terminal, and takes no message.
        assert "waiting_for_input (terminal)" in shared.command("ps").stdout
        listed = browser.get("/api/sessions").json["sessions"]
        row = next(one for one in listed if one["sessionId"] == session_id)
        assert row["inTerminal"] is True
        assert row["status"] == "waiting_for_input"
        refused = called(client, 1, "claude_send_message", sessionId=session_id, message="Hello")
        assert refused["error"]["code"] == "SESSION_BUSY"
        assert "is open in a terminal" in refused["error"]["message"]
        stopped = called(client, 2, "claude_interrupt", sessionId=session_id)
        assert stopped["error"]["code"] == "SESSION_BUSY"

        ways = {"console": by_console(browser), "client": by_client(client), "command": by_command(shared)}
        # The keyboard is first.
        terminal.until("Do you want to proceed?")
        terminal.type("1")
        until((sandbox.project / "keyboard").exists, "the call that was allowed at the keyboard")
        following = asked(shared, after=question["inputId"])
        for name, way in ways.items():
            said = way(session_id, question["inputId"])
            assert re.search(r"withdrawn|no (open )?question", said, re.IGNORECASE), (name, said)
        # Each of the others is first.
        for name, way in ways.items():
            question = following
            assert f"touch {name}" in question["description"]
            said = way(session_id, question["inputId"])
            assert "already" not in said, (name, said)
            until((sandbox.project / name).exists, f"the call that was allowed by the {name}")
            following = asked(shared, after=question["inputId"])
            for late, another in ways.items():
                said = another(session_id, question["inputId"])
                late_said = (name, late, said)
                assert re.search(r"already answered|no (open )?question", said, re.IGNORECASE), late_said
    # A killed server leaves the terminal as it is, and the next one asks again.
    shared.kill_server()
    assert terminal.process.poll() is None
    assert shared.command("shared", "start").returncode == 0
    question = asked(shared)
    assert question["sessionId"] == session_id
    assert question["inputId"] != following["inputId"]
    assert not (sandbox.project / "killed").exists()
    by_command(shared)(session_id, question["inputId"])
    until((sandbox.project / "killed").exists, "the call that the next server was asked about")
