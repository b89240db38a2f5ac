"""Every call gets the answer and the cost of its own message, whatever else the session is told meanwhile."""

import asyncio
from typing import Any

import mcp_types as types
import pytest

from claude_code_mcp.core.model.events import Message
from claude_code_mcp.core.sessions.session import Session
from claude_code_mcp.testing.script import script, text, tool
from tests.core.sessions.support import api_times, events, streams, until
from tests.support.waiting import HANG_SECONDS, until_true

from .conftest import StartCaller, ToolCaller, while_it_speaks

HELLO = script("Say hello", "hello")


def slow(caller: ToolCaller) -> dict[str, Any]:
    """The last answer of a turn, which goes on until `produce_output`: a message that comes meanwhile finds nothing
    left to join."""
    return text("mine", chunks=4, until=str(caller.sandbox.project / "go"))


def produce_output(caller: ToolCaller) -> None:
    (caller.sandbox.project / "go").touch()


ERA, OTHER_ERA = "legacy", pytest.param("2026-07-28", marks=pytest.mark.soak)
EITHER_ERA = pytest.mark.parametrize("mode", [ERA, OTHER_ERA])
"""Nothing that differs between the eras is at work here."""


def messages_read(session: Session) -> int:
    """How many messages the process has told of."""
    reported = [event.raw for event in events(session, Message) if event.type == "command_lifecycle"]
    return len({item["command_uuid"] for item in reported})


@EITHER_ERA
async def test_a_message_behind_a_call_does_not_change_its_answer(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
    call = asyncio.ensure_future(caller.ok("claude_code", prompt=script("Work", slow(caller))))
    session = await while_it_speaks(caller, call)
    theirs = asyncio.ensure_future(
        caller.ok("claude_send_message", sessionId=session.id, message=script("And", "theirs"), waitSeconds=50)
    )
    await until(session, lambda: messages_read(session) == 2)
    produce_output(caller)
    mine, other = await call, await theirs
    assert (mine["result"], mine["numTurns"]) == ("mine", 1)
    assert (other["result"], other["status"]) == ("theirs", "completed")
    assert mine["totalCostUsd"] < mine["sessionTotalCostUsd"] + 1e-9
    assert session.usage.cost_usd > mine["totalCostUsd"]

    (caller.sandbox.project / "go").unlink()
    call = asyncio.ensure_future(
        caller.ok("claude_code_reply", sessionId=session.id, prompt=script("Work", slow(caller)))
    )
    await until(session, lambda: session.busy and streams(session))
    await caller.ok("claude_send_message", sessionId=session.id, message=script("Long", text("long", until="/never")))
    produce_output(caller)
    assert (await call)["result"] == "mine"
    assert session.busy, "it returns with its own turn while another still runs"
    stopped = await caller.ok("claude_interrupt", sessionId=session.id)
    assert stopped["status"] == "interrupted"


@pytest.mark.soak
@EITHER_ERA
async def test_one_of_two_concurrent_replies_is_refused(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode, allow_disk_resume=True)
    first = await caller.ok("claude_code", prompt=HELLO)
    for park in (False, True):
        if park:
            caller.session(first).park()
        gate = caller.sandbox.project / f"go on {park}"
        prompts = [script(f"{n}", text(f"answer {n}", until=str(gate))) for n in range(3)]
        calls = [
            asyncio.ensure_future(caller.call("claude_code_reply", sessionId=first["sessionId"], prompt=prompt))
            for prompt in prompts
        ]
        await until_true(lambda: sum(call.done() for call in calls) == 2)  # noqa: B023 - of this round
        gate.touch()
        results = [item.structured_content or {} for item in await asyncio.gather(*calls)]
        codes = [result["error"]["code"] for result in results if "error" in result]
        assert codes == ["SESSION_BUSY", "SESSION_BUSY"]
        [accepted] = [number for number, one in enumerate(results) if "error" not in one]
        assert results[accepted]["result"] == f"answer {accepted}"


@pytest.mark.soak  # as `claude_code` does: the first test
@EITHER_ERA
async def test_a_query_ends_with_its_own_turn(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
    call = asyncio.ensure_future(caller.ok("claude_code_query", prompt=script("Work", slow(caller))))
    session = await while_it_speaks(caller, call)
    last = caller.sandbox.project / "last"
    await caller.ok(
        "claude_send_message", sessionId=session.id, message=script("Long", text("theirs", until=str(last)))
    )
    produce_output(caller)
    bundle = await call
    last.touch()
    assert bundle["result"] == {"success": True, "summary": "mine"}
    assert bundle["messages"][-1]["type"] == "result"
    assert bundle["messages"][-1]["result"] == "mine"
    assert await session.wait(HANG_SECONDS)
    assert session.outcome is not None
    assert session.outcome.result == "theirs"
    assert [message["result"] for message in caller.listener.messages if message["type"] == "result"] == ["mine"]


async def test_repeated_call_finds_its_own_answer(start_caller: StartCaller) -> None:
    """While its person thinks, the turn is answered elsewhere and the session goes on to something else."""
    thinking, go = asyncio.Event(), asyncio.Event()

    async def thinks(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        thinking.set()
        await go.wait()
        return types.ElicitResult(action="accept", content={"decision": "Allow once"})

    caller: ToolCaller = await start_caller("2026-07-28", thinks)
    prompt = script("Touch", tool("Bash", command="touch asked"), "mine")
    call = asyncio.ensure_future(caller.ok("claude_code", prompt=prompt, permissionMode="default"))
    async with asyncio.timeout(HANG_SECONDS):
        await thinking.wait()
    (session,) = caller.service.sessions()
    (question,) = session.questions
    await caller.ok("claude_respond", sessionId=session.id, inputId=question.id, decision="allow", waitSeconds=30)
    sent = await caller.ok("claude_send_message", sessionId=session.id, message=HELLO, waitSeconds=30)
    assert sent["result"] == "hello"
    go.set()
    assert (await call)["result"] == "mine"


@pytest.mark.soak
async def test_a_cancelled_call_leaves_the_messages_behind_it_alone(caller: ToolCaller) -> None:
    call = asyncio.ensure_future(caller.call("claude_code", prompt=script("Wait", text("mine", chunks=2, interval=60))))
    session = await while_it_speaks(caller, call)
    other = asyncio.ensure_future(
        caller.ok("claude_send_message", sessionId=session.id, message=script("And", "theirs"), waitSeconds=50)
    )
    await until(session, lambda: messages_read(session) == 2)
    call.cancel()
    assert (await other)["result"] == "theirs"


@pytest.mark.soak  # tests/plugins/tui/test_stories.py
async def test_an_interruption_reports_what_it_dropped(caller: ToolCaller) -> None:
    prompt = script("Work", tool("Bash", command="until [ -e never ]; do sleep 0.1; done"))
    created = await caller.ok(
        "claude_create_session",
        prompt=prompt,
        workingDirectory=str(caller.sandbox.project),
        allowedTools=["Bash"],
    )
    session = caller.session(created)
    await until(session, lambda: bool(session.readable_lines.tools))
    waiting = asyncio.ensure_future(
        caller.call("claude_send_message", sessionId=session.id, message="never read", waitSeconds=50)
    )
    await until(session, lambda: messages_read(session) == 2)
    stopped = await caller.ok("claude_interrupt", sessionId=session.id)
    assert stopped["droppedMessages"] == ["never read"]
    reported = (await waiting).structured_content or {}
    assert (reported["status"], reported["error"]["code"]) == ("interrupted", "dropped")


@pytest.mark.soak  # tests/core/sessions/test_clear.py
async def test_clearing_reports_the_new_id_and_the_old_one_leads_to_it(caller: ToolCaller) -> None:
    first = await caller.ok("claude_code", prompt=script("Slow", text("one", delay=0.2)))
    old = first["sessionId"]
    second = await caller.ok("claude_code_reply", sessionId=old, prompt=HELLO)
    one, two = api_times(caller.session(first))
    assert [first["durationApiMs"], second["durationApiMs"]] == [one, two - one], "times with the API are of the call"
    assert one >= 200
    cleared = await caller.ok("claude_code_reply", sessionId=old, prompt="/clear")
    new = cleared["sessionId"]
    assert new != old
    assert cleared["previousSessionId"] == old
    assert new in cleared["result"]
    again = await caller.ok("claude_code_reply", sessionId=new, prompt=HELLO)
    assert (again["sessionId"], again.get("previousSessionId")) == (new, None)
    reported = await caller.ok("claude_get_status", sessionId=old)
    assert (reported["sessionId"], reported["previousSessionId"]) == (new, old)
    assert (await caller.ok("claude_interrupt", sessionId=old))["sessionId"] == new
    sent = await caller.ok("claude_send_message", sessionId=old, message=HELLO, waitSeconds=30)
    assert (sent["sessionId"], sent["previousSessionId"], sent["result"]) == (new, old, "hello")
    assert (len(sent["recentOutput"]), sent.get("outputTruncated")) == (1, None), "only what is new"
