"""A turn that took too long: every family tells whose it was, what it had said until then and what it cost."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeGuard

import mcp_types as types
import pytest

from claude_code_mcp.model.events import Event, Partial, PartialRun
from claude_code_mcp.testing.script import script, stall, tool
from tests.sessions.support import until
from tests.support.clock import stopped_clock

from .conftest import Caller, StartCaller, while_it_speaks

WAITING = "…"
USED = {"input_tokens": 5000, "output_tokens": 10}
SLOW = script("Work", {**tool("Bash", command="echo one"), "text": "Let me look.", "usage": USED}, stall(WAITING))


async def time_runs_out(caller: Caller, call: Coroutine[Any, Any, types.CallToolResult]) -> types.CallToolResult:
    """The result of a call whose four seconds are over when the model has fallen silent, however long that took."""
    calling = asyncio.ensure_future(call)
    with stopped_clock() as clock:
        session = await while_it_speaks(caller, calling)
        await until(session, lambda: any(WAITING in event.text for event in session.log.after(0) if is_partial(event)))
        await clock.advance(4)
    return await calling


def is_partial(event: Event) -> TypeGuard[Partial | PartialRun]:
    return isinstance(event, Partial | PartialRun)


async def test_the_code_family_tells_what_there_is(caller: Caller) -> None:
    call = caller.call("claude_code", prompt=SLOW, timeout=4000, allowedTools=["Bash"])
    result = await time_runs_out(caller, call)
    payload = result.structured_content
    assert result.is_error
    assert payload is not None
    assert payload["error"]["code"] == "TIMEOUT"
    assert payload["sessionId"] in payload["error"]["message"]
    assert "Let me look." in payload["result"]
    assert payload["totalCostUsd"] > 0
    assert payload["sessionTotalCostUsd"] == pytest.approx(payload["totalCostUsd"])
    report = await caller.ok("claude_code_reply", sessionId=payload["sessionId"], prompt=script("Go on", "gladly"))
    assert report["result"] == "gladly"


async def test_a_query_tells_what_there_is(start_caller: StartCaller) -> None:
    caller = await start_caller(max_execution_time_ms=4000)
    call = caller.call("claude_code_query", prompt=SLOW, options={"allowedTools": ["Bash"]})
    result = await time_runs_out(caller, call)
    payload = result.structured_content
    assert result.is_error
    assert payload is not None
    assert (payload["error"]["code"], payload["result"]["timedOut"]) == ("TIMEOUT", True)
    assert payload["sessionId"] in payload["error"]["message"]
    assert "Let me look." in payload["result"]["summary"]
    assert payload["totalCostUsd"] > 0
    assert "assistant" in [message["type"] for message in payload["messages"]]
