"""The hub's servers inside real Claude Code sessions."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from claude_code_mcp.core.claude.protocol import ControlRequest, parse_frame
from claude_code_mcp.core.errors import InvalidArgument
from claude_code_mcp.core.model.events import Output
from claude_code_mcp.core.model.outcome import OutcomeCode
from claude_code_mcp.core.model.question import QuestionKind
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing import ScriptedModelThread
from claude_code_mcp.testing.script import tool

from .conftest import A_SERVER, LONG, ON_SHARED_LOOP, Rig, StartRig, pids, program, rules, shared_rig, until


def offered(rig: Rig, session_id: str) -> set[str]:
    """The MCP tools in the last request to the model."""
    requests = [one for one in rig.model.requests if one.session_id == session_id]
    return {name for name in requests[-1].tools if name.startswith("mcp__")}


# -- one living session, turn by turn ------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory, model: ScriptedModelThread) -> AsyncIterator[Rig]:
    # A server that has asked a question has a process for each session from then on; `calm` asks none.
    servers = {"x": program(), "calm": program(A_SERVER, "calm")}
    async with shared_rig(tmp_path_factory.mktemp("bridge"), model, servers) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(rig: Rig) -> Session:
    """A session that must ask before it uses `echo` and `wait` of the server, and nothing else of it."""
    free = ("pid", "progress", "change", "new10", "ask")
    allowed = (*(f"mcp__x__{name}" for name in free), "mcp__calm__pid")
    started, _ = await rig.first("hello", allowed_tools=allowed)
    return started


@ON_SHARED_LOOP
async def test_several_sessions_share_one_process_and_see_it_under_its_own_name(rig: Rig, session: Session) -> None:
    mine = await rig.say(session, tool("mcp__calm__pid"), "${tool_result}")
    other, output = await rig.first(tool("mcp__calm__pid"), "${tool_result}", allowed_tools=("mcp__calm__pid",))
    assert len(pids([mine.result, output])) == 1
    for each in (session, other):
        assert {"mcp__x__echo", "mcp__calm__echo"} <= offered(rig, each.id)


@ON_SHARED_LOOP
async def test_permission_is_asked_for_as_for_any_tool(rig: Rig, session: Session) -> None:
    ending = await rig.begin(session, tool("mcp__x__echo", word="hello"), "${tool_result}")
    await session.wait(LONG)
    (question,) = session.questions
    assert question.tool_name == "mcp__x__echo"
    assert dict(question.tool_input) == {"word": "hello"}
    rig.allow(session)
    assert (await ending).result == '{"word": "hello"}'


@ON_SHARED_LOOP
async def test_a_denied_question_never_reaches_the_server(rig: Rig, session: Session, tmp_path: Path) -> None:
    note = tmp_path / "note"
    ending = await rig.begin(session, tool("mcp__x__wait", note=str(note)), "done")
    await session.wait(LONG)
    rig.allow(session, allow=False)
    assert (await ending).result == "done"
    assert not note.exists()


@ON_SHARED_LOOP
async def test_progress_of_a_server_reaches_those_who_watch_the_session(rig: Rig, session: Session) -> None:
    await rig.say(session, tool("mcp__x__progress"), "${tool_result}")
    lines = [event.line for event in session.log.after(0) if isinstance(event, Output)]
    assert "[progress] x: 1 of 3 step 1" in lines


@ON_SHARED_LOOP
async def test_a_changed_list_of_tools_reaches_a_living_session(rig: Rig, session: Session) -> None:
    pid = session.pid
    await rig.say(session, tool("mcp__x__change"), "changed")
    outcome = await rig.say(session, tool("mcp__x__new10"), "${tool_result}")
    assert outcome.result == "new10"
    assert "mcp__x__new10" in offered(rig, session.id)
    assert session.pid == pid


@ON_SHARED_LOOP
async def test_a_killed_server_is_back_for_the_next_call(rig: Rig, session: Session) -> None:
    pid = int((await rig.say(session, tool("mcp__x__pid"), "${tool_result}")).result.split()[0])
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid))
    outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert int(outcome.result.split()[0]) != pid


@ON_SHARED_LOOP
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"answers": ["Ada"]}, {"action": "accept", "content": {"name": "Ada"}}),
        ({"allow": False}, {"action": "decline"}),
    ],
    ids=["answered", "denied"],
)
async def test_server_form_goes_to_the_person_who_answers_the_session(
    rig: Rig, session: Session, answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    ending = await rig.begin(session, tool("mcp__x__ask"), "${tool_result}")
    await session.wait(LONG)
    (question,) = session.questions
    assert question.kind is QuestionKind.SERVER_FORM
    assert question.choices[0].question.startswith("x asks: ")
    rig.allow(session, **answer)
    assert json.loads((await ending).result) == expected


@ON_SHARED_LOOP
async def test_unanswered_form_ends_with_the_turn(rig: Rig, session: Session) -> None:
    ending = await rig.begin(session, tool("mcp__x__ask"), "${tool_result}")
    await session.wait(LONG)
    await session.interrupt()
    assert (await ending).code is OutcomeCode.INTERRUPTED
    assert session.questions == []


@ON_SHARED_LOOP
async def test_a_server_that_is_disabled_in_mid_session_answers_again_once_it_is_enabled(
    rig: Rig, session: Session
) -> None:
    """Claude Code hears that the tool is gone, or the call comes before that and is refused by the hub."""
    rig.hub.disable("x")
    outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert any(words in outcome.result for words in ("No such tool available", "disabled manually"))
    rig.hub.enable("x")
    async with asyncio.timeout(LONG):
        while not outcome.result.split()[0].isdecimal():
            outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")


@pytest.mark.soak
@ON_SHARED_LOOP
async def test_a_parked_session_finds_the_servers_again(rig: Rig, session: Session) -> None:
    first = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    session.park()
    await until(lambda: session.process.dormant)
    outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert pids([first.result, outcome.result]) == {first.result.split()[0]}


@pytest.mark.soak  # test_command.py
@ON_SHARED_LOOP
async def test_a_session_that_asks_for_no_server_gets_none(rig: Rig) -> None:
    none, _ = await rig.first("hello", hub_servers=())
    assert offered(rig, none.id) == set()
    with pytest.raises(InvalidArgument, match="no server 'z'"):
        await rig.create("hello", hub_servers=("z",))


# -- sessions that begin otherwise ---------------------------------------------------------------------------------


async def test_the_policy_decides_without_asking(start_rig: StartRig) -> None:
    policy = rules('allow = ["mcp__x__echo"]\ndeny = ["mcp__x__pid"]')
    rig: Rig = await start_rig({"x": program()}, policy)
    calls = tool("mcp__x__echo", word="hi"), tool("mcp__x__pid")
    session, _ = await rig.first(*calls, "done", allowed_tools=("mcp__x__pid",))
    requests = [request for request in rig.model.requests if request.session_id == session.id]
    echoed, refused = [result.text for request in requests for result in request.tool_results]
    assert echoed == '{"word": "hi"}'
    assert "No such tool available" in refused
    assert "mcp__x__pid" not in offered(rig, session.id)


@pytest.mark.soak
async def test_broken_servers_keep_no_session_from_working(start_rig: StartRig) -> None:
    broken = {fault: program(A_SERVER, fault) for fault in ("hang", "mute", "brief")}
    rig: Rig = await start_rig({"x": program(), **broken, "missing": {"command": "/nowhere/at/all"}})
    session, output = await rig.first(tool("mcp__x__echo", a=1), "${tool_result}")
    assert output == '{"a": 1}'
    assert {"x"} <= {name.split("__")[1] for name in offered(rig, session.id)} <= {"x", "brief"}


@pytest.mark.soak
async def test_a_session_that_begins_in_a_spare_process_has_the_servers_too(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()}, spare_processes=1)
    await rig.first("nothing to do")
    await rig.service.spares.settled()
    (spare,) = rig.service._sessions.spares._ready
    session, _ = await rig.first(tool("mcp__x__progress"), "${tool_result}")
    assert session.id == spare.id
    assert "mcp__x__echo" in offered(rig, session.id)
    assert "[progress] x: 1 of 3 step 1" in [one.line for one in session.log.after(0) if isinstance(one, Output)]


@ON_SHARED_LOOP
async def test_a_call_that_is_permitted_after_its_process_was_left_never_reaches_the_server(
    rig: Rig, session: Session, tmp_path: Path
) -> None:
    """A person may answer just when the process is being closed."""
    await rig.say(session, "ready")
    live, note, permitted = session.process.live, tmp_path / "note", asyncio.Event()
    assert live is not None
    assert live.bridge is not None
    assert live.process is not None

    async def permit() -> None:
        await permitted.wait()

    params = {"name": "wait", "arguments": {"note": str(note)}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    request = {"subtype": "mcp_message", "server_name": "x", "message": message}
    frame = parse_frame(json.dumps({"type": "control_request", "request_id": "late", "request": request}).encode())
    assert isinstance(frame, ControlRequest)
    answering = asyncio.ensure_future(live.bridge.answer(live.process, frame, permit))
    await asyncio.sleep(0)
    session.park()
    permitted.set()
    await asyncio.wait_for(answering, LONG)
    await session.closed()
    await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert not note.exists()
