"""`claude_code_query`: every message as a notification while it happens, and the bundle at the end."""

import asyncio
from datetime import datetime
from typing import Any

import pytest

from claude_code_mcp.core.model.states import State
from claude_code_mcp.testing.script import fail, parallel, script, stall, text, tool
from tests.support.waiting import HANG_SECONDS

from .conftest import StartCaller, ToolCaller

HELLO = script("Say hello", "hello")
OTHER_ERA = pytest.mark.parametrize("mode", [pytest.param("legacy", marks=pytest.mark.soak), "2026-07-28"])
"""Nothing that differs between the eras is at work here."""


async def query(caller: ToolCaller, prompt: str, **options: Any) -> dict[str, Any]:
    return await caller.ok("claude_code_query", prompt=prompt, options=options)


@OTHER_ERA
async def test_every_message_is_a_notification(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
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
    assert "stream_event" not in caller.listener.kinds, "fragments only when asked for"
    assert bundle["messages"] == caller.listener.messages
    assert bundle["messages"][0]["subtype"] == "init"
    assert bundle["result"] == {"success": True, "summary": "hi"}
    assert bundle["usage"]["input_tokens"] > 0
    assert bundle["executionTime"] > 0
    assert "truncated" not in bundle
    reply = await caller.ok("claude_code_reply", sessionId=bundle["sessionId"], prompt=HELLO)
    assert reply["sessionTotalTurns"] == 3, "the other families go on with it"
    status = await caller.ok("claude_get_status", sessionId=bundle["sessionId"])
    assert status["status"] == "completed"


@pytest.mark.soak
async def test_the_bundle_has_the_last_messages(caller: ToolCaller) -> None:
    prompt = script("Work", *(tool("Bash", command=f"echo {number}") for number in range(4)), "done")
    bundle = await query(caller, prompt, allowedTools=["Bash"], maxMessages=3)
    await caller.listener.until("result")
    assert bundle["messages"] == caller.listener.messages[-3:]
    assert bundle["truncated"] == {"total": len(caller.listener.received), "returned": 3}


@pytest.mark.soak
async def test_a_hundred_messages_by_default(caller: ToolCaller) -> None:
    missing = [str(caller.sandbox.project / f"{number}") for number in range(12)]
    calls = parallel(*(tool("Read", file_path=path) for path in missing))
    bundle = await query(caller, script("Work", *[calls] * 5, "done"))
    assert len(bundle["messages"]) == 100
    assert bundle["messages"][-1]["type"] == "result"
    assert bundle["truncated"]["total"] > 120


@pytest.mark.soak  # by its count: the next test
async def test_a_bundle_is_not_larger_than_a_client_can_take(
    caller: ToolCaller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claude_code_mcp.server.tools.query._MAX_BUNDLE_BYTES", 1 << 18)
    chunk = text("0123456789abcdef", repeat=5 << 9)
    large = [chunk | tool("Bash", command="true") for _ in range(8)]
    bundle = await query(caller, script("Write", *large, "done"), allowedTools=["Bash"])
    assert bundle["truncated"]["total"] - bundle["truncated"]["returned"] >= 4
    assert bundle["messages"][-1]["type"] == "result"
    assert bundle["result"]["summary"] == "done"


@pytest.mark.soak  # test_query_transports.py
async def test_fragments_are_streamed_when_asked_for_and_system_messages_can_be_left_out(caller: ToolCaller) -> None:
    prompt = script("Count", text("one two three four", chunks=4))
    bundle = await query(caller, prompt, includePartialMessages=True, includeSystemMessages=False)
    await caller.listener.until("result")
    events = [message["event"] for message in caller.listener.messages if message["type"] == "stream_event"]
    deltas = [event["delta"]["text"] for event in events if event.get("delta", {}).get("type") == "text_delta"]
    assert (len(deltas), "".join(deltas)) == (4, "one two three four")
    assert [message["sequence"] for message in caller.listener.received] == list(
        range(1, len(caller.listener.received) + 1)
    )
    assert "system" in caller.listener.kinds, "they are left out of the bundle alone"
    whole = [message for message in caller.listener.messages if message["type"] not in ("stream_event", "system")]
    assert bundle["messages"] == whole
    assert "truncated" not in bundle
    none = await query(caller, HELLO, maxMessages=0)
    assert none["messages"] == []
    assert none["truncated"]["returned"] == 0


@pytest.mark.soak  # of the other family: test_code.py
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_cancelled_call_aborts_the_turn_and_cleans_up(start_caller: StartCaller, mode: str) -> None:
    caller: ToolCaller = await start_caller(mode)
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


@pytest.mark.soak  # test_code.py, tests/core/sessions/test_outcomes.py
async def test_api_errors_are_retried_and_reported(start_caller: StartCaller) -> None:
    caller: ToolCaller = await start_caller(extra={"CLAUDE_CODE_MAX_RETRIES": "1"})
    bundle = await query(caller, script("Retry", fail(529, times=1, then="fine")))
    assert bundle["result"] == {"success": True, "summary": "fine"}
    assert any("529" in reported for reported in caller.progress)
    assert "api_retry" in [message.get("subtype") for message in bundle["messages"]]
    result = await caller.call("claude_code_query", prompt=script("Fail", fail(400, message="the roof is on fire")))
    assert result.is_error
    assert result.structured_content is not None
    reported = result.structured_content["result"]
    assert reported["success"] is False
    assert reported["error"].startswith("api_error: ")
    assert "the roof is on fire" in reported["error"]
    assert result.structured_content["messages"][-1]["type"] == "result"


async def test_failed_start_is_reported_at_once(caller: ToolCaller) -> None:
    code, message = await caller.refused("claude_code_query", prompt=HELLO, options={"cwd": "/nowhere/at/all"})
    assert code == "INVALID_ARGUMENT"
    assert "/nowhere/at/all" in message
    assert caller.service.sessions() == []


async def test_options_are_checked_and_bypass_must_be_switched_on(caller: ToolCaller) -> None:
    wrong: list[dict[str, Any]] = [
        {"maxTurns": 0},
        {"maxMessages": -1},
        {"model": ""},
        {"cwd": "a\0b"},
        {"surprise": 1},
        {"maxTurns": "1"},
    ]
    for given in wrong:
        code, message = await caller.refused("claude_code_query", prompt=HELLO, options=given)
        assert code == "INVALID_ARGUMENT"
        assert next(iter(given)) in message
    options = {"permissionMode": "bypassPermissions"}
    assert (await caller.refused("claude_code_query", prompt=HELLO, options=options))[0] == "PERMISSION_DENIED"
