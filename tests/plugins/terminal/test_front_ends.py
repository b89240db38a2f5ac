"""A terminal beside a shared server: the console, the command line and an MCP client answer it, first or second."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.plugins.console.console_client import Browser
from tests.startup.shared.support import SharedPlace, call, opened, shared_place
from tests.support.waiting import until

from .conftest import StartClaude

ASKS = script("Do it", tool("Bash", command="touch done"), text("All is done."))


@pytest.fixture
def shared(sandbox: Sandbox, environment: dict[str, str]) -> Iterator[SharedPlace]:
    own = {**environment, "CLAUDE_CODE_MCP_STATE_DIR": str(sandbox.root / "state")}
    with shared_place(sandbox, own) as place:
        assert place.command("shared", "start").returncode == 0
        yield place


def asked(shared: SharedPlace) -> dict[str, Any]:
    """The open question, as the command line lists it."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = json.loads(shared.command("questions", "--json").stdout)
        return bool(found)

    until(look)
    return found[0]


def browser_of(shared: SharedPlace) -> Browser:
    link = json.loads(shared.command("web", "--json").stdout)
    browser = Browser(link["address"].rstrip("/"))
    assert browser.sign_in(ticket=link["url"].partition("#ticket=")[2]).status == 200
    return browser


def by_console(shared: SharedPlace, session_id: str, question_id: str) -> str:
    path = f"/api/sessions/{session_id}/questions/{question_id}"
    return str(browser_of(shared).post(path, {"decision": "allow"}).json)


def by_command(shared: SharedPlace, session_id: str, question_id: str) -> str:
    done = shared.command("answer", question_id, "allow")
    return done.stdout + done.stderr


def by_client(shared: SharedPlace, session_id: str, question_id: str) -> str:
    with opened(shared.client()) as client:
        given = {"sessionId": session_id, "inputId": question_id, "decision": "allow"}
        return json.dumps(call(client, 1, "claude_respond", **given))


WAYS = [by_console, by_command, by_client]
Way = Callable[[SharedPlace, str, str], str]


@pytest.mark.parametrize("way", [by_console, by_client, pytest.param(by_command, marks=pytest.mark.soak)])
def test_an_answer_from_elsewhere_is_first(
    shared: SharedPlace, claude: StartClaude, sandbox: Sandbox, way: Way
) -> None:
    claude(ASKS)
    question = asked(shared)
    said = way(shared, question["sessionId"], question["inputId"])
    until((sandbox.project / "done").exists)
    assert "already" not in said
    again = [other(shared, question["sessionId"], question["inputId"]) for other in WAYS]
    assert all(
        re.search(r"already answered|no (open )?question", reported_text, re.IGNORECASE) for reported_text in again
    ), again


@pytest.mark.parametrize("way", [by_console, *(pytest.param(way, marks=pytest.mark.soak) for way in WAYS[1:])])
def test_keyboard_answer_wins(shared: SharedPlace, claude: StartClaude, sandbox: Sandbox, way: Way) -> None:
    terminal = claude(ASKS)
    question = asked(shared)
    terminal.until("Do you want to proceed?")
    terminal.type("1")
    until(lambda: json.loads(shared.command("questions", "--json").stdout) == [])
    until((sandbox.project / "done").exists)
    said = way(shared, question["sessionId"], question["inputId"])
    assert re.search(r"withdrawn|no (open )?question", said, re.IGNORECASE), said


def test_the_session_is_listed_and_takes_no_message_while_it_is_in_the_terminal(
    shared: SharedPlace, claude: StartClaude
) -> None:
    claude(ASKS)
    session_id = asked(shared)["sessionId"]
    listed = shared.command("ps").stdout
    assert "waiting_for_input (terminal)" in listed
    row = next(
        one for one in browser_of(shared).get("/api/sessions").json["sessions"] if one["sessionId"] == session_id
    )
    assert row["inTerminal"] is True
    assert row["status"] == "waiting_for_input"
    with opened(shared.client()) as client:
        refused = call(client, 1, "claude_send_message", sessionId=session_id, message="Hello")
        assert refused["error"]["code"] == "SESSION_BUSY"
        assert "is open in a terminal" in refused["error"]["message"]
        stopped = call(client, 2, "claude_interrupt", sessionId=session_id)
        assert stopped["error"]["code"] == "SESSION_BUSY"


def test_a_killed_server_leaves_the_terminal_as_it_is(
    shared: SharedPlace, claude: StartClaude, sandbox: Sandbox
) -> None:
    terminal = claude(ASKS)
    first = asked(shared)
    shared.kill_server()
    assert terminal.process.poll() is None
    assert shared.command("shared", "start").returncode == 0
    question = asked(shared)
    assert question["sessionId"] == first["sessionId"]
    assert question["inputId"] != first["inputId"]
    by_command(shared, question["sessionId"], question["inputId"])
    until((sandbox.project / "done").exists)
