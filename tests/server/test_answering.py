"""Questions through the queue: every kind of answer, and the answers that are refused, on every wire."""

from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, parallel, plan, question, script, text, tool

from .connection import Connection


def results_of(model: ScriptedModelThread, session: str) -> str:
    """What the model last received for a tool call of this session."""
    results = [
        request.tool_results for request in model.requests if request.session_id == session and request.tool_results
    ]
    return results[-1][0].text


@pytest.mark.promise("respond.allow", "ask.without")
def test_an_allowed_tool_runs(client: Connection, warm: str, place: Sandbox) -> None:
    written = place.project / "allowed.txt"
    prompt = script("go", tool("Write", file_path=str(written), content="hello"), "done")
    asked = client.send(warm, prompt, waitSeconds=30)
    assert asked.status == "waiting_for_input"
    assert not written.exists()
    ended = client.respond(asked, "allow", waitSeconds=30)
    assert (ended.status, ended.data["result"]) == ("completed", "done")
    assert written.read_text() == "hello"
    written.unlink()


@pytest.mark.promise("respond.allow")
def test_without_a_wait_an_answer_returns_at_once(client: Connection, warm: str, tmp_path: Path) -> None:
    last = text("done", until=str(tmp_path / "go"))
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >a"), last), waitSeconds=30)
    assert client.respond(asked, "allow").data == {"sessionId": warm, "status": "running"}
    (tmp_path / "go").touch()
    assert client.look(warm, waitSeconds=30).data["result"] == "done"


@pytest.mark.promise("respond.deny")
def test_denied_tool_does_not_run_and_the_reason_is_reported(
    client: Connection, warm: str, place: Sandbox, model: ScriptedModelThread
) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >denied"), "ok then"), waitSeconds=30)
    ended = client.respond(asked, "deny", reason="not on a Sunday", waitSeconds=30)
    assert ended.status == "completed"
    assert ended.data["toolUseEvents"][-1] == {"toolName": "Bash", "status": "denied"}
    assert "not on a Sunday" in results_of(model, warm)
    assert not (place.project / "denied").exists()


@pytest.mark.promise("respond.session")
def test_session_allowance_prevents_further_questions(client: Connection, place: Sandbox) -> None:
    edits = [tool("Write", file_path=str(place.project / f"s{number}.txt"), content="x") for number in range(3)]
    asked = client.create(script("go", *edits, "done"), waitSeconds=30)
    assert asked.question["canAllowForSession"] is True
    assert asked.question["sessionRules"] == ["mode acceptEdits"], "what that means is said before"
    ended = client.respond(asked, "allow", scope="session", waitSeconds=30)
    assert (ended.status, ended.data["result"]) == ("completed", "done")
    for number in range(3):
        (place.project / f"s{number}.txt").unlink()


@pytest.mark.promise("respond.updated-input")
def test_an_allowance_can_change_the_input(client: Connection, warm: str, place: Sandbox) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo bad >word"), "done"), waitSeconds=30)
    client.respond(asked, "allow", updatedInput={"command": "echo good >word"}, waitSeconds=30)
    assert (place.project / "word").read_text() == "good\n"


COLORS = question("Which colors?", "red", "green", "blue", header="Colors", multiple=True)
NAME = question("What name?", "Ann", "Bob", header="Name")


@pytest.mark.promise("respond.answers")
@pytest.mark.parametrize(
    "answers",
    [
        {"Which colors?": ["red", "blue"], "What name?": "Zoe"},
        pytest.param([["red", "blue"], "Zoe"], marks=pytest.mark.soak),
        ["red, blue", "Zoe"],
    ],
    ids=["mapping", "list", "joined"],
)
def test_a_user_question_is_answered(
    client: Connection, warm: str, model: ScriptedModelThread, answers: object
) -> None:
    asked = client.send(warm, script("go", ask_user(COLORS, NAME), "thanks"), waitSeconds=30)
    assert (asked.question["type"], asked.question["toolName"]) == ("user_question", "AskUserQuestion")
    assert [question["question"] for question in asked.question["toolInput"]["questions"]] == [
        "Which colors?",
        "What name?",
    ]
    ended = client.respond(asked, "allow", answers=answers, waitSeconds=30)
    assert ended.data["result"] == "thanks"
    results = results_of(model, warm)
    assert "red, blue" in results
    assert "Zoe" in results


@pytest.mark.promise("respond.answers")
def test_a_user_question_can_be_answered_through_the_input(
    client: Connection, warm: str, model: ScriptedModelThread
) -> None:
    asked = client.send(warm, script("go", ask_user(NAME), "thanks"), waitSeconds=30)
    client.respond(asked, "allow", updatedInput={"answers": {"What name?": "Cleo"}}, waitSeconds=30)
    assert "Cleo" in results_of(model, warm)


@pytest.mark.promise("respond.plan")
def test_a_plan_is_sent_back_and_then_approved(client: Connection, place: Sandbox, model: ScriptedModelThread) -> None:
    prompt = script("plan it", plan("1. Dig\n2. Fill"), plan("1. Dig deeper"), "on it")
    first = client.create(prompt, permissionMode="plan", waitSeconds=30)
    assert first.question["type"] == "plan_review"
    assert first.question["toolInput"]["plan"].startswith("1. Dig")
    second = client.respond(first, "deny", reason="deeper, please", waitSeconds=30)
    assert any(
        "deeper, please" in result.text
        for request in model.requests
        if request.session_id == first.session
        for result in request.tool_results
    )
    assert "Dig deeper" in second.question["toolInput"]["plan"]
    assert client.respond(second, "allow", waitSeconds=30).data["result"] == "on it"


@pytest.mark.promise("respond.unknown", "respond.answered")
def test_a_question_takes_one_answer_by_its_own_id(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >b"), "done"), waitSeconds=30)
    wrong = client.call("claude_respond", sessionId=warm, inputId="q-0000000000000000", decision="allow")
    assert wrong.code == "INVALID_ARGUMENT"
    assert "has no question 'q-0000000000000000'" in wrong.refusal
    client.respond(asked, "allow", waitSeconds=30)
    again = client.respond(asked, "deny")
    assert again.code == "INVALID_ARGUMENT"
    assert "already answered by claude_respond" in again.refusal


@pytest.mark.promise("respond.combinations")
def test_an_answer_that_does_not_fit_leaves_the_question_open(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", tool("Bash", command="echo 1 >c"), "done"), waitSeconds=30)
    misfits = (
        {"decision": "deny", "updatedInput": {"command": "ls"}},
        {"decision": "deny", "answers": ["red"]},
        {"decision": "deny", "scope": "session"},
        {"decision": "allow", "answers": ["red"]},
        {"decision": "allow", "answers": {"Which?": "red"}},
    )
    for misfit in misfits:
        assert client.respond(asked, **misfit).code == "INVALID_ARGUMENT"
    assert client.look(warm).question == asked.question
    client.respond(asked, "deny", waitSeconds=30)


@pytest.mark.promise("respond.combinations")
def test_answers_must_fit_the_questions(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", ask_user(NAME), "done"), waitSeconds=30)
    for answers in ({"What shame?": "Ann"}, ["Ann", "Bob"]):
        assert client.respond(asked, "allow", answers=answers).code == "INVALID_ARGUMENT"
    assert client.respond(asked, "allow", scope="session").code == "INVALID_ARGUMENT", "no rule was suggested"
    assert client.respond(asked, "allow", answers=["Ann"], waitSeconds=30).status == "completed"


@pytest.mark.promise("respond.allow")
def test_parallel_calls_are_asked_about_one_by_one(client: Connection, warm: str, place: Sandbox) -> None:
    calls = [tool("Bash", command=f"echo {number} >p{number}") for number in range(2)]
    asked = client.send(warm, script("go", parallel(*calls), "done"), waitSeconds=30)
    seen = []
    while asked.status == "waiting_for_input":
        seen.append(asked.question["toolInput"]["command"])
        asked = client.respond(asked, "allow", waitSeconds=30)
    assert sorted(seen) == ["echo 0 >p0", "echo 1 >p1"]
    assert asked.data["result"] == "done"


def test_a_question_is_not_allowed_without_its_answers_and_stays_open(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", ask_user("Which color?", "red", "blue"), "thanks"), waitSeconds=30)
    for refused in (client.respond(asked, "allow"), client.respond(asked, "allow", answers=[])):
        assert refused.code == "INVALID_ARGUMENT"
        assert refused.refusal.startswith("answers: ")
    assert client.look(warm).status == "waiting_for_input"
    ended = client.respond(asked, "allow", answers=["red"], waitSeconds=30)
    assert (ended.status, ended.data["result"]) == ("completed", "thanks")
