"""Start, message, watch, interrupt: the life of a session as a caller sees it, on every wire."""

from pathlib import Path

import pytest

from claude_code_mcp.testing import Sandbox, ScriptedModelThread
from claude_code_mcp.testing.script import parallel, script, text, tool
from tests.support.waiting import until

from .connection import Connection

SLOW = tool("Bash", command="sh -c 'exec sleep 30' >quiet")


@pytest.mark.promise("create.at-once", "create.options")
def test_creating_a_session_with_options_returns_its_id_while_it_works(
    client: Connection, model: ScriptedModelThread, tmp_path: Path
) -> None:
    calls = parallel(tool("Bash", command="true"), tool("WebFetch", url="x", prompt="y"))
    created = client.create(
        script("go", calls, text("done", until=str(tmp_path / "go"))),
        model="my-own-model",
        permissionMode="acceptEdits",
        allowedTools=["Bash(true)"],
        disallowedTools=["WebFetch"],
        maxTurns=5,
        maxBudgetUsd=10,
        systemPrompt="Speak like a pirate.",
    )
    assert created.data == {"sessionId": created.session, "status": "running"}
    (tmp_path / "go").touch()
    ended = client.look(created.session, waitSeconds=30)
    assert (ended.session, ended.status, ended.data["result"]) == (created.session, "completed", "done")
    request = [request for request in model.requests if request.session_id == ended.session][-1]
    assert request.model == "my-own-model"
    assert "Speak like a pirate." in request.system
    assert "WebFetch" not in request.tools


@pytest.mark.promise("create.directory", "create.wait", "status.result")
def test_a_short_task_in_a_directory_needs_one_call_which_reports_what_it_came_to(
    client: Connection, place: Sandbox
) -> None:
    elsewhere = place.project / "else where"
    elsewhere.mkdir(exist_ok=True)
    prompt = script("go", tool("Bash", command="pwd"), text("in ${tool_result}", usage={"output_tokens": 77}))
    reply = client.create(prompt, workingDirectory=str(elsewhere), allowedTools=["Bash"], waitSeconds=30)
    assert reply.status == "completed"
    assert f"in {elsewhere}" in reply.text
    ended = reply.data
    assert ended["result"] == f"in {elsewhere}"
    assert ended["turnCount"] == 2
    assert ended["costUsd"] > 0
    assert ended["tokens"]["input"] >= 200
    assert ended["tokens"]["output"] >= 77
    assert ended["toolUseEvents"] == [{"toolName": "Bash", "status": "completed"}]
    assert any("pwd" in line for line in ended["recentOutput"])
    assert ended["pendingInputs"] == []
    assert "error" not in ended


@pytest.mark.promise("send.next-turn", "send.wait")
def test_a_message_to_a_finished_session_starts_the_next_turn(client: Connection, warm: str) -> None:
    first = client.send(warm, script("one", "first answer"), waitSeconds=30)
    second = client.send(warm, script("two", "second answer"), waitSeconds=30)
    assert (first.session, second.session) == (warm, warm)
    assert second.data["result"] == "second answer"
    assert second.data["recentOutput"] == ["second answer"], "what came of this message, and nothing older"
    assert second.data["turnCount"] > first.data["turnCount"]


@pytest.mark.promise("send.into-turn")
def test_a_message_to_a_running_session_joins_its_turn(
    client: Connection, warm: str, model: ScriptedModelThread
) -> None:
    prompt = script("go", tool("Bash", command="echo one >there"), "finished")
    waiting = client.send(warm, prompt, waitSeconds=30)
    sent = client.send(warm, "and hurry, please")
    assert sent.status == "waiting_for_input", "the question stays open"
    ended = client.respond(waiting, "allow", waitSeconds=30)
    while ended.status == "running":
        ended = client.look(warm, waitSeconds=30)
    assert ended.status == "completed"
    bodies = [str(request.body) for request in model.requests if request.session_id == warm]
    assert any("and hurry, please" in body for body in bodies)


@pytest.mark.promise("status.wakes-on-question")
def test_a_waiting_call_returns_when_a_question_opens(client: Connection, warm: str) -> None:
    sent = client.send(warm, script("go", tool("Bash", command="echo hi >there"), "ok"))
    asked = client.look(sent.session, waitSeconds=50)
    assert asked.status == "waiting_for_input"
    question = asked.question
    assert (question["type"], question["toolName"]) == ("permission", "Bash")
    assert question["toolInput"]["command"] == "echo hi >there"
    assert "echo hi" in question["description"]
    assert question["inputId"] in asked.text
    client.respond(asked, "deny", waitSeconds=30)


@pytest.mark.promise("status.wakes-on-end", "status.time-passes")
def test_a_waiting_call_returns_at_the_end_of_the_turn_or_of_its_time(
    client: Connection, warm: str, tmp_path: Path
) -> None:
    client.send(warm, script("go", text("late", until=str(tmp_path / "go"))))
    early = client.look(warm, waitSeconds=0.1)
    (tmp_path / "go").touch()
    assert early.status == "running"
    assert "result" not in early.data
    ended = client.look(warm, waitSeconds=55)
    assert (ended.status, ended.data["result"]) == ("completed", "late")


@pytest.mark.promise("status.writing")
def test_the_line_that_is_being_written_is_shown_without_a_cursor(
    client: Connection, warm: str, tmp_path: Path
) -> None:
    cursor = client.look(warm).data["nextCursor"]
    client.send(warm, script("go", text("first\nhalf a sentence", chunks=3, until=str(tmp_path / "go"))))
    until(lambda: client.look(warm).data["recentOutput"][-1].startswith("half"))
    assert client.look(warm).data["recentOutput"][-2] == "first"
    assert client.look(warm, outputLines=1).data["recentOutput"][-1].startswith("half")
    assert client.look(warm, cursor=cursor).data["recentOutput"] == ["first"], "whole lines alone come once each"
    (tmp_path / "go").touch()
    assert client.look(warm, waitSeconds=55).data["recentOutput"][-2:] == ["first", "half a sentence"]


@pytest.mark.promise("status.cursor")
def test_each_line_comes_exactly_once(client: Connection, warm: str) -> None:
    cursor = client.look(warm).data["nextCursor"]
    lines = [f"line {number}" for number in range(40)]
    client.send(warm, script("go", text("\n".join(lines), chunks=40, interval=0.01)))
    output: list[str] = []
    status = "running"
    while status == "running":
        report = client.look(warm, cursor=cursor, waitSeconds=0.1).data
        status, cursor = report["status"], report["nextCursor"]
        output += report["recentOutput"]
    assert output == lines
    assert client.look(warm, cursor=cursor).data["recentOutput"] == []


@pytest.mark.promise("status.budget")
def test_a_giant_event_neither_floods_nor_stops_the_cursor(client: Connection, warm: str) -> None:
    cursor = client.look(warm).data["nextCursor"]
    giant = "x" * 30_000
    client.send(warm, script("go", text(f"before\n{giant}\n{giant}\nafter")), waitSeconds=30)
    pages, more = [], True
    while more:
        reply = client.look(warm, cursor=cursor)
        page = reply.data
        assert sum(map(len, page["recentOutput"])) < 26_000
        assert page["nextCursor"] != cursor
        cursor, more = page["nextCursor"], page.get("hasMore", False)
        assert more == (f"cursor {cursor}" in reply.text)
        pages.append(page["recentOutput"])
    lines = [line for page in pages for line in page]
    assert len(pages) >= 3
    assert [line[:6] for line in lines] == ["before", "xxxxxx", "xxxxxx", "after"]
    assert "cut 6000 of 30000 characters" in lines[1]
    assert "cut 36014 of 60014 characters" in client.look(warm).data["result"]


@pytest.mark.promise("status.lines")
def test_output_lines_says_how_many_lines_come(client: Connection, warm: str) -> None:
    cursor = client.look(warm).data["nextCursor"]
    client.send(warm, script("go", text("\n".join(f"{number}" for number in range(60)))), waitSeconds=30)
    assert client.look(warm, outputLines=3).data["recentOutput"] == ["57", "58", "59"]
    assert client.look(warm, outputLines=0).data["recentOutput"] == []
    assert len(client.look(warm).data["recentOutput"]) == 50
    page = client.look(warm, cursor=cursor, outputLines=2).data
    assert (page["recentOutput"], page["hasMore"]) == (["0", "1"], True)
    assert client.look(warm, cursor=page["nextCursor"], outputLines=1).data["recentOutput"] == ["2"]


@pytest.mark.promise("status.cursor")
def test_a_cursor_of_another_life_of_the_session_gets_everything_and_a_notice(client: Connection, warm: str) -> None:
    client.send(warm, script("go", "fresh words"), waitSeconds=30)
    foreign = client.look(warm, cursor="0123abcd-1").data
    assert "restarts" in foreign.pop("notice")
    own = client.look(warm, cursor="0").data
    # The memory is measured now and then, and what the process does behind its turn counts for the cursor.
    life = {status.pop("nextCursor").partition("-")[0] for status in (foreign, own)}
    assert len(life) == 1
    assert {**foreign, "memoryBytes": 0} == {**own, "memoryBytes": 0}


@pytest.mark.promise("interrupt.stops", "interrupt.resume")
def test_an_interrupted_session_takes_the_next_message(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", SLOW, "never"), waitSeconds=30)
    client.respond(asked, "allow")
    assert client.interrupt(warm).data == {"sessionId": warm, "status": "interrupted"}
    report = client.look(warm).data
    assert report["status"] == "interrupted"
    assert report["error"]["code"] == "interrupted"
    assert client.send(warm, script("on", "here again"), waitSeconds=30).data["result"] == "here again"
    assert client.interrupt(warm).status == "completed", "nothing was running"


@pytest.mark.promise("interrupt.stops")
def test_an_interruption_closes_the_open_question(client: Connection, warm: str) -> None:
    asked = client.send(warm, script("go", SLOW, "never"), waitSeconds=30)
    client.interrupt(warm)
    assert client.look(warm).data["pendingInputs"] == []
    assert "withdrawn" in client.respond(asked, "allow").refusal


@pytest.mark.promise("tools.cancelled")
def test_a_cancelled_call_leaves_the_session_running(client: Connection, warm: str, tmp_path: Path) -> None:
    client.send(warm, script("go", text("still there", until=str(tmp_path / "go"))))
    waiting = client.start("claude_get_status", sessionId=warm, waitSeconds=50)
    assert not waiting.done()
    waiting.cancel()
    assert client.look(warm).status == "running"
    (tmp_path / "go").touch()
    ended = client.look(warm, waitSeconds=30)
    assert (ended.status, ended.data["result"]) == ("completed", "still there")
