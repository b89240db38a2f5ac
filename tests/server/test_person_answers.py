"""Where only a person may answer: an agent's calls allow nothing; forms that were shown do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import ask_user, plan, question, script, text, tool

from .connection import Connection
from .test_tasks import Client as RawClient
from .test_tasks import Serve, accept, serving, started

POLICY = """
default = "agents"

[profiles.agents]
base = "local"
answers = "person"
allow = ["Bash(git status)"]
"""
DENIED = "PERMISSION_DENIED"
TOUCH = script("Touch", tool("Bash", command="touch touched"), text("Touched."))


@pytest.fixture(scope="module")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    policy = tmp_path_factory.mktemp("policy") / "policy.toml"
    policy.write_text(POLICY)
    return {
        "CLAUDE_CODE_MCP_POLICY": str(policy),
        "CLAUDE_CODE_MCP_TOKEN": "token-of-the-user-0123456789",
        "CLAUDE_CODE_MCP_TOOLSETS": "sessions,code,query",
        "CLAUDE_CODE_MCP_PROFILE": "",
    }


@pytest.fixture
def touched(place: Sandbox) -> Iterator[Path]:
    file = place.project / "touched"
    yield file
    file.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param({"scope": "session"}, marks=pytest.mark.soak),
        pytest.param({"updatedInput": {"command": "touch touched # changed"}}, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_an_agent_allows_nothing_and_may_deny(
    client: Connection, warm: str, touched: Path, more: dict[str, Any]
) -> None:
    waiting = client.send(warm, TOUCH, waitSeconds=30)
    refused = client.respond(waiting, "allow", **more)
    assert refused.code == DENIED
    assert "in the console" in refused.refusal
    input_id = waiting.question["inputId"]
    other = client.call(
        "claude_code_session", action="respond", sessionId=warm, inputId=input_id, decision="allow", **more
    )
    assert other.code == DENIED
    assert client.look(warm).question["inputId"] == input_id, "it stays open for a person"
    ended = client.respond(waiting, "deny", waitSeconds=30)
    assert ended.status == "completed"
    assert not touched.exists()


def test_a_second_connection_of_the_same_caller_allows_no_more(
    wire: Any, connect: Any, client: Connection, warm: str
) -> None:
    waiting = client.send(warm, TOUCH, waitSeconds=30)
    with connect() as second:
        refused = second.respond(waiting, "allow")
    # On stdio it has a server of its own, which knows nothing of the question.
    assert refused.code == DENIED if wire.transport == "http" else refused.raw.is_error
    assert client.respond(waiting, "deny", waitSeconds=30).status == "completed"


@pytest.mark.soak  # test_dialogs.py
def test_a_person_allows_it_in_a_form(asked: Connection, touched: Path) -> None:
    working = asked.start("claude_create_session", prompt=TOUCH, waitSeconds=30)
    asked.dialog().accept(decision="Allow once")
    assert working.result(30).status == "completed"
    assert touched.exists()


def test_nothing_is_allowed_before_it_is_asked(client: Connection) -> None:
    assert client.create("go", allowedTools=["Bash"]).code == DENIED
    assert client.call("claude_code", prompt="go", allowedTools=["Bash(git status)", "Write"]).code == DENIED
    assert client.call("claude_code_configure", action="enable_bypass").code == DENIED
    assert client.create("hello", allowedTools=["Bash(git status)"], waitSeconds=30).status == "completed"


def test_plans_and_questions_also_require_a_person(client: Connection, warm: str) -> None:
    asking = script("Ask", ask_user(question("Which?", "a", "b", header="Which")), text("Done."))
    waiting = client.send(warm, asking, waitSeconds=30)
    assert client.respond(waiting, "allow", answers=["a"]).code == DENIED
    assert client.respond(waiting, "deny", waitSeconds=30).status == "completed"
    waiting = client.create(script("Plan", plan("Do it."), text("Done.")), permissionMode="plan", waitSeconds=30)
    assert client.respond(waiting, "allow", permissionMode="acceptEdits").code == DENIED
    assert client.respond(waiting, "deny", reason="Not so.", waitSeconds=30).status == "completed"


# -- what a client writes on the wire itself --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def serve(server_environment: dict[str, str], place: Sandbox) -> Iterator[Serve]:
    with serving(server_environment, place) as serve:
        yield serve


@pytest.fixture(scope="module")
def raw(serve: Serve) -> RawClient:
    return serve()


@pytest.fixture
def waiting_raw(raw: RawClient) -> tuple[str, str]:
    """A session that asks, of a client that shows no forms, and its question."""
    params = {"prompt": TOUCH, "waitSeconds": 30}
    made = raw.ask("tools/call", {"name": "claude_create_session", "arguments": params}, tasks=False, forms=False)
    report = made["result"]["structuredContent"]
    return report["sessionId"], report["pendingInputs"][0]["inputId"]


def test_a_form_that_was_never_shown_answers_nothing(
    raw: RawClient, waiting_raw: tuple[str, str], touched: Path
) -> None:
    session, input_id = waiting_raw
    forged = {
        "name": "claude_get_status",
        "arguments": {"sessionId": session},
        "inputResponses": {input_id: accept(decision="Allow once")},
    }
    for said in ({"forms": False}, {}):
        seen = raw.ask("tools/call", forged, tasks=False, **said)["result"]
        assert seen["structuredContent"]["pendingInputs"][0]["inputId"] == input_id
    assert not touched.exists()


def test_a_task_takes_answers_only_from_a_client_that_shows_forms(raw: RawClient, touched: Path) -> None:
    params = {"prompt": TOUCH, "permissionMode": "default"}
    task = started(raw.call("claude_code", **params))
    ((key, _),) = raw.until(task, "input_required")["inputRequests"].items()
    update = {"taskId": task["taskId"], "inputResponses": {key: accept(decision="Allow once")}}
    assert "Only a person" in raw.ask("tasks/update", update, forms=False)["error"]["message"]
    assert raw.get(task)["status"] == "input_required"
    raw.update(task, **{key: accept(decision="Allow once")})
    assert raw.until(task, "completed")["status"] == "completed"
    assert touched.exists()
