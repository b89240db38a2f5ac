"""Turns that go wrong, told as such, on every wire. The servers here are in a hurry."""

from datetime import datetime
from pathlib import Path

import pytest

from claude_code_mcp.testing.script import fail, script, stall, text, tool
from tests.support.waiting import HANG_SECONDS, until

from .conftest import Wire
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
    while field not in (report := client.look(session, waitSeconds=0.05)).data:
        assert report.status == "running", report.text
    return report


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
def test_a_silent_turn_is_reported_as_stalled(client: Connection, warm: str, tmp_path: Path) -> None:
    client.send(warm, script("go", text("at last", until=str(tmp_path / "go"))))
    report = looked_until(client, warm, "stalledSeconds")
    assert report.data["stalledSeconds"] >= 0
    (tmp_path / "go").touch()
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
def test_unanswered_question_is_denied(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >late"), "went on"), waitSeconds=40)
    assert datetime.fromisoformat(asked.question["expiresAt"]).tzinfo is not None
    ended = client.look(warm, waitSeconds=0)
    while ended.status in ("waiting_for_input", "running"):
        ended = client.look(warm, waitSeconds=0.1)
    assert ended.data["toolUseEvents"][-1] == {"toolName": "Bash", "status": "denied"}
    late = client.respond(asked, "allow")
    assert late.code == "INVALID_ARGUMENT"
    assert "expired" in late.refusal


@pytest.mark.soak  # the question expires: above; a late dialog: test_dialogs.py
@pytest.mark.promise("ask.patience", "respond.expired")
def test_unanswered_dialog_is_a_denial(asked: Connection, wire: Wire) -> None:
    prompt = script("go", tool("Bash", command="echo 1 >late"), "went on")
    waiting = asked.start("claude_create_session", prompt=prompt, waitSeconds=40)
    dialog = asked.dialog()
    if wire.modern:
        until(lambda: "waiting_for_input" not in [session.get("activeStatus") for session in asked.sessions()])
        dialog.accept(decision="Allow once")  # its client learns only now that it is too late
    else:
        assert dialog.withdrawn.wait(HANG_SECONDS)
    assert waiting.result(HANG_SECONDS).data["toolUseEvents"][-1] == {"toolName": "Bash", "status": "denied"}


@pytest.mark.soak  # any other: test_sessions.py
@pytest.mark.promise("interrupt.stops", "interrupt.resume")
def test_a_stalled_answer_can_be_interrupted(client: Connection, warm: str) -> None:
    client.send(warm, script("go", stall("Well")))
    looked_until(client, warm, "stalledSeconds")
    assert client.interrupt(warm).status == "interrupted"
    assert client.send(warm, script("go", "fine"), waitSeconds=40).data["result"] == "fine"
