"""Sessions as things, as a caller sees them: read, looked after, counted."""

import asyncio
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.core.errors import SessionNotFound
from claude_code_mcp.core.model.caller import Caller
from claude_code_mcp.core.service import Service
from claude_code_mcp.core.state.session_marks import Mark
from claude_code_mcp.testing import Sandbox
from claude_code_mcp.testing.script import script, text, tool
from tests.conftest import StartService
from tests.core.sessions.support import end_of, options, parked

from .conftest import StartCaller, ToolCaller

CARE = "sessions,code,care"


async def a_session(caller: ToolCaller, prompt: str = "Greet", *steps: Any) -> str:
    report = await caller.ok("claude_code", prompt=script(prompt, *(steps or ("hello there",))), allowedTools=["Bash"])
    await parked(caller.session(report))
    return str(report["sessionId"])


@pytest.mark.soak  # tests/core/transcripts/test_conversation.py
async def test_a_session_is_read_in_pages_that_are_the_whole(caller: ToolCaller) -> None:
    long = "\n".join(f"line {number} of a long answer" for number in range(3000))
    session_id = await a_session(caller, "Talk", tool("Bash", command="echo seen"), long)
    read, cursor, pages = "", "1", 0
    while cursor:
        page = await caller.ok("claude_read_session", sessionId=session_id, cursor=cursor)
        assert len(page["transcript"]) <= 24_000
        read, cursor, pages = read + page["transcript"], page.get("nextCursor", ""), pages + 1
    assert long in read
    assert "[Bash] echo seen\n[ok] seen" in read
    assert pages > 2
    assert page["turns"] == 1
    assert page["title"].startswith("Talk")
    wrong = ({"cursor": "next"}, {"agent": "../../../etc/passwd"}, {"sessionId": "x"})
    for arguments in wrong:
        (field,) = arguments
        code, message = await caller.refused("claude_read_session", **{"sessionId": session_id, **arguments})
        assert (code, message.startswith(field)) == ("INVALID_ARGUMENT", True), message


@pytest.mark.soak  # test_list_sessions.py, test_restart.py
async def test_the_list_has_pages_and_finds_what_was_said_and_a_status_survives_a_restart(
    caller: ToolCaller, start_caller: StartCaller
) -> None:
    work = (tool("Bash", command="echo seen"), tool("Bash", command="exit 3"))
    made = [await a_session(caller, "number 0", "an okapi"), await a_session(caller, "number 1", *work, "an okapi")]
    status = {"sessionId": made[1], "outputLines": 1000}
    status_report = await caller.ok("claude_get_status", **status)
    after: ToolCaller = await start_caller()
    again = await after.ok("claude_get_status", **status)
    for report in (status_report, again):
        del report["nextCursor"]
    assert again == status_report
    first = await caller.ok("claude_list_sessions", limit=1)
    second = await caller.ok("claude_list_sessions", limit=1, offset=first["nextOffset"])
    assert [row["sessionId"] for row in first["sessions"] + second["sessions"]] == made[::-1]
    assert "nextOffset" not in second
    row = second["sessions"][0]
    assert (row["messages"], row["model"]) == (2, "claude-opus-5-5")
    assert row["costUsd"] > 0
    assert (await caller.ok("claude_list_sessions", text="nothing like it"))["sessions"] == []
    (found,) = (await caller.ok("claude_list_sessions", text="number 1"))["sessions"]
    assert found["sessionId"] == made[1]


@pytest.mark.soak  # tests/cli/test_sessions.py
async def test_session_is_managed(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(toolsets=CARE)
    session_id = await a_session(caller)
    await costs_are_told_in_groups(caller, session_id)
    manage = "claude_manage_session"
    await caller.ok(manage, sessionId=session_id, action="rename", text="My kitchen")
    await caller.ok(manage, sessionId=session_id, action="tag", text="cooking")
    await caller.ok(manage, sessionId=session_id, action="pin")
    newer = await a_session(caller)
    rows = (await caller.ok("claude_list_sessions"))["sessions"]
    assert [row["sessionId"] for row in rows] == [session_id, newer]
    assert (rows[0]["displayText"], rows[0]["tag"], rows[0]["pinned"]) == ("My kitchen", "cooking", True)
    await caller.ok(manage, sessionId=session_id, action="archive")
    assert [row["sessionId"] for row in (await caller.ok("claude_list_sessions"))["sessions"]] == [newer]
    assert len((await caller.ok("claude_list_sessions", archived=True))["sessions"]) == 1
    fork = (await caller.ok(manage, sessionId=session_id, action="fork", text="Another kitchen"))["sessionId"]
    assert (await caller.ok("claude_read_session", sessionId=fork))["title"] == "Another kitchen"
    exported = await caller.ok(manage, sessionId=session_id, action="export", format="html")
    assert "hello there" in await asyncio.to_thread(Path(exported["path"]).read_text)
    assert (await caller.refused(manage, sessionId=session_id, action="rename"))[0] == "INVALID_ARGUMENT"
    # Where nobody can be asked, it is deleted only on the caller's word.
    code, message = await caller.refused(manage, sessionId=newer, action="delete")
    assert (code, "confirm" in message) == ("PERMISSION_DENIED", True)
    await caller.ok(manage, sessionId=newer, action="delete", confirm=True)
    assert newer not in [row["sessionId"] for row in (await caller.ok("claude_list_sessions"))["sessions"]]


@pytest.mark.soak  # tests/plugins/fleet/test_handover.py
async def test_a_session_is_given_away_after_its_turn_and_in_a_fleet_alone(
    start_caller: StartCaller, tmp_path: Path
) -> None:
    caller: ToolCaller = await start_caller(toolsets=CARE)
    manage, session_id = "claude_manage_session", await a_session(caller)
    code, message = await caller.refused(manage, sessionId=session_id, action="move")
    assert (code, "sessions can be moved only in a fleet" in message) == ("INVALID_ARGUMENT", True)
    given: list[tuple[str, bool, bool]] = []

    async def release(name: str, _: Caller, /, *, without_tree: bool) -> None:
        given.append((name, caller.service.session(name).busy, without_tree))

    caller.service.relocation.release_for_move = release
    slow = script("Slow", text("at last", until=str(tmp_path / "go")))
    await caller.ok("claude_send_message", sessionId=session_id, message=slow)
    moving = asyncio.ensure_future(caller.ok(manage, sessionId=session_id, action="move", wait=True, confirm=True))
    await caller.ok("claude_get_status", sessionId=session_id)  # answered after the move was asked for
    assert given == []
    (tmp_path / "go").touch()
    await moving
    assert given == [(session_id, False, True)]


async def costs_are_told_in_groups(caller: ToolCaller, session_id: str) -> None:
    for by, name in (("session", session_id), ("project", str(caller.sandbox.project)), ("model", "claude-opus-5-5")):
        costs = await caller.ok("claude_session_costs", by=by)
        assert [line["name"] for line in costs["lines"]] == [name]
        assert costs["total"]["usd"] > 0
        assert costs["total"]["sessions"] == 1
    assert (await caller.refused("claude_session_costs", since="yesterday"))[0] == "INVALID_ARGUMENT"


# That a person confirms is tested in both eras with the bypass of permissions.
@pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.soak), "2026-07-28"])
async def test_a_person_is_asked_before_a_session_is_deleted(start_caller: StartCaller, mode: str) -> None:
    asked: list[str] = []
    answers = [types.ElicitResult(action="decline"), types.ElicitResult(action="accept", content={"confirm": True})]

    async def person(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return answers[len(asked) - 1]

    caller: ToolCaller = await start_caller(mode, person, toolsets=CARE)
    session_id = await a_session(caller, "Greet the people")
    refused = await caller.refused("claude_manage_session", sessionId=session_id, action="delete")
    assert refused[0] == "PERMISSION_DENIED"
    assert (await caller.ok("claude_read_session", sessionId=session_id))["turns"] == 1
    await caller.ok("claude_manage_session", sessionId=session_id, action="delete")
    assert len(asked) == 2
    assert "Greet the people" in asked[0]
    assert session_id in asked[0]
    assert (await caller.refused("claude_read_session", sessionId=session_id))[0] == "SESSION_NOT_FOUND"


async def test_session_of_another_caller_cannot_be_changed(start_service: StartService, sandbox: Sandbox) -> None:
    service: Service = await start_service()
    turn = await service.create(script("mine", "alone"), options(sandbox), caller=Caller("alice"))
    await end_of(turn)
    session_id = turn.session.id
    await parked(turn.session)
    for server in (service, await start_service()):  # in memory, and on disk alone
        for act in (
            server.stored.read(session_id, caller=Caller("bob")),
            server.stored.rename(session_id, "his", caller=Caller("bob")),
            server.stored.tag(session_id, "his", caller=Caller("bob")),
            server.stored.mark(session_id, Mark.PINNED, True, caller=Caller("bob")),
            server.stored.copy(session_id, caller=Caller("bob")),
            server.stored.export(session_id, "html", caller=Caller("bob")),
            server.stored.delete(session_id, caller=Caller("bob")),
            anext(server.stored.follow(session_id, caller=Caller("bob"))),
        ):
            with pytest.raises(SessionNotFound):
                await act
        assert await server.stored.entries(caller=Caller("bob"), text="mine", whole=True) == []
        assert (await server.stored.costs("session", caller=Caller("bob"))).lines == []
        (entry,) = await server.stored.entries(caller=Caller("alice"), text="mine")
        assert (entry.session_id, entry.title, entry.pinned) == (session_id, None, False)
    copy = await service.stored.copy(session_id, caller=Caller("alice"))
    assert {entry.session_id for entry in await service.stored.entries(caller=Caller("alice"))} == {session_id, copy}
    with pytest.raises(SessionNotFound):
        await service.stored.read(copy, caller=Caller("bob"))


@pytest.mark.soak  # how texts are cut: tests/core/model/test_text.py
async def test_a_long_prompt_of_a_session_that_is_not_kept_is_cut_in_the_list(caller: ToolCaller) -> None:
    prompt = script("x" * 500_000, "done")
    report = await caller.ok("claude_code", prompt=prompt, persistSession=False)
    listed = await caller.ok("claude_list_sessions")
    [row] = [row for row in listed["sessions"] if row["sessionId"] == report["sessionId"]]
    assert row["displayText"].startswith("xxx")
    assert len(row["displayText"]) <= 200
