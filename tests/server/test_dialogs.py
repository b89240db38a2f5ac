"""Questions in the client's own dialogs, with the queue open beside them."""

from concurrent.futures import Future

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import Step, ask_user, plan, question, script, tool
from tests.support.waiting import HANG_SECONDS

from .conftest import WIRES, Connect, Wire
from .connection import Connection, Reply
from .test_answering import results_of


@pytest.fixture(scope="module")
def here(asked: Connection) -> str:
    """A session with a process that waits for its next message."""
    return asked.create("hello", waitSeconds=30).session


def write(place: Sandbox, name: str) -> Step:
    return tool("Write", file_path=str(place.project / name), content="x")


def sent(asked: Connection, session: str, *steps: Step) -> "Future[Reply]":
    """A message whose call waits for what comes of it."""
    return asked.start("claude_send_message", sessionId=session, message=script("go", *steps), waitSeconds=40)


@pytest.mark.promise("ask.once", "ask.patience")
def test_a_permission_is_allowed_once(asked: Connection, here: str, place: Sandbox) -> None:
    waiting = sent(asked, here, write(place, "once1"), write(place, "once2"), "done")
    first = asked.dialog()
    assert "once1" in first.message
    assert first.fields["decision"]["enum"] == ["Allow once", "Allow for this session", "Deny"]
    assert not waiting.done(), "the call waits while a person has the question"
    first.accept(decision="Allow once")
    asked.dialog().accept(decision="Allow once")
    assert waiting.result(40).data["result"] == "done"
    assert (place.project / "once2").exists()


@pytest.mark.promise("ask.session")
def test_a_permission_is_allowed_for_the_session(asked: Connection, place: Sandbox) -> None:
    prompt = script("go", write(place, "all1"), write(place, "all2"), "done")
    waiting = asked.start("claude_create_session", prompt=prompt, waitSeconds=40)
    asked.dialog().accept(decision="Allow for this session")
    assert waiting.result(40).data["result"] == "done"
    assert asked.no_dialog


@pytest.mark.promise("ask.deny")
def test_a_permission_is_denied_with_a_reason(
    asked: Connection, here: str, place: Sandbox, model: ScriptedModelThread
) -> None:
    waiting = sent(asked, here, write(place, "no"), "fine")
    asked.dialog().accept(decision="Deny", reason="wrong place")
    assert waiting.result(40).data["result"] == "fine"
    assert "wrong place" in results_of(model, here)
    assert not (place.project / "no").exists()


@pytest.mark.promise("ask.decline")
def test_declining_denies(asked: Connection, here: str, place: Sandbox) -> None:
    waiting = sent(asked, here, write(place, "no2"), "fine")
    asked.dialog().decline()
    assert waiting.result(40).data["toolUseEvents"][-1] == {"toolName": "Write", "status": "denied"}
    assert not (place.project / "no2").exists()


@pytest.mark.promise("ask.dismiss")
def test_a_dismissed_dialog_leaves_the_question_in_the_queue(asked: Connection, here: str, place: Sandbox) -> None:
    waiting = sent(asked, here, write(place, "queued"), "done")
    asked.dialog().cancel()
    left = waiting.result(40)
    assert left.status == "waiting_for_input", "now it is the caller's to answer"
    ended = asked.respond(left, "allow", waitSeconds=40)
    assert ended.data["result"] == "done"
    assert asked.no_dialog, "it was not shown again"
    assert (place.project / "queued").exists()


@pytest.mark.promise("ask.withdrawn")
def test_late_dialog_is_withdrawn_or_reported(asked: Connection, here: str, place: Sandbox, wire: Wire) -> None:
    waiting = sent(asked, here, write(place, "race"), "done")
    dialog = asked.dialog()
    look = asked.look(here)
    asked.respond(look, "allow")
    if wire.modern:
        dialog.accept(decision="Deny", reason="too late")
        ended = waiting.result(40)
        assert "came too late" in ended.data["notice"]
        assert "came too late" in ended.text
    else:
        assert dialog.withdrawn.wait(HANG_SECONDS)
        ended = waiting.result(40)
    assert ended.data["result"] == "done"
    assert (place.project / "race").exists()


@pytest.mark.promise("ask.withdrawn", "respond.answered")
def test_queue_reports_that_the_dialog_was_faster(asked: Connection, here: str, place: Sandbox) -> None:
    waiting = sent(asked, here, write(place, "race2"), "done")
    dialog = asked.dialog()
    look = asked.look(here)
    dialog.accept(decision="Allow once")
    waiting.result(40)
    assert "already answered by elicitation" in asked.respond(look, "deny").refusal


@pytest.mark.promise("ask.choices")
def test_a_user_question_is_a_form_with_choices_and_free_text(
    asked: Connection, here: str, model: ScriptedModelThread
) -> None:
    questions = ask_user(
        question("Which colors?", ("red", "like fire"), "blue", header="Colors", multiple=True),
        question("What name?", "Ann", "Bob", header="Name"),
        question("Which size?", "S", "L", header="Size"),
    )
    waiting = sent(asked, here, questions, "thanks")
    form = asked.dialog()
    assert "Which colors?" in form.message
    assert "red: like fire" in form.message
    assert form.fields["answer1"]["items"]["enum"] == ["red", "blue"]
    assert form.fields["answer2"]["enum"] == ["Ann", "Bob"]
    form.accept(answer1=["red", "blue"], other2="Zoe", answer3="L")
    assert waiting.result(40).data["result"] == "thanks"
    results = results_of(model, here)
    assert all(answer in results for answer in ("red, blue", "Zoe", '"L"'))


@pytest.mark.promise("ask.plan")
def test_a_plan_is_sent_back_and_then_approved(asked: Connection, model: ScriptedModelThread) -> None:
    prompt = script("plan it", plan("1. Dig"), plan("1. Dig deeper"), "on it")
    waiting = asked.start("claude_create_session", prompt=prompt, permissionMode="plan", waitSeconds=40)
    first = asked.dialog()
    assert "1. Dig" in first.message
    first.accept(decision="Send feedback", feedback="deeper, please")
    second = asked.dialog()
    assert "Dig deeper" in second.message
    second.accept(decision="Approve the plan")
    ended = waiting.result(40)
    assert ended.data["result"] == "on it"
    results = [
        result.text
        for request in model.requests
        if request.session_id == ended.session
        for result in request.tool_results
    ]
    assert any("deeper, please" in text for text in results)


@pytest.mark.promise("ask.patience")
def test_the_time_of_the_call_passes_while_the_person_thinks(asked: Connection, here: str, place: Sandbox) -> None:
    asked.send(here, script("go", write(place, "slow"), "done"))
    waiting = asked.start("claude_get_status", sessionId=here, waitSeconds=40)
    dialog = asked.dialog()
    look = asked.look(here)
    assert look.status == "waiting_for_input", "a call that does not wait sees the question"
    dialog.accept(decision="Allow once")
    assert waiting.result(40).data["result"] == "done"


@pytest.mark.promise("ask.open-already")
def test_a_question_that_is_open_already_is_shown(
    asked: Connection, here: str, connect: Connect, place: Sandbox, wire: Wire
) -> None:
    """Over HTTP a second client takes the session up; on stdio there is only the one."""
    if wire.transport == "stdio":
        asked.send(here, script("go", write(place, "again"), "done"))
        waiting = asked.start("claude_get_status", sessionId=here, waitSeconds=40)
        asked.dialog().accept(decision="Allow once")
        assert waiting.result(40).data["result"] == "done"
        return
    with connect() as plain, connect(can_be_asked=True) as other:
        question = plain.create(script("go", write(place, "again"), "done"), waitSeconds=30)
        waiting = other.start("claude_get_status", sessionId=question.session, waitSeconds=40)
        other.dialog().accept(decision="Allow once")
        assert waiting.result(40).data["result"] == "done"


@pytest.mark.soak  # of one and the queue: above
@pytest.mark.promise("ask.withdrawn")
@pytest.mark.parametrize("wire", WIRES[2:], indirect=True, ids=str, scope="module")
def test_slower_of_two_dialogs_is_withdrawn(connect: Connect, place: Sandbox, wire: Wire) -> None:
    with connect(can_be_asked=True) as one, connect(can_be_asked=True) as two:
        session = one.create("hello", waitSeconds=30).session
        two.look(session)
        first = sent(one, session, write(place, "two"), "done")
        faster = one.dialog()
        second = two.start("claude_get_status", sessionId=session, waitSeconds=40)
        slower = two.dialog()
        faster.accept(decision="Allow once")
        assert first.result(40).data["result"] == "done"
        if wire.modern:
            slower.accept(decision="Deny")
            assert "came too late" in second.result(40).data["notice"]
        else:
            assert slower.withdrawn.wait(HANG_SECONDS)
            assert second.result(40).data["result"] == "done"
