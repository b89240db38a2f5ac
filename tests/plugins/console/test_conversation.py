"""A whole story in the console: start, watch, answer, read again, go on; on the real CLI."""

import json
from pathlib import Path
from typing import Any

import pytest

from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import ask_user, parallel, plan, script, text, tool

from .conftest import Console, running_console
from .console_client import Browser, StreamEvent, until

WORDS = " ".join(f"word{number}" for number in range(200))


def start(browser: Browser, console: Console, prompt: str, **options: Any) -> str:
    made = browser.post("/api/sessions", {"prompt": prompt, "workingDirectory": str(console.project), **options})
    assert made.status == 201, made.body
    return str(made.json["sessionId"])


def question_of(browser: Browser, session: str) -> dict[str, Any]:
    """The question that a session asks, once it does."""
    with browser.stream(f"?session={session}&after=0-0") as events:
        for event in events:
            if event.name in ("question", "reset", "session"):
                found = browser.get(f"/api/sessions/{session}").json["questions"]
                if found:
                    return dict(found[0])
    raise AssertionError("no question")


def ended(browser: Browser, session: str) -> StreamEvent:
    """The end of the latest turn, now or once it comes."""
    cursor = browser.get(f"/api/sessions/{session}/turns").json["cursor"]
    with browser.stream(f"?session={session}&after={cursor}") as events:
        return until(events, "ended")[-1]


def answer(browser: Browser, question: dict[str, Any], **given: Any) -> Any:
    return browser.post(f"/api/sessions/{question['sessionId']}/questions/{question['questionId']}", given)


@pytest.fixture(scope="module")
def talk(console: Console) -> str:
    """A session of Alice's that goes on from test to test."""
    browser = console.browser("alice")
    session = start(browser, console, script("Hello.", text("Hello!")))
    ended(browser, session)
    return session


def say(browser: Browser, session: str, prompt: str) -> str:
    """The next message; the value is the session."""
    assert browser.post(f"/api/sessions/{session}/messages", {"message": prompt}).status == 202
    return session


@pytest.mark.soak  # tests/plugins/console/browser/test_stories.py
def test_an_edit_is_seen_whole_allowed_and_found_in_the_conversation(
    console: Console, alice: Browser, talk: str
) -> None:
    file = console.project / "greeting.txt"
    step = tool("Write", file_path=str(file), content="hello\nworld\n")
    session = say(alice, talk, script("Greet.", parallel("I write it.", step), text("It is written.")))
    question = question_of(alice, session)
    assert question["kind"] == "permission"
    assert [line["text"] for line in question["lines"] if line["style"] == "added"] == ["+ hello", "+ world"]
    assert question["toolInput"]["content"] == "hello\nworld\n"
    listed = alice.get("/api/sessions").json
    assert listed["attention"][0]["sessionId"] == session
    assert listed["attention"][0]["needs"] == "question"
    assert answer(alice, question, decision="allow").status == 200
    assert ended(alice, session).data["result"] == "It is written."
    assert file.read_text() == "hello\nworld\n"
    page = alice.get(f"/api/sessions/{session}/turns").json
    items = page["turns"][-1]["items"]
    assert [(item["kind"], item.get("name"), item.get("status")) for item in items] == [
        ("text", None, None),
        ("tool", "Write", "ok"),
        ("text", None, None),
    ]
    late = answer(alice, question, decision="deny")
    assert (late.status, late.code) == (409, "QUESTION_CLOSED")
    assert "web (Test browser)" in late.json["error"]["by"]


@pytest.mark.soak
def test_items_of_the_stream_and_of_the_transcript_have_the_same_ids(console: Console, alice: Browser) -> None:
    calls = parallel("Both at once.", tool("Bash", command="echo one"), tool("Bash", command="echo two"))
    session = start(alice, console, script("Look.", calls, text("Seen.")))
    ended(alice, session)
    page = alice.get(f"/api/sessions/{session}/turns").json
    with alice.stream(f"?session={session}&after={page['cursor']}") as events:
        seen = until(events, "ended")
    streamed = {item["id"]: item for event in seen if event.name == "items" for item in event.data["items"]}
    stored = {item["id"]: item for item in page["turns"][-1]["items"]}
    assert list(stored) == list(dict.fromkeys(streamed))
    assert len(stored) == 4
    (turn,) = [event for event in seen if event.name == "turn"]
    assert turn.data["messageId"] == page["turns"][-1]["messageId"]


def test_a_stream_that_was_cut_continues_behind_its_last_event_without_a_gap(console: Console, alice: Browser) -> None:
    slow = text(WORDS, chunks=100, interval=0.01)
    session = start(alice, console, script("Speak.", slow))
    got, last = "", "0-0"
    cuts = 0
    while True:
        with alice.stream(f"?session={session}&after={last}") as events:
            for event in events:
                last = event.id or last
                if event.name == "partial":
                    got += event.data["text"]
                    if len(got) < len(WORDS):
                        cuts += 1
                        break  # the line is cut after every fragment
                if event.name == "reset":
                    page = alice.get(f"/api/sessions/{session}/turns").json
                    last = page["cursor"]
                    break
                if event.name in ("ended", "gap"):
                    break
        if event.name in ("ended", "gap"):
            break
    assert event.name == "ended"
    assert got == WORDS
    assert cuts > 3


@pytest.mark.soak
def test_a_plan_is_sent_back_with_feedback_and_approved_with_a_mode(console: Console, alice: Browser) -> None:
    prompt = script("Plan.", plan("# First\n\n1. do it"), plan("# Second\n\n1. do it well"), text("Done."))
    session = start(alice, console, prompt, permissionMode="plan")
    first = question_of(alice, session)
    assert first["kind"] == "plan_review"
    assert first["toolInput"]["plan"].startswith("# First")
    assert answer(alice, first, decision="deny", reason="More care, please.").status == 200
    second = next_question(alice, session, first["questionId"])
    assert second["toolInput"]["plan"].startswith("# Second")
    assert answer(alice, second, decision="allow", permissionMode="acceptEdits").status == 200
    assert ended(alice, session).data["result"] == "Done."
    assert alice.get(f"/api/sessions/{session}").json["permissionMode"] == "acceptEdits"
    items = alice.get(f"/api/sessions/{session}/turns").json["turns"][-1]["items"]
    assert any("More care, please." in item.get("result", "") for item in items)


def next_question(browser: Browser, session: str, before: str) -> dict[str, Any]:
    with browser.stream(f"?session={session}&after=0-0") as events:
        for _ in events:
            found = browser.get(f"/api/sessions/{session}").json["questions"]
            if found and found[0]["questionId"] != before:
                return dict(found[0])
    raise AssertionError("no question")


def test_a_user_question_is_answered_by_its_label(alice: Browser, talk: str) -> None:
    session = say(alice, talk, script("Ask.", ask_user("Which color?", "red", "blue"), text("Thanks.")))
    question = question_of(alice, session)
    (choice,) = question["choices"]
    assert (choice["question"], [option["label"] for option in choice["options"]]) == ("Which color?", ["red", "blue"])
    unanswered = answer(alice, question, decision="allow")
    assert (unanswered.status, unanswered.code) == (400, "INVALID_ARGUMENT")
    assert answer(alice, question, decision="allow", answers={"Which color?": "blue"}).status == 200
    assert ended(alice, session).data["code"] == "completed"
    items = alice.get(f"/api/sessions/{session}/turns").json["turns"][-1]["items"]
    assert any("blue" in item.get("result", "") for item in items)


def test_a_session_is_interrupted_continues_is_forked_and_managed(console: Console, alice: Browser) -> None:
    session = start(alice, console, script("Talk.", text(WORDS, chunks=200, interval=0.5)))
    with alice.stream(f"?session={session}") as events:
        until(events, "partial")
    assert alice.post(f"/api/sessions/{session}/interrupt").status == 200
    assert ended(alice, session).data["code"] == "interrupted"
    sent = alice.post(f"/api/sessions/{session}/messages", {"message": script("On.", text("Going on."))})
    assert sent.status == 202
    assert ended(alice, session).data["result"] == "Going on."
    for form, begin in (("markdown", "# "), ("html", "<!doctype html>")):
        exported = alice.post(f"/api/sessions/{session}/export", {"format": form}).json
        assert exported["text"].startswith(begin)
        assert "Going on." in exported["text"]
    copy = alice.post(f"/api/sessions/{session}/fork", {"title": "A copy"})
    assert copy.status == 201
    twin = copy.json["sessionId"]
    assert alice.get(f"/api/sessions/{twin}/turns").json["total"] == 2
    assert alice.post(f"/api/sessions/{twin}/manage", {"action": "rename", "text": "Renamed"}).status == 200
    assert alice.post(f"/api/sessions/{twin}/manage", {"action": "pin"}).status == 200
    first = alice.get("/api/sessions").json["sessions"][0]
    assert (first["sessionId"], first["title"], first["pinned"]) == (twin, "Renamed", True)
    found = alice.get("/api/sessions?text=Renamed").json
    assert [row["sessionId"] for row in found["sessions"]] == [twin]
    assert alice.post(f"/api/sessions/{twin}/manage", {"action": "delete"}).status == 400
    assert alice.post(f"/api/sessions/{twin}/manage", {"action": "delete", "confirm": True}).status == 200
    assert alice.get(f"/api/sessions/{twin}/turns").status == 404
    assert alice.get("/api/costs?by=session").json["total"]["usd"] > 0


def test_mcp_servers_are_listed_and_steered_and_that_is_audited(console: Console, alice: Browser) -> None:
    (server,) = alice.get("/api/mcp-servers").json["servers"]
    assert (server["name"], server["state"]) == ("notes", "disabled")
    steered = alice.post("/api/mcp-servers/notes", {"action": "disable"})
    assert (steered.status, steered.json["servers"][0]["state"]) == (200, "disabled")
    assert alice.post("/api/mcp-servers/unknown", {"action": "disable"}).status == 400
    assert alice.post("/api/mcp-servers/notes", {"action": "explode"}).status == 400
    console.audited('"act": "hub_steered", "who": "alice"')


def test_a_long_result_is_cut_in_the_page_and_whole_by_its_id(console: Console, alice: Browser, talk: str) -> None:
    (console.project / "long.txt").write_text("x" * 30_000 + "\nthe end\n")
    step = tool("Read", file_path=str(console.project / "long.txt"))
    session = say(alice, talk, script("Read.", step, text("Read.")))
    ended(alice, session)
    turn = alice.get(f"/api/sessions/{session}/turns").json["turns"][-1]
    (item, _) = turn["items"]
    assert item["cut"]
    assert "the end" not in item["result"]
    whole = alice.get(f"/api/sessions/{session}/turns/{turn['number']}/items/{item['id']}").json["item"]
    assert "the end" in whole["result"]
    assert "cut" not in whole


def test_secrets_of_the_environment_are_in_nothing_that_the_page_gets(
    console: Console, alice: Browser, talk: str
) -> None:
    secret = console.environment["ANTHROPIC_API_KEY"]
    pieces = text(f"The key is {secret}, keep it.", chunks=40, interval=0.002)
    session = say(alice, talk, script("Leak.", pieces))
    seen = ended(alice, session)
    page = alice.get(f"/api/sessions/{session}/turns").json
    with alice.stream(f"?session={session}&after={page['cursor']}") as events:
        replayed = until(events, "ended")
    everything = json.dumps([seen, page, replayed, alice.get(f"/api/sessions/{session}").json])
    assert "The key is" in everything
    assert secret not in everything.replace(json.dumps(page["turns"][-1]["prompt"]), "")


def test_two_browsers_see_the_same_and_the_first_answer_wins(console: Console, alice: Browser, talk: str) -> None:
    other = console.browser("alice")
    step = tool("Write", file_path=str(console.project / "race.txt"), content="x")
    session = say(alice, talk, script("Race.", step, text("Over.")))
    question = question_of(alice, session)
    assert question_of(other, session)["questionId"] == question["questionId"]
    assert answer(other, question, decision="deny", reason="No.").status == 200
    assert answer(alice, question, decision="allow").status == 409
    ended(alice, session)
    assert not (console.project / "race.txt").exists()


@pytest.mark.soak
def test_after_a_restart_the_same_browser_reads_on_and_its_stream_starts_afresh(
    tmp_path: Path, model: ScriptedModelThread
) -> None:
    with running_console(tmp_path, model.url) as before:
        browser = before.browser("alice")
        session = start(browser, before, script("Say.", text("Before.")))
        last = ended(browser, session).id
        address, tokens = before.base.removeprefix("http://"), before.tokens
    with running_console(tmp_path, model.url, tokens, address) as after:
        assert after.base == browser.base
        assert browser.get("/api/me").json["principal"] == "alice"
        row = browser.get(f"/api/sessions/{session}").json["session"]
        assert (row["status"], row["inMemory"], row["live"]) == ("completed", False, False)
        with browser.stream(f"?session={session}", last_id=last) as events:
            reset = until(events, "reset")[-1]
            turns = browser.get(f"/api/sessions/{session}/turns").json
            assert [turn["items"][-1]["text"] for turn in turns["turns"]] == ["Before."]
            sent = browser.post(f"/api/sessions/{session}/messages", {"message": script("Go.", text("After."))})
            assert sent.status == 202, sent.body
            seen = until(events, "ended")
        assert reset.data["cursor"] is None  # it is on disk alone
        assert seen[-1].data["result"] == "After."


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "prompt"),
        ({"prompt": "x", "nonsense": 1}, "nonsense"),
        ({"prompt": "x", "workingDirectory": "/does/not/exist"}, "workingDirectory"),
    ],
)
def test_a_mistake_in_a_request_names_its_field(alice: Browser, body: Any, field: str) -> None:
    refused = alice.post("/api/sessions", body)
    assert (refused.status, refused.json["error"]["field"]) == (400, field)
