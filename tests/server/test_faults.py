"""Turns that go wrong, told as such, on every wire. The servers here are in a hurry."""

import time
from datetime import datetime

import pytest

from claude_code_mcp.testing.script import fail, script, stall, text, tool

from .connection import Connection, Reply


@pytest.fixture(scope="module")
def server_settings() -> dict[str, str]:
    return {
        "PERMISSION_TIMEOUT_MS": "1200",
        "CLAUDE_CODE_MCP_STALL_MS": "600",
        "CLAUDE_CODE_MAX_RETRIES": "2",
    }


def looked_until(client: Connection, session: str, field: str) -> Reply:
    """The first report that has a field, while the turn runs."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        report = client.look(session, waitSeconds=0.05)
        if field in report.data:
            return report
        assert report.status == "running", report.text
    raise AssertionError(f"{field} never came")


@pytest.mark.promise("status.api-error")
def test_a_turn_that_the_api_refuses_ends_as_an_error(client: Connection, warm: str) -> None:
    ended = client.send(warm, script("go", fail(400, message="no such thing")), waitSeconds=40)
    assert ended.status == "error"
    assert ended.data["error"]["code"] == "api_error"
    assert "no such thing" in ended.data["error"]["message"]
    assert "api_error" in ended.text
    assert client.send(warm, script("go", "better"), waitSeconds=40).data["result"] == "better"


@pytest.mark.promise("status.max-turns")
def test_a_turn_that_uses_up_its_turns_ends_as_an_error(client: Connection) -> None:
    prompt = script("go", tool("Bash", command="true"), tool("Bash", command="true"), "never")
    ended = client.create(prompt, maxTurns=1, allowedTools=["Bash"], waitSeconds=40)
    assert (ended.status, ended.data["error"]["code"]) == ("error", "max_turns")


@pytest.mark.promise("status.crash")
def test_a_process_that_dies_ends_the_turn_and_not_the_session(client: Connection) -> None:
    prompt = script("go", tool("Bash", command="kill -9 $PPID"), "never")
    ended = client.create(prompt, allowedTools=["Bash"], waitSeconds=40)
    assert (ended.status, ended.data["error"]["code"]) == ("error", "crashed")
    assert client.send(ended.session, script("go", "back"), waitSeconds=40).data["result"] == "back"


@pytest.mark.promise("status.stalled")
def test_a_silent_turn_is_reported_as_stalled(client: Connection, warm: str) -> None:
    client.send(warm, script("go", text("at last", delay=2)))
    report = looked_until(client, warm, "stalledSeconds")
    assert 0 <= report.data["stalledSeconds"] < 30
    assert client.look(warm, waitSeconds=40).data["result"] == "at last"
    assert "stalledSeconds" not in client.look(warm).data


@pytest.mark.promise("status.retrying")
def test_a_turn_that_tries_the_api_again_says_so(client: Connection, warm: str) -> None:
    client.send(warm, script("go", fail(529, times=1, retry_after=2, then=text("at last"))))
    report = looked_until(client, warm, "retrying")
    assert report.data["retrying"].startswith("API error 529: attempt 1")
    ended = client.look(warm, waitSeconds=40)
    assert ended.data["result"] == "at last"
    assert "retrying" not in ended.data


@pytest.mark.promise("respond.expired")
def test_a_question_that_nobody_answers_is_denied(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >late"), "went on"), waitSeconds=40)
    assert datetime.fromisoformat(asked.question["expiresAt"]).timestamp() <= time.time() + 2
    ended = client.look(warm, waitSeconds=0)
    while ended.status in ("waiting_for_input", "running"):
        ended = client.look(warm, waitSeconds=0.1)
    assert ended.data["toolUseEvents"][-1] == {"toolName": "Bash", "status": "denied"}
    late = client.respond(asked, "allow")
    assert late.code == "INVALID_ARGUMENT"
    assert "expired" in late.refusal


@pytest.mark.promise("ask.patience", "respond.expired")
def test_a_dialog_that_nobody_answers_is_a_denial(asked: Connection) -> None:
    prompt = script("go", tool("Bash", command="echo 1 >late"), "went on")
    waiting = asked.start("claude_create_session", prompt=prompt, waitSeconds=40)
    dialog = asked.dialog()
    if not dialog.withdrawn.wait(2):
        dialog.accept(decision="Allow once")  # the 2026 client learns of it only now
    assert waiting.result(40).data["toolUseEvents"][-1] == {"toolName": "Bash", "status": "denied"}


@pytest.mark.promise("interrupt.stops", "interrupt.resume")
def test_a_stalled_answer_can_be_interrupted(client: Connection, warm: str) -> None:
    client.send(warm, script("go", stall("Well")))
    looked_until(client, warm, "stalledSeconds")
    assert client.interrupt(warm).status == "interrupted"
    assert client.send(warm, script("go", "fine"), waitSeconds=40).data["result"] == "fine"
