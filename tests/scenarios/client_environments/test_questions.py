"""Questions on a server with several clients: who is asked, who may answer, and what the others are told."""

import asyncio
from pathlib import Path

import pytest

from claude_code_mcp.server.tools import progress
from claude_code_mcp.testing.script import Step, script, text, tool
from tests.server.connection import Reply

from .conftest import LEGACY, LONG, MODERN, ConnectedClient, MakePlace, Place, Server


def write(place: Place, name: str) -> Step:
    return tool("Write", file_path=str(place.sandbox.project / name), content="x")


def waiting_for(caller: ConnectedClient, session: str) -> "asyncio.Task[Reply]":
    return caller.start("claude_get_status", sessionId=session, waitSeconds=40)


async def test_all_that_are_concerned_are_asked_and_the_first_answer_wins(
    server: Server, make_place: MakePlace
) -> None:
    place = make_place("ann")
    maker = await server.connect(place.client("one"), can_be_asked=True, name="maker")
    editor = await server.connect(place.client("two"), can_be_asked=True, name="an editor")
    stranger = await server.connect(place.client("three"), can_be_asked=True, name="stranger")
    mute = await server.connect(make_place("bob").client("four"), name="mute")
    await stranger.call("claude_list_sessions")
    begun = maker.start("claude_create_session", prompt=script("go", write(place, "new"), "done"), waitSeconds=40)
    first = await maker.dialog()
    (session,) = [one.id for one in server.service.sessions()]
    looked = await mute.look(session)
    watching = waiting_for(editor, session)
    second = await editor.dialog()
    assert second.params.message == first.params.message
    second.accept(decision="Allow once")
    await asyncio.wait_for(first.withdrawn.wait(), LONG)
    ended, watched = await begun, await watching
    assert ended.data["result"] == watched.data["result"] == "done"
    assert "already answered by elicitation (an editor)" in ended.data["notice"]
    assert "notice" not in watched.data
    assert stranger.dialogs.empty()
    late = await mute.call(
        "claude_respond", sessionId=session, inputId=looked.question["inputId"], decision="deny", reason="too late"
    )
    assert "already answered by elicitation (an editor)" in late.refusal
    assert (place.sandbox.project / "new").exists()


@pytest.mark.soak
async def test_queue_answer_withdraws_the_dialogs(
    server: Server, make_place: MakePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PROGRESS_INTERVAL", 10 * LONG)  # who answered is told before the result
    place = make_place("ann")
    one, two = [await server.connect(place.client(name), can_be_asked=True, name=name) for name in ("one", "two")]
    mute = await server.connect(place.client("mute"), name="a script")
    gate = tmp_path / "go"
    prompt = script("go", write(place, "new"), text("done", until=str(gate)))
    calls = [one.start("claude_code", prompt=prompt, permissionMode="default")]
    dialogs = [await one.dialog()]
    looked = await mute.look(server.service.sessions()[0].id)
    calls.append(waiting_for(two, looked.session))
    dialogs.append(await two.dialog())
    await mute.call("claude_respond", sessionId=looked.session, inputId=looked.question["inputId"], decision="allow")
    for dialog in dialogs:
        await asyncio.wait_for(dialog.withdrawn.wait(), LONG)
    gate.touch()
    for call in calls:
        assert (await call).data["result"] == "done"
    assert any("was allowed by claude_respond (a script)" in line for line in one.progress)


@pytest.mark.soak  # too late: tests/server/test_dialogs.py
async def test_calls_of_2026_return_the_question_and_a_late_answer_names_the_first(
    server: Server, make_place: MakePlace
) -> None:
    place = make_place("ann")
    one = await server.connect(place.client("one"), mode=MODERN, can_be_asked=True, name="one")
    two = await server.connect(place.client("two"), mode=MODERN, can_be_asked=True, name="two")
    begun = one.start("claude_create_session", prompt=script("go", write(place, "new"), "done"), waitSeconds=40)
    first = await one.dialog()
    (session,) = [one.id for one in server.service.sessions()]
    watching = waiting_for(two, session)
    (await two.dialog()).accept(decision="Allow once")
    assert (await watching).data["result"] == "done"
    first.accept(decision="Deny", reason="too late")
    ended = await begun
    assert ended.data["result"] == "done"
    assert "came too late" in ended.data["notice"]
    assert "already answered by elicitation (two)" in ended.data["notice"]


@pytest.mark.soak  # tests/server/test_dialogs.py
async def test_to_dismiss_a_question_in_one_client_leaves_it_to_the_others(
    server: Server, make_place: MakePlace
) -> None:
    place = make_place("ann")
    one = await server.connect(place.client("one"), mode=MODERN, can_be_asked=True)
    two = await server.connect(place.client("two"), mode=MODERN, can_be_asked=True)
    begun = one.start("claude_create_session", prompt=script("go", write(place, "new"), "done"), waitSeconds=40)
    (await one.dialog()).cancel()
    left = await begun
    assert left.status == "waiting_for_input"
    watching = waiting_for(two, left.session)
    (await two.dialog()).accept(decision="Allow once")
    assert (await watching).data["result"] == "done"


@pytest.mark.parametrize("mode", [LEGACY, pytest.param(MODERN, marks=pytest.mark.soak)])
async def test_a_client_that_comes_back_finds_its_session_and_its_question(
    server: Server, make_place: MakePlace, mode: str
) -> None:
    place = make_place("ann")
    before = await server.connect(place.client("before"), mode=mode, can_be_asked=True)
    call = before.start("claude_create_session", prompt=script("go", write(place, "new"), "done"), waitSeconds=40)
    await before.dialog()
    (running,) = server.service.sessions()
    before.leave()
    await asyncio.wait_for(before.gone, LONG)
    call.cancel()
    assert running.questions, "it waits"
    after = await server.connect(place.client("after"), mode=mode, can_be_asked=True)
    (listed,) = (await after.call("claude_list_sessions")).data["sessions"]
    assert listed["activeStatus"] == "waiting_for_input"
    watching = waiting_for(after, listed["sessionId"])
    (await after.dialog()).accept(decision="Allow once")
    assert (await watching).data["result"] == "done"
    assert len(server.mcp._connections) == 1, "nothing is kept for the one that left"
