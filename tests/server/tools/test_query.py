"""`claude_code_query`: every message as a notification while it happens, and the bundle at the end."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from claude_code_mcp.model.events import Partial, PartialRun
from claude_code_mcp.model.states import State
from claude_code_mcp.sessions.session import Session
from claude_code_mcp.testing.script import fail, parallel, script, stall, text, tool
from tests.server.tools.conftest import time_runs_out
from tests.support.waiting import HANG_SECONDS

from .conftest import Caller, StartCaller

HELLO = script("Say hello", "hello")
BOTH_ERAS = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


async def query(caller: Caller, prompt: str, **options: Any) -> dict[str, Any]:
    return await caller.ok("claude_code_query", prompt=prompt, options=options)


@BOTH_ERAS
async def test_every_message_is_a_notification(start_caller: StartCaller, mode: str) -> None:
    caller: Caller = await start_caller(mode)
    before = datetime.now().astimezone()
    bundle = await query(
        caller, script("Work", tool("Bash", command="echo hi"), "${tool_result}"), allowedTools=["Bash"]
    )
    await caller.listener.until("result")
    notifications = caller.listener.received
    assert {frozenset(message) for message in notifications} == {
        frozenset({"type", "sessionId", "message", "timestamp", "sequence"})
    }
    assert {message["type"] for message in notifications} == {"claude_code_message"}
    assert {message["sessionId"] for message in notifications} == {bundle["sessionId"]}
    assert [message["sequence"] for message in notifications] == list(range(1, len(notifications) + 1))
    times = [datetime.fromisoformat(message["timestamp"]) for message in notifications]
    assert times == sorted(times)
    assert before.timestamp() - 1 < times[0].timestamp() <= datetime.now().astimezone().timestamp()
    reported = [kind for kind in caller.listener.kinds if kind in ("assistant", "user", "result")]
    assert reported == ["assistant", "user", "assistant", "result"]


async def test_the_bundle_has_what_was_streamed_and_the_outcome(caller: Caller) -> None:
    bundle = await query(caller, HELLO)
    await caller.listener.until("result")
    assert bundle["messages"] == caller.listener.messages
    assert bundle["messages"][0]["subtype"] == "init"
    assert bundle["result"] == {"success": True, "summary": "hello"}
    assert bundle["usage"]["input_tokens"] > 0
    assert 0 < bundle["executionTime"] < 60_000
    assert "truncated" not in bundle


async def test_the_bundle_has_the_last_messages(caller: Caller) -> None:
    prompt = script("Work", *(tool("Bash", command=f"echo {number}") for number in range(4)), "done")
    bundle = await query(caller, prompt, allowedTools=["Bash"], maxMessages=3)
    await caller.listener.until("result")
    assert bundle["messages"] == caller.listener.messages[-3:]
    assert bundle["truncated"] == {"total": len(caller.listener.received), "returned": 3}
    none = await query(caller, HELLO, maxMessages=0)
    assert none["messages"] == []
    assert none["truncated"]["returned"] == 0


async def test_a_hundred_messages_by_default(caller: Caller) -> None:
    calls = parallel(*(tool("Bash", command=f"echo {number}") for number in range(6)))
    bundle = await query(caller, script("Work", *[calls] * 10, "done"), allowedTools=["Bash"])
    assert len(bundle["messages"]) == 100
    assert bundle["messages"][-1]["type"] == "result"
    assert bundle["truncated"]["total"] > 120


async def test_a_bundle_is_not_larger_than_a_client_can_take(caller: Caller) -> None:
    chunk = text("0123456789abcdef", repeat=5 << 15)
    large = [chunk | tool("Bash", command="true") for _ in range(8)]
    bundle = await query(caller, script("Write", *large, "done"), allowedTools=["Bash"])
    assert bundle["truncated"]["total"] - bundle["truncated"]["returned"] >= 4
    assert bundle["messages"][-1]["type"] == "result"
    assert bundle["result"]["summary"] == "done"


async def test_system_messages_can_be_left_out_of_the_bundle(caller: Caller) -> None:
    bundle = await query(caller, HELLO, includeSystemMessages=False)
    await caller.listener.until("result")
    assert "system" in caller.listener.kinds
    assert bundle["messages"] == [message for message in caller.listener.messages if message["type"] != "system"]
    assert "truncated" not in bundle


async def test_fragments_are_streamed_when_asked_for(caller: Caller) -> None:
    prompt = script("Count", text("one two three four", chunks=4))
    whole = await query(caller, prompt)
    await caller.listener.until("result")
    assert "stream_event" not in caller.listener.kinds
    caller.listener.received.clear()
    bundle = await query(caller, prompt, includePartialMessages=True)
    await caller.listener.until("result")
    events = [message["event"] for message in caller.listener.messages if message["type"] == "stream_event"]
    deltas = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
    assert (len(deltas), "".join(deltas)) == (4, "one two three four")
    assert [message["sequence"] for message in caller.listener.received] == list(
        range(1, len(caller.listener.received) + 1)
    )
    assert [message["type"] for message in bundle["messages"]] == [message["type"] for message in whole["messages"]]


@BOTH_ERAS
async def test_a_cancelled_call_aborts_the_turn_and_cleans_up(start_caller: StartCaller, mode: str) -> None:
    caller: Caller = await start_caller(mode)
    call = asyncio.ensure_future(query(caller, script("Wait", stall("…"))))
    await caller.listener.until("system")
    (session,) = caller.service.sessions()
    call.cancel()
    assert await session.wait(HANG_SECONDS)
    assert session.state is State.INTERRUPTED
    notifications = len(caller.listener.received)
    again = await caller.ok("claude_code_reply", sessionId=session.id, prompt=HELLO)
    assert again["result"] == "hello"
    assert len(caller.listener.received) == notifications


def speaks(session: Session) -> bool:
    return any(
        item.kind == "text" and item.text for item in session.log.after(0) if isinstance(item, Partial | PartialRun)
    )


async def test_the_time_limit_returns_what_there_is(start_caller: StartCaller) -> None:
    caller: Caller = await start_caller(max_execution_time_ms=4000)
    prompt = script("Work", tool("Bash", command="echo so far"), stall("and"))
    call = caller.call("claude_code_query", prompt=prompt, options={"allowedTools": ["Bash"]})
    result = await time_runs_out(caller, call, speaks)  # which it does behind its tool
    assert result.is_error
    bundle = result.structured_content
    assert bundle is not None
    assert bundle["result"]["timedOut"] is True
    assert bundle["result"]["error"].startswith("timeout: ")
    assert "so far" in str([message for message in bundle["messages"] if message["type"] == "user"])
    again = await caller.ok("claude_code_reply", sessionId=bundle["sessionId"], prompt=HELLO)
    assert again["result"] == "hello"


async def test_api_trouble_is_retried_and_told(caller: Caller) -> None:
    bundle = await query(caller, script("Retry", fail(529, times=2, then="fine")))
    assert bundle["result"] == {"success": True, "summary": "fine"}
    assert any("529" in reported for reported in caller.progress)
    assert "api_retry" in [message.get("subtype") for message in bundle["messages"]]


async def test_api_trouble_that_stays_is_a_clear_error(start_caller: StartCaller) -> None:
    caller: Caller = await start_caller(extra={"CLAUDE_CODE_MAX_RETRIES": "1"})
    result = await caller.call("claude_code_query", prompt=script("Fail", fail(500, message="the roof is on fire")))
    assert result.is_error
    assert result.structured_content is not None
    reported = result.structured_content["result"]
    assert reported["success"] is False
    assert reported["error"].startswith("api_error: ")
    assert "the roof is on fire" in reported["error"]
    assert result.structured_content["messages"][-1]["type"] == "result"


async def test_a_start_that_fails_is_told_at_once(caller: Caller) -> None:
    code, message = await caller.refused("claude_code_query", prompt=HELLO, options={"cwd": "/nowhere/at/all"})
    assert code == "INVALID_ARGUMENT"
    assert "/nowhere/at/all" in message
    assert caller.service.sessions() == []


@pytest.mark.parametrize(
    "options",
    [{"maxTurns": 0}, {"maxMessages": -1}, {"model": ""}, {"cwd": "a\0b"}, {"surprise": 1}, {"maxTurns": "1"}],
)
async def test_options_are_checked(caller: Caller, options: dict[str, Any]) -> None:
    code, message = await caller.refused("claude_code_query", prompt=HELLO, options=options)
    assert code == "INVALID_ARGUMENT"
    assert next(iter(options)) in message


async def test_bypass_must_be_switched_on(caller: Caller) -> None:
    options = {"permissionMode": "bypassPermissions"}
    assert (await caller.refused("claude_code_query", prompt=HELLO, options=options))[0] == "PERMISSION_DENIED"


async def test_a_query_can_be_gone_on_with_in_the_other_families(caller: Caller) -> None:
    bundle = await query(caller, HELLO)
    reply = await caller.ok("claude_code_reply", sessionId=bundle["sessionId"], prompt=HELLO)
    assert reply["sessionTotalTurns"] == 2
    status = await caller.ok("claude_get_status", sessionId=bundle["sessionId"])
    assert status["status"] == "completed"
