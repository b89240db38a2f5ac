"""The hub's servers inside real Claude Code sessions."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from claude_code_mcp.errors import InvalidArgument
from claude_code_mcp.model.events import Output
from claude_code_mcp.model.outcome import OutcomeCode
from claude_code_mcp.model.question import QuestionKind
from claude_code_mcp.testing.script import tool

from .conftest import A_SERVER, LONG, Rig, StartRig, pids, program, rules, until


def offered(rig: Rig, session_id: str) -> set[str]:
    """The MCP tools in the last request to the model."""
    requests = [one for one in rig.model.requests if one.session_id == session_id]
    return {name for name in requests[-1].tools if name.startswith("mcp__")}


async def test_several_sessions_share_one_process_and_see_it_under_its_own_name(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    told = await asyncio.gather(*(rig.first(tool("mcp__x__pid"), "${tool_result}") for _ in range(3)))
    assert len(pids([result for _, result in told])) == 1
    for session, _ in told:
        assert "mcp__x__echo" in offered(rig, session.id)


async def test_permission_is_asked_for_as_for_any_tool(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, ending = await rig.create(tool("mcp__x__echo", word="hello"), "${tool_result}", allowed_tools=())
    await session.wait(LONG)
    (question,) = session.questions
    assert question.tool_name == "mcp__x__echo"
    assert dict(question.tool_input) == {"word": "hello"}
    rig.allow(session)
    assert (await ending).result == '{"word": "hello"}'


async def test_a_denied_question_never_reaches_the_server(start_rig: StartRig, tmp_path: Path) -> None:
    rig: Rig = await start_rig({"x": program()})
    note = tmp_path / "note"
    session, ending = await rig.create(tool("mcp__x__wait", note=str(note)), "done", allowed_tools=())
    await session.wait(LONG)
    rig.allow(session, allow=False)
    assert (await ending).result == "done"
    assert not note.exists()


async def test_the_policy_decides_without_asking(start_rig: StartRig) -> None:
    policy = rules('allow = ["mcp__x__echo"]\ndeny = ["mcp__x__pid"]')
    rig: Rig = await start_rig({"x": program()}, policy)
    _, echoed = await rig.first(tool("mcp__x__echo", word="hi"), "${tool_result}", allowed_tools=())
    assert echoed == '{"word": "hi"}'
    session, refused = await rig.first(tool("mcp__x__pid"), "${tool_result}")
    assert "No such tool available" in refused
    assert "mcp__x__pid" not in offered(rig, session.id)


async def test_progress_of_a_server_reaches_those_who_watch_the_session(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, _ = await rig.first(tool("mcp__x__progress"), "${tool_result}")
    lines = [event.line for event in session.log.after(0) if isinstance(event, Output)]
    assert "[progress] x: 1 of 3 step 1" in lines


async def test_a_changed_list_of_tools_reaches_a_living_session(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, _ = await rig.first(tool("mcp__x__change"), "changed")
    pid = session.pid
    outcome = await rig.say(session, tool("mcp__x__new10"), "${tool_result}")
    assert outcome.result == "new10"
    assert "mcp__x__new10" in offered(rig, session.id)
    assert session.pid == pid


async def test_a_session_gets_only_the_servers_it_asks_for(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program(), "y": program()})
    session, _ = await rig.first("hello", hub_servers=("y",))
    assert {name.split("__")[1] for name in offered(rig, session.id)} == {"y"}
    none, _ = await rig.first("hello", hub_servers=())
    assert offered(rig, none.id) == set()
    with pytest.raises(InvalidArgument, match="no server 'z'"):
        await rig.create("hello", hub_servers=("z",))


@pytest.mark.parametrize("fault", ["hang", "mute", "brief"])
async def test_a_broken_server_keeps_no_session_from_working(start_rig: StartRig, fault: str) -> None:
    rig: Rig = await start_rig({"x": program(), "bad": program(A_SERVER, fault)})
    _, told = await rig.first(tool("mcp__x__echo", a=1), "${tool_result}")
    assert told == '{"a": 1}'


async def test_a_server_that_does_not_exist_keeps_no_session_from_working(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program(), "bad": {"command": "/nowhere/at/all"}})
    session, told = await rig.first(tool("mcp__x__echo", a=1), "${tool_result}")
    assert told == '{"a": 1}'
    assert {name.split("__")[1] for name in offered(rig, session.id)} == {"x"}


async def test_a_killed_server_is_back_for_the_next_call(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, first = await rig.first(tool("mcp__x__pid"), "${tool_result}")
    pid = int(first.split()[0])
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not psutil.pid_exists(pid))
    outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert outcome.result is not None
    assert int(outcome.result.split()[0]) != pid


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"answers": ["Ada"]}, {"action": "accept", "content": {"name": "Ada"}}),
        ({"allow": False}, {"action": "decline"}),
    ],
    ids=["answered", "denied"],
)
async def test_a_form_of_a_server_is_put_to_whoever_answers_the_session(
    start_rig: StartRig, answer: dict[str, Any], expected: dict[str, Any]
) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, ending = await rig.create(tool("mcp__x__ask"), "${tool_result}")
    await session.wait(LONG)
    (question,) = session.questions
    assert question.kind is QuestionKind.USER_QUESTION
    assert question.choices[0].question.startswith("x asks: ")
    rig.allow(session, **answer)
    assert json.loads((await ending).result) == expected


async def test_a_form_that_nobody_fills_in_goes_with_the_turn(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, ending = await rig.create(tool("mcp__x__ask"), "${tool_result}")
    await session.wait(LONG)
    await session.interrupt()
    assert (await ending).code is OutcomeCode.INTERRUPTED
    assert session.questions == []


async def test_a_parked_session_finds_the_servers_again(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()})
    session, first = await rig.first(tool("mcp__x__pid"), "${tool_result}")
    session.evict()
    await until(lambda: session.dormant)
    outcome = await rig.say(session, tool("mcp__x__pid"), "${tool_result}")
    assert outcome.result is not None
    assert pids([first, outcome.result]) == {first.split()[0]}


async def test_a_server_that_is_disabled_in_mid_session_answers_again_once_it_is_enabled(start_rig: StartRig) -> None:
    """Claude Code hears that the tool is gone, or the call comes before that and is refused by the hub."""
    rig: Rig = await start_rig({"x": program()})
    session, _ = await rig.first("hello")
    rig.hub.disable("x")
    outcome = await rig.say(session, tool("mcp__x__echo", a=1), "${tool_result}")
    assert any(words in (outcome.result or "") for words in ("No such tool available", "disabled by hand"))
    rig.hub.enable("x")
    async with asyncio.timeout(LONG):
        while outcome.result != '{"a": 1}':
            outcome = await rig.say(session, tool("mcp__x__echo", a=1), "${tool_result}")


async def test_a_session_that_begins_in_a_spare_process_has_the_servers_too(start_rig: StartRig) -> None:
    rig: Rig = await start_rig({"x": program()}, spare_processes=1)
    await rig.first("nothing to do")
    await rig.service.spares_settled()
    (spare,) = rig.service._sessions.spares._ready
    session, _ = await rig.first(tool("mcp__x__progress"), "${tool_result}")
    assert session.id == spare.id
    assert "mcp__x__echo" in offered(rig, session.id)
    assert "[progress] x: 1 of 3 step 1" in [one.line for one in session.log.after(0) if isinstance(one, Output)]
