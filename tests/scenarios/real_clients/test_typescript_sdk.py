"""The TypeScript SDK, version 1 and version 2 in both eras, over stdio and HTTP, drives real sessions."""

import json
from dataclasses import replace
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import ask_user, script, text, tool

from .conftest import StartClient
from .packages import Packages
from .sdk_client import CallFailed, Kind, sdk_client
from .serving import Served

SIX = {
    "claude_create_session",
    "claude_send_message",
    "claude_get_status",
    "claude_respond",
    "claude_interrupt",
    "claude_list_sessions",
}
ALLOW = {"action": "accept", "content": {"decision": "Allow once"}}
NOBODY = "00000000-0000-4000-8000-000000000000"
DECLINE = {"action": "decline"}


def write_a_note(sandbox: Sandbox) -> str:
    return script("Write a note.", tool("Write", file_path=str(sandbox.project / "note"), content="hello"), "Written.")


@pytest.mark.parametrize("kind", [Kind("v2", "auto")], ids=str)
def test_a_client_that_speaks_both_eras_finds_the_new_one(
    packages: Packages, kind: Kind, served: Served, environment: dict[str, str]
) -> None:
    with sdk_client(packages, kind, served, environment) as client:
        connected = client.connect()
        assert connected["era"] == "modern"
        assert connected["server"]["name"] == "claude-code-mcp"
        assert {tool["name"] for tool in client.tools()} >= SIX


@pytest.mark.soak  # the form: below; the queue: tests/server/test_answering.py
def test_a_session_is_run_through_the_queue_and_a_refusal_is_a_result_with_a_code(
    start_client: StartClient, sandbox: Sandbox
) -> None:
    client = start_client()
    assert {tool["name"] for tool in client.tools()} >= SIX  # from now on it checks results against their schemas

    created = client.call("claude_create_session", prompt=write_a_note(sandbox), workingDirectory=str(sandbox.project))
    session = created["sessionId"]
    waiting = client.call("claude_get_status", sessionId=session, waitSeconds=50)
    assert waiting["status"] == "waiting_for_input"
    [pending] = waiting["pendingInputs"]
    assert (pending["type"], pending["toolName"]) == ("permission", "Write")

    client.call("claude_respond", sessionId=session, inputId=pending["inputId"], decision="allow")
    done = client.call("claude_get_status", sessionId=session, waitSeconds=50, cursor=waiting["nextCursor"])
    assert (done["status"], done["result"]) == ("completed", "Written.")
    assert (sandbox.project / "note").read_text() == "hello"

    more = client.call("claude_send_message", sessionId=session, message=script("And?", "No more."), waitSeconds=50)
    assert (more["status"], more["result"]) == ("completed", "No more.")
    listed = client.call("claude_list_sessions")
    assert session in {session["sessionId"] for session in listed["sessions"]}

    result: dict[str, Any] = client.tell(do="call", name="claude_get_status", args={"sessionId": NOBODY})
    assert result["isError"]
    assert result["structuredContent"]["error"]["code"] == "SESSION_NOT_FOUND"
    with pytest.raises(CallFailed, match="Unknown tool"):
        client.tell(do="call", name="no_such_tool", args={})


@pytest.mark.soak  # of Python: tests/server/test_dialogs.py; make conformance
def test_a_person_allows_declines_and_chooses_in_the_clients_own_form(
    start_client: StartClient, sandbox: Sandbox
) -> None:
    client = start_client(answers=[ALLOW, DECLINE, {"action": "accept", "content": {"answer1": "blue"}}])
    client.tools()
    place = str(sandbox.project)
    done = client.call("claude_create_session", prompt=write_a_note(sandbox), workingDirectory=place, waitSeconds=50)
    assert (done["status"], done["result"]) == ("completed", "Written.")
    assert (sandbox.project / "note").read_text() == "hello"
    [form] = client.asked
    assert "note" in form["message"]
    assert "Allow once" in form["requestedSchema"]["properties"]["decision"]["enum"]
    prompt = script(
        "Write, then ask.",
        tool("Write", file_path=str(sandbox.project / "another"), content="hello"),
        ask_user("Which color?", "red", "blue"),
        text("${tool_result}"),
    )
    done = client.call("claude_send_message", sessionId=done["sessionId"], message=prompt, waitSeconds=50)
    assert done["status"] == "completed"
    assert "blue" in done["result"]
    assert not (sandbox.project / "another").exists()
    assert len(client.asked) == 3


@pytest.mark.parametrize("served", ["http"], indirect=True)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer of-bad-news"}], ids=json.dumps)
def test_without_the_token_nothing_is_served(
    packages: Packages, kind: Kind, served: Served, environment: dict[str, str], headers: dict[str, str]
) -> None:
    stranger = replace(served, headers=headers)
    with (
        sdk_client(packages, kind, stranger, environment) as client,
        pytest.raises(CallFailed, match=r"401|invalid_token"),
    ):
        client.connect()
